"""Run by itself in a fresh process: makes a user and a network namespace and brings its loopback up.

Some systems allow the first and then refuse to let anything be done inside, so both are tried.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET (linux/sched.h)
_SET_FLAGS, _UP = 0x8914, 1  # SIOCSIFFLAGS, IFF_UP (linux/sockios.h, linux/if.h)

_NO_MORE = "no more of them may be made (user.max_user_namespaces)"  # the kernel says "no space left"


def main() -> None:
    """Make both namespaces and bring the loopback up; where one of them fails, exit with the reason."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_USER | _NEW_NETWORK):
        number = ctypes.get_errno()
        sys.exit(_NO_MORE if number == errno.ENOSPC else os.strerror(number))
    with socket.socket() as any_socket:
        try:
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH22x", b"lo", _UP))
        except OSError as error:
            sys.exit(f"made, but its loopback could not be brought up ({error.strerror})")


if __name__ == "__main__":
    main()
