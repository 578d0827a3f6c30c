"""What can go wrong while the environment is made: each is one line and one exit code."""


class Problem(Exception):
    """Something that the person at the keyboard has to mend; str() is the one line that says so."""

    exit_code = 1


class NoVenvModule(Problem):
    exit_code = 3


class NoIndex(Problem):
    exit_code = 4


class NoRoom(Problem):
    exit_code = 5


class NotInstalled(Problem):
    exit_code = 6


def one_line(text: str) -> str:
    return " ".join(text.split())
