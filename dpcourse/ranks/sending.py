"""Functions and values on their way to another process, cells' functions by value, lines kept."""

import collections
import io
import marshal
import types
from typing import Any, ClassVar

import cloudpickle


def _reduce_code(code: types.CodeType) -> tuple[Any, tuple[bytes]]:
    # cloudpickle forgets the file's name, by which a traceback finds the cell's lines.
    # Both ends run the same Python, so the interpreter's own format will do.
    return marshal.loads, (marshal.dumps(code),)


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar = collections.ChainMap(
        {types.CodeType: _reduce_code},
        cloudpickle.Pickler.dispatch_table,
    )


def dumps(value: Any, what: str) -> bytes:
    """Bytes of `value` for `pickle.loads` in another process of this machine.

    Raises:
        TypeError: it holds what cannot leave its process; the message begins with `what`.
    """
    file = io.BytesIO()
    try:
        _Pickler(file).dump(value)
    except Exception as error:
        raise TypeError(
            f"{what} cannot be sent to another process ({type(error).__name__}: {error}). Open files, locks, "
            "sockets and generators stay in their process; numbers, text, arrays, tensors, functions and "
            "lists and dicts of them can travel"
        ) from None
    return file.getvalue()
