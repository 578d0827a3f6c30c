"""`dpcourse lab` as a learner starts it, on copies in a folder of its own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conftest import processes_marked, wait_until

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = STOP_SECONDS = 60
TOKEN = "of-the-tests"
# No question about news from outside: nothing outside the machine is asked for.
_SETTINGS = {"@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False}}


class Lab:
    """A running server: `url` opens it, `my` holds the copies, every process of it is marked by `home`."""

    def __init__(self, home: Path, process: subprocess.Popen, url: str) -> None:
        self.home, self.process, self.url = home, process, url

    @property
    def my(self) -> Path:
        return self.home / "my"

    def stop(self) -> None:
        """Ask the server to end, kernels and all, as Ctrl-C and yes do."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def left(self, seconds: float = 5) -> list[str]:
        """What still runs of all that the server had started, given some seconds to end."""
        wait_until(lambda: not processes_marked(str(self.home)), seconds)
        return [" ".join(process.cmdline())[:200] for process in processes_marked(str(self.home))]


@contextlib.contextmanager
def lab(home: Path, notebooks: Sequence[Path]) -> Iterator[Lab]:
    """A server on copies of `notebooks`, ended with all that it started."""
    started = _start(home, notebooks)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.stop()
        for process in processes_marked(str(home)):
            with contextlib.suppress(Exception):
                process.kill()


def environment(home: Path) -> dict[str, str]:
    """Where everything goes that a server, a kernel or a browser keeps; it marks their processes as well."""
    folders = {
        "DPCOURSE_HOME": ".",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    return {name: str(home / folder) for name, folder in folders.items()} | {"JUPYTER_TOKEN": TOKEN}


def _start(home: Path, notebooks: Sequence[Path]) -> Lab:
    _fill(home, notebooks)
    command = [sys.executable, "-m", "dpcourse.cli", "lab", "--no-browser", "--ServerApp.port=0"]
    command += ["--LabApp.expose_app_in_browser=True"]
    with (home / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **environment(home)}, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    if not wait_until(lambda: _address(home) or process.poll() is not None, START_SECONDS):
        process.kill()
    url = _address(home)
    if not url:
        raise RuntimeError(f"JupyterLab did not start; it said:\n{(home / 'server.log').read_text()[-2000:]}")
    return Lab(home, process, url)


def place(notebook: Path) -> str:
    """Where a notebook lies in a learner's folder: a lab among the labs, any other among the notebooks."""
    return f"{'labs' if notebook.parent.name == 'labs' else 'notebooks'}/{notebook.name}"


def _fill(home: Path, notebooks: Sequence[Path]) -> None:
    for folder in ("notebooks", "labs"):
        (home / folder).mkdir()
    for notebook in notebooks:
        shutil.copy(notebook, home / place(notebook))
    for name, values in _SETTINGS.items():
        file = home / "settings" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values))


def _address(home: Path) -> str:
    """The server's address, once it has written it down whole."""
    for file in (home / "runtime").glob("jpserver-*.json"):
        with contextlib.suppress(ValueError, KeyError):
            return json.loads(file.read_text())["url"]
    return ""
