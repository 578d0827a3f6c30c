"""What can go wrong while the environment is made: each is one line and one exit code."""


class Problem(Exception):
    """Something that the person at the keyboard has to mend; str() is the one line that says so."""

    exit_code = 1


class NoVenvModule(Problem):
    """This Python cannot make virtual environments."""

    exit_code = 3


class NoIndex(Problem):
    """The package index cannot be reached."""

    exit_code = 4


class NoRoom(Problem):
    """The disk is too small."""

    exit_code = 5


class NotInstalled(Problem):
    """pip ran and failed, or what it installed cannot be imported."""

    exit_code = 6


def one_line(text: str) -> str:
    """A text with each run of white space, line ends included, made one blank."""
    return " ".join(text.split())
