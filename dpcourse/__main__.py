"""`python -m dpcourse` is the command `dpcourse`; so is `torchrun ... -m dpcourse`, on every rank."""

import sys

from dpcourse.cli import main

if __name__ == "__main__":
    sys.exit(main())
