"""In a rank: whether an answer has reached for what tells the judge about it.

An answer shares its process with the lab's own code, and Python lets it put other functions in the place of
those, or walk up the stack to what they keep. What is looked for here are the plain ways of doing so; whoever
writes code in another module's name, or puts everything back in time, is not seen.
"""

import importlib
import sys
from collections.abc import Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any

_COURSE = "dpcourse"
# Of other packages only what the labs' own code counts and sends with: a walk over all of torch takes long.
_MODULES = ("builtins", "gc", "torch.distributed", "torch.distributed.distributed_c10d")
_CLASSES = (("socket", "socket"), ("threading", "Thread"), ("torch", "Tensor"), ("torch", "UntypedStorage"))
# What Python tells of code that looks at frames or at all objects, or that starts a program, and the modules
# that do it for others.
_REACHES = {"sys._getframe", "sys._current_frames", "sys.settrace", "gc.get_objects", "gc.get_referrers"}
_REACHES |= {"subprocess.Popen", "os.system", "os.fork", "os.posix_spawn", "os.exec"}
_FRAMES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")
_HELPERS = ("inspect", "traceback", "subprocess", "os")

_KINDS = (ModuleType, property, classmethod, staticmethod)
Members = dict[str, tuple[Any, Any]]  # by name: a function or module, and a function's code


class Seal:
    """Remembers the functions of the course, and of what it counts with, as they are when it is made.

    witnesses: modules that have to be loaded first, so that what an answer finds under these names is what
    was looked at. things: objects that have functions as well.
    """

    def __init__(self, witnesses: Iterable[str], things: tuple[Any, ...]) -> None:
        for name in witnesses:
            importlib.import_module(name)
        self._before = {name: (place, _members(place)) for name, place in _places(things)}
        self._modules = {name: module for name, module in sys.modules.items() if name in self._before}
        self._reaches = _watch()

    def broken(self) -> str:
        """What was done, in words; empty when it was nothing."""
        if self._reaches:
            return f"used {self._reaches[0]}"
        changed = next((name for name, pair in self._before.items() for name in _changed(name, *pair)), "")
        exchanged = [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        replaced = [name for name in (changed, *exchanged) if name]
        return f"replaced {replaced[0]}" if replaced else ""


# --- what was replaced ---


def _places(things: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Modules of the course and the classes that they define, those it counts with, and the things given."""
    for name, module in list(sys.modules.items()):
        if name in _MODULES:
            yield name, module
        if name.partition(".")[0] == _COURSE:
            yield name, module
            yield from ((f"{name}.{key}", found) for key, found in _classes(name, module))
    for name, key in _CLASSES:
        yield f"{name}.{key}", getattr(sys.modules[name], key)
    for thing in things:
        yield type(thing).__name__, thing


def _classes(name: str, module: ModuleType) -> list[tuple[str, Any]]:
    found = [(key, value) for key, value in vars(module).items() if issubclass(type(value), type)]
    return [(key, value) for key, value in found if value.__module__ == name]


def _members(place: Any) -> Members:
    return {
        key: (value, getattr(value, "__code__", None))
        for key, value in list(vars(place).items())
        if callable(value) or issubclass(type(value), _KINDS)
    }


def _changed(name: str, place: Any, before: Members) -> Iterator[str]:
    """The names in a place that mean something else now, or that hide something since they are there."""
    now = _members(place)
    for key, (value, code) in before.items():
        found, its_code = now.get(key, (None, None))
        if found is not value or its_code is not code:
            yield f"{name}.{key}"
    is_closed = not _is_module(place) or name.startswith((f"{_COURSE}.labs.", f"{_COURSE}.measure."))
    for key in now.keys() - before.keys():
        if is_closed and not _is_module(now[key][0]):
            yield f"{name}.{key}"


def _is_module(value: Any) -> bool:
    return issubclass(type(value), ModuleType)


# --- what was reached for ---


def _watch() -> list[str]:
    """A list to which each reach of the answer's will be added; nobody can take the watch away again."""
    reaches: list[str] = []

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        name = arguments[1] if event == "object.__getattr__" else event
        if (name in _REACHES or name in _FRAMES) and _is_answers(sys._getframe(2), name in _REACHES):
            reaches.append(name)

    sys.addaudithook(_once(hear))
    return reaches


def _once(hear: Any) -> Any:
    """The same, deaf to what it does itself."""
    is_busy = [False]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not is_busy[0]:
            is_busy[0] = True
            try:
                hear(event, arguments)
            finally:
                is_busy[0] = False

    return hook


def _is_answers(frame: FrameType | None, through_helpers: bool) -> bool:
    """Whether code that stands in no module's file does it, or has it done."""
    while frame is not None and through_helpers and frame.f_globals.get("__name__") in _HELPERS:
        frame = frame.f_back
    if frame is None:
        return False
    module = sys.modules.get(str(frame.f_globals.get("__name__")))
    return module is None or vars(module) is not frame.f_globals
