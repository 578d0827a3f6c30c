"""In a rank: whether an answer has reached for what tells the judge about it.

An answer shares its process with the lab's own code, and Python lets it put other functions in the place of
those, or walk up the stack to what they keep. What is looked for here are the plain ways of doing so; whoever
writes code in another module's name, or puts everything back in time, is not seen.
"""

import importlib
import sys
from collections.abc import Iterable, Iterator
from operator import attrgetter, is_
from types import FrameType, FunctionType, ModuleType
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
_code_of = attrgetter("__code__")


class _Place:
    """A module, class or other object, with the names in it as they are now."""

    def __init__(self, name: str, place: Any) -> None:
        self.name, self.place = name, place
        self.keys, self.values = tuple(vars(place)), tuple(vars(place).values())
        self.functions = tuple(value for value in self.values if type(value) is FunctionType)
        self.codes = tuple(map(_code_of, self.functions))

    def is_same(self) -> bool:
        """Whether every name means what it meant: asked of all places, and true of nearly all."""
        now = vars(self.place)
        return (
            len(now) == len(self.keys)
            and all(map(is_, now.keys(), self.keys))
            and all(map(is_, now.values(), self.values))
            and all(map(is_, map(_code_of, self.functions), self.codes))
        )

    def changed(self) -> list[str]:
        """The functions and modules that are something else now, or hide something since they are there."""
        if self.is_same():
            return []
        pairs = zip(self.functions, self.codes, strict=True)
        recoded = {id(function) for function, code in pairs if function.__code__ is not code}
        before, now = _members(zip(self.keys, self.values, strict=True)), _members(vars(self.place).items())
        found = [key for key, value in before.items() if now.get(key) is not value or id(value) in recoded]
        if not _is_module(self.place) or self.name.startswith((f"{_COURSE}.labs.", f"{_COURSE}.measure.")):
            found += [key for key in now.keys() - before.keys() if not _is_module(now[key])]
        return [f"{self.name}.{key}" for key in found]


# What a fork server has looked at, by name. A seal takes it out, so that an answer finds nothing here.
_remembered: dict[str, _Place] = {}


def remember() -> None:
    """Look at all modules that are there, so that the seals of this process's forks need not."""
    _remembered.update({place.name: place for place in _places()})


class Seal:
    """Remembers the functions of the course, and of what it counts with, as they are when it is made.

    witnesses: modules that have to be loaded first, so that what an answer finds under these names is what
    was looked at. things: objects that have functions as well.
    """

    def __init__(self, witnesses: Iterable[str], things: tuple[Any, ...]) -> None:
        for name in witnesses:
            importlib.import_module(name)
        own = [_Place(type(thing).__name__, thing) for thing in things]
        self._before = [*_remembered.values(), *_places(), *own]
        _remembered.clear()
        self._modules = {place.name: place.place for place in self._before if _is_module(place.place)}
        self._reaches = _watch()

    def broken(self) -> str:
        """What was done, in words; empty when it was nothing."""
        if self._reaches:
            return f"used {self._reaches[0]}"
        changed = next((name for place in self._before for name in place.changed()), "")
        exchanged = [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        replaced = [name for name in (changed, *exchanged) if name]
        return f"replaced {replaced[0]}" if replaced else ""


# --- what was replaced ---


def _places() -> Iterator[_Place]:
    """Modules of the course and the classes that they define, and those it counts with, if not remembered."""
    for name, module in list(sys.modules.items()):
        if name in _remembered:
            continue
        if name in _MODULES:
            yield _Place(name, module)
        if name.partition(".")[0] == _COURSE:
            yield _Place(name, module)
            yield from (_Place(f"{name}.{key}", found) for key, found in _classes(name, module))
    for name, key in _CLASSES:
        if f"{name}.{key}" not in _remembered:
            yield _Place(f"{name}.{key}", getattr(sys.modules[name], key))


def _classes(name: str, module: ModuleType) -> list[tuple[str, Any]]:
    found = [(key, value) for key, value in vars(module).items() if issubclass(type(value), type)]
    return [(key, value) for key, value in found if value.__module__ == name]


def _members(names: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Those that are functions, modules or the like: other things may change."""
    return {key: value for key, value in names if callable(value) or issubclass(type(value), _KINDS)}


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
