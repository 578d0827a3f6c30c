"""What a hostile answer tries: texts that run as an answer cell and tell what they found by raising it."""

import json
from typing import Any

# Looks for what must not be there; `wanted` says where. Finds all of it where nothing is kept apart.
LOOK = """
import glob, json, os, socket
wanted = json.loads({wanted!r})
found = []

def attempt(name, function):
    try:
        if function():
            found.append(name)
    except Exception:
        pass

def contents(path):
    return open(path, "rb").read()

def writes(folder):
    path = os.path.join(folder, "left-by-an-answer")
    with open(path, "w") as file:
        file.write("x")
    os.unlink(path)
    return True

for path in wanted["private"]:
    attempt("read " + path, lambda: contents(path) if os.path.isfile(path) else os.listdir(path))
for folder in wanted["folders"]:
    attempt("write " + folder, lambda: writes(folder))
for port in wanted["ports"]:
    attempt("connect", lambda: socket.create_connection(("127.0.0.1", port), 2))
attempt("cards", lambda: [name for _, name in socket.if_nameindex() if name != "lo"])
for path in ["/proc/self/environ", *glob.glob("/proc/[0-9]*/environ")]:
    attempt("secret", lambda: wanted["secret"].encode() in contents(path))
"""
# Tries to take over what stands above a rank: its leader, the fork server, and the grader's worker.
TAKE_OVER = """
import ctypes, glob, os, psutil
found = []
own = os.getpid()
libc = ctypes.CDLL(None, use_errno=True)
above = [process.pid for process in psutil.Process().parents()]
others = [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != own]
for pid in {*above, *others}:
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            line = file.read()
        if "dpcourse.grade.worker" in line:
            found.append("sees the worker")
            os.kill(pid, 18)
            found.append("may send the worker signals")
    except OSError:
        pass
    for mode in ("rb", "r+b"):
        try:
            open(f"/proc/{pid}/mem", mode)
            found.append(f"memory of {pid}")
        except OSError:
            pass
    try:
        found += [f"file of {pid}: {os.readlink(path)}" for path in glob.glob(f"/proc/{pid}/fd/*")]
    except OSError:
        pass
    if libc.ptrace(16, pid, 0, 0) == 0:
        found.append(f"traced {pid}")
        libc.ptrace(17, pid, 0, 0)
"""
TELL = """
found = sorted(set(found))
raise RuntimeError("found " + json.dumps(found) if found else "found nothing")
"""


def look(**wanted: Any) -> str:
    """The text of `LOOK` for the places given."""
    return LOOK.replace("{wanted!r}", repr(json.dumps(wanted)))


def answer(code: str) -> str:
    """An answer to the question on the learning rate that runs `code` and tells what it found."""
    return "import json\n" + code + TELL


FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
FORK_UNTIL_IT_FAILS = """
import os, time
while True:
    if os.fork() == 0:
        time.sleep(600)
"""
FILL_DISK = """
number = 0
while True:
    number += 1
    with open(f"file_{number}", "wb") as file:
        file.write(bytes(100_000_000))
"""
STOP_SERVER = """
import os, psutil, signal
for process in psutil.Process().parents()[1:2]:
    process.send_signal(signal.SIGSTOP)
derivation = 1
"""
STARVE_SERVER = """
import psutil, resource
for process in psutil.Process().parents()[1:2]:
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, 3))
derivation = 1
"""
LEAVE_FILES = """
import os
for folder in {"/tmp", "/dev/shm", os.environ["TMPDIR"], os.environ["HOME"], os.getcwd()}:
    os.makedirs(os.path.join(folder, "left", "behind"), exist_ok=True)
    os.chmod(os.path.join(folder, "left"), 0)
    open(os.path.join(folder, "left-by-an-answer"), "w").close()
derivation = 1
"""
MAP_MEMORY = """
import mmap
found = []
for share in (0.7, 1.1):
    try:
        mmap.mmap(-1, int(share * {num_bytes})).close()
        found.append(f"{share} of it")
    except OSError:
        pass
"""
# Memory, semaphores and messages that stay when every process has gone; 0o1666 makes them for everyone.
LEAVE_MEMORY = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
made = {"memory": libc.shmget(4711, 4096, 0o1666), "a semaphore": libc.semget(4711, 1, 0o1666)}
made["messages"] = libc.msgget(4711, 0o1666)
found = [name for name, number in made.items() if number >= 0]
libc.shmctl(made["memory"], 0, None)
libc.semctl(made["a semaphore"], 0, 0)
libc.msgctl(made["messages"], 0, None)
"""
LOOK_FOR_FILES = """
import os
places = ("/tmp", "/dev/shm", os.environ["TMPDIR"], os.environ["HOME"])
found = [place for place in places for name in os.listdir(place) if name.startswith("left")]
"""
