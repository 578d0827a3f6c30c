"""The browser: Debian's Chromium, or the one that CHROMIUM names, driven by Playwright."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

WIDTH, HEIGHT = 1280, 900
_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Missing(Exception):
    """Something that the browser tests need is not there; str() is the one line that says what to install."""


def path() -> str:
    """The browser's program.

    Raises:
        Missing: there is none.
    """
    asked = os.environ.get("CHROMIUM", "")
    found = shutil.which(asked or "chromium") or (None if asked else shutil.which("chromium-browser"))
    if found:
        return found
    what = f"CHROMIUM={asked} is no program" if asked else "no program is called chromium"
    raise Missing(
        f"The browser tests need Chromium, and {what}: install it (Debian: apt-get install "
        "--no-install-recommends chromium), or name it, as in CHROMIUM=/usr/bin/chromium."
    )


def check() -> None:
    """Refuse to begin without a browser or without what drives it."""
    import importlib.util

    path()
    for module in ("playwright", "axe_playwright_python"):
        if importlib.util.find_spec(module) is None:
            raise Missing(
                f"The browser tests need the package {module}, which is not installed: "
                "`make browser-test` installs it."
            )


@contextlib.contextmanager
def browser(environment: dict[str, str]) -> Iterator[Any]:
    """A browser with an empty profile; it has gone when this ends."""
    from playwright.sync_api import sync_playwright

    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        running = driver.chromium.launch(
            executable_path=path(), headless=True, args=[*_FLAGS, *as_root], env={**os.environ, **environment}
        )
        try:
            yield running
        finally:
            running.close()
