"""Make the course's environment in .venv: `python3 tools/make_env.py`, or any `make` target that needs it.

This first file is written so that every Python can read it, Python 2 included: an old one must get as far
as saying that it is old. The work itself is in environment.py.
"""

import sys

OLDEST, NEWEST = (3, 11), (3, 13)


def python_problem(version):
    """The one line that an unfit Python gets, or None. `version` is (major, minor, ...)."""
    if OLDEST <= tuple(version[:2]) <= NEWEST:
        return None
    return (
        "Python 3.11 to 3.13 is needed, but {} is Python {}.{}: install one of these, "
        "or name it, as in `make lab PYTHON=/path/to/python3.12`."
    ).format(sys.executable or "this one", version[0], version[1])


if __name__ == "__main__":
    problem = python_problem(sys.version_info)
    if problem:
        sys.stderr.write(problem + "\n")
        sys.exit(2)
    import environment

    sys.exit(environment.main())
