"""`make browser-test`: the notebooks that are named, else those of every check, in a real browser."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.browser import chromium

EPILOG = """\
examples:
  make browser-test                                              what has to pass
  make browser-test ARGS="notebooks/03_ddp.ipynb --theme dark"   one notebook, as you wrote it
  make browser-test ARGS="notebooks/03_ddp.ipynb -- -x"

Pictures are in build/screens/, by notebook, theme and window. Arguments after -- go to pytest.
"""


def main(arguments: Sequence[str]) -> int:
    """Refuse what cannot begin, else hand over to pytest."""
    asked, for_pytest = _parsed(list(arguments))
    try:
        chromium.check()
    except chromium.Missing as missing:
        print(missing, file=sys.stderr)
        return 2
    os.environ["DPCOURSE_BROWSER_NOTEBOOKS"] = os.pathsep.join(
        str(path.resolve()) for path in asked.notebooks
    )
    os.environ["DPCOURSE_BROWSER_THEME"] = asked.theme or ""
    import pytest

    here = Path(__file__).parent
    where = here / "test_notebooks.py" if asked.notebooks else here
    return pytest.main([str(where), "-m", "browser", *for_pytest])


def _parsed(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="make browser-test",
        description="Open notebooks in JupyterLab, run them, use every control, look for what is wrong.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("notebooks", nargs="*", type=Path, help="files (default: those of every check)")
    parser.add_argument("--theme", choices=("light", "dark"), help="one theme (default: both)")
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    asked = parser.parse_args(arguments[:cut])
    for path in asked.notebooks:
        if not path.is_file():
            parser.error(f"{path}: there is no such notebook")
    return asked, arguments[cut + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
