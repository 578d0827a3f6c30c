"""A notebook in the browser: opened, run to its end, looked at, with all that the browser complained of."""

import re
import time
import uuid
from pathlib import Path
from typing import Any

from tests.browser.chromium import HEIGHT
from tests.browser.lab import TOKEN, Lab

START_SECONDS, RUN_SECONDS = 60, 300
_OVERLAP = 150  # of a window's height, so that nothing stands only on the edge of two pictures
_PANEL = "jupyterapp.shell.currentWidget"
_KERNEL = f"window.jupyterapp && {_PANEL}?.sessionContext?.session?.kernel"
_SCROLLER = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer"
_THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}

# What JupyterLab 4 itself says on the console, whatever notebook is open.
OF_JUPYTERLAB: tuple[str, ...] = ()

# Else cells outside of the window have no height, no text and nothing that axe would look at.
_DRAW_ALL = ".jp-Cell { content-visibility: visible !important }"

# Errors of callbacks too, which JupyterLab may show nowhere.
_LISTEN = f"""() => {{
  window.kernelErrors = [];
  ({_KERNEL}).anyMessage.connect((_, {{msg}}) => {{
    const {{ename, evalue, name, text}} = msg.content;
    if (msg.header.msg_type === 'error') window.kernelErrors.push(`${{ename}}: ${{evalue}}`);
    if (msg.header.msg_type === 'stream' && name === 'stderr') window.kernelErrors.push(`stderr: ${{text}}`);
  }});
}}"""

# Resolves to true once the outputs have stood still for 0.25 s, to false after 2 s in which they did not.
_STANDS_STILL = """() => new Promise(resolve => {
  const done = answer => { watch.disconnect(); clearTimeout(still); clearTimeout(late); resolve(answer) };
  let still = setTimeout(() => done(true), 250);
  const late = setTimeout(() => done(false), 2000);
  const watch = new MutationObserver(() => {
    clearTimeout(still); still = setTimeout(() => done(true), 250);
  });
  for (const area of document.querySelectorAll('.jp-OutputArea'))
    watch.observe(area, {subtree: true, childList: true, characterData: true, attributeFilter: ['src']});
})"""


class Notebook:
    """One notebook in a page of its own; `complaints` are the browser's errors that are not JupyterLab's."""

    def __init__(self, page: Any, name: str) -> None:
        self.page, self.name = page, name
        self.complaints: list[str] = []
        page.on("console", lambda said: said.type == "error" and self._complain(said.text))
        page.on("pageerror", lambda error: self._complain(str(error)))

    def _complain(self, text: str) -> None:
        if not any(re.search(pattern, text) for pattern in OF_JUPYTERLAB):
            self.complaints.append(text[:500])

    # -- running -------------------------------------------------------------------------------------

    def open(self, lab: Lab) -> None:
        """Open the notebook and wait until its kernel answers."""
        workspace = uuid.uuid4().hex  # a new one: the last one would open its notebooks beside this
        self.page.goto(f"{lab.url}lab/workspaces/{workspace}/tree/{self.name}?token={TOKEN}")
        self._wait(f"({_KERNEL})?.status === 'idle'", START_SECONDS)
        self._wait("document.querySelector('.jp-Notebook .jp-Cell')", START_SECONDS)
        self.page.add_style_tag(content=_DRAW_ALL)
        self.page.evaluate(_LISTEN)
        self.page.evaluate("jupyterapp.commands.execute('application:toggle-left-area')")

    def run_all(self, seconds: float = RUN_SECONDS) -> None:
        """Run all cells, as the menu does, and wait until the last has ended or one has failed."""
        self.page.evaluate(
            "() => { window.hasRun = false;"
            " jupyterapp.commands.execute('runmenu:run-all').finally(() => { window.hasRun = true }) }"
        )
        self._wait("window.hasRun", seconds)
        self.settle()

    def start_cell(self, number: int) -> None:
        """Start one code cell by the keyboard, and do not wait for its end."""
        self.code_cell(number).locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")

    def interrupt(self) -> None:
        """Press the toolbar's button."""
        self.page.locator('jp-button[data-command="notebook:interrupt-kernel"]').first.click()

    def settle(self, seconds: float = RUN_SECONDS) -> None:
        """Wait until the kernel has answered all that was sent, and what it shows stands still."""
        deadline = time.monotonic() + seconds
        for _ in range(2):  # a widget holds its second message back until the first is answered
            asked = f"Promise.race([({_KERNEL}).requestKernelInfo(), new Promise(end => setTimeout(end, "
            self.page.evaluate(f"{asked} {1000 * seconds}))]).then(() => null)")
        while not self.page.evaluate(_STANDS_STILL):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: what it shows still changes after {seconds:g} s")

    def theme(self, name: str) -> None:
        """Change to "light" or "dark", as the settings menu does."""
        change = "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})"
        self.page.evaluate(change, _THEMES[name])
        self._wait(f"document.body.dataset.jpThemeLight === '{str(name == 'light').lower()}'", START_SECONDS)
        self.settle()

    def close(self) -> None:
        """End the kernel and leave the page; what was not saved is lost."""
        self.page.evaluate(f"{_PANEL}.sessionContext.shutdown()")
        self.page.close()

    def _wait(self, condition: str, seconds: float) -> None:
        from playwright.sync_api import TimeoutError as Late

        try:
            self.page.wait_for_function(f"() => {condition}", timeout=1000 * seconds)
        except Late:
            raise TimeoutError(f"{self.name}: not within {seconds:g} s: {condition}") from None

    # -- looking -------------------------------------------------------------------------------------

    def cells(self) -> list[dict[str, Any]]:
        """The notebook as it stands: what would be saved."""
        return self.page.evaluate(f"{_PANEL}.content.model.toJSON().cells")

    def kernel_errors(self) -> list[str]:
        """Every error and warning that the kernel has sent since the notebook was opened."""
        return self.page.evaluate("window.kernelErrors")

    def code_cell(self, number: int) -> Any:
        """One code cell as it stands in the page, the first is 0."""
        return self.page.locator(".jp-CodeCell").nth(number)

    def wait_for_text(self, number: int, text: str, seconds: float = RUN_SECONDS) -> None:
        """Wait until a code cell shows `text`."""
        cell = f"document.querySelectorAll('.jp-CodeCell')[{number}]"
        self._wait(f"{cell}.querySelector('.jp-Cell-outputArea').innerText.includes({text!r})", seconds)

    def shoot(self, folder: Path, step: str) -> list[Path]:
        """Pictures of the whole notebook from top to bottom, a window at a time."""
        height = self.page.evaluate(f"document.querySelector('{_SCROLLER}').scrollHeight")
        files = []
        for number, top in enumerate(range(0, height, HEIGHT - _OVERLAP), 1):
            self.page.evaluate(f"document.querySelector('{_SCROLLER}').scrollTop = {top}")
            files.append(self.shoot_window(folder, f"{step}-{number:02}"))
        return files

    def shoot_window(self, folder: Path, step: str) -> Path:
        """A picture of what stands in the window now."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{Path(self.name).stem}-{step}.png"
        self.page.screenshot(path=file)
        return file
