"""Values as JSON and npy: what can be read back without unpickling anything.

The notebook may unpickle what its own functions return; a grader must not unpickle what a stranger's
code returns, so there numbers, text, lists, dicts, arrays and tensors travel in this form.
"""

import io
import json
import struct
from typing import Any

import numpy as np

_LENGTH = struct.Struct("!Q")


def encode(value: Any) -> bytes:
    """Bytes for None, bool, int, float, str, list, tuple, dict with text keys, numpy arrays and tensors.

    Raises:
        TypeError: a value of any other type, a subclass of these, or an array of objects.
    """
    arrays: list[bytes] = []
    text = json.dumps(_pack(value, arrays)).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *[_LENGTH.pack(len(data)) + data for data in arrays]])


def decode(data: bytes | bytearray | memoryview) -> Any:
    """The value that `encode` wrote; tensors come back as arrays (bfloat16 as float32), tuples as lists.

    Raises:
        ValueError: the bytes were not written by `encode`.
    """
    view = memoryview(data)
    try:
        blocks = _split(view)
        return _unpack(json.loads(bytes(blocks[0])), blocks[1:])
    except (KeyError, IndexError, TypeError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a plain value: {error!r}") from None


def _split(view: memoryview) -> list[memoryview]:
    blocks = []
    while view:
        (length,) = _LENGTH.unpack_from(view)
        if length > len(view) - _LENGTH.size:
            raise ValueError("not a plain value: it ends too early")
        blocks.append(view[_LENGTH.size : _LENGTH.size + length])
        view = view[_LENGTH.size + length :]
    return blocks


def _pack(value: Any, arrays: list[bytes]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if np.isfinite(value) else {"float": repr(value)}
    if kind in (list, tuple):
        return [_pack(item, arrays) for item in value]
    if kind is dict:
        return {"dict": [[_text(key), _pack(item, arrays)] for key, item in value.items()]}
    arrays.append(_npy(_as_array(value)))
    return {"array": len(arrays) - 1}


def _text(key: Any) -> str:
    if type(key) is not str:
        raise TypeError(f"a dict with a key of type {type(key).__name__}; keys must be text")
    return key


def _as_array(value: Any) -> np.ndarray:
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        value = value.numpy()
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if type(value) is not np.ndarray or value.dtype.hasobject:
        raise TypeError(
            f"a value of type {type(value).__name__}; numbers, text, lists, dicts, arrays, tensors can travel"
        )
    return value


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _unpack(value: Any, arrays: list[memoryview]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, arrays) for item in value]
    if isinstance(value, dict) and "float" in value:
        return float(value["float"])
    if isinstance(value, dict) and "dict" in value:
        return {str(key): _unpack(item, arrays) for key, item in value["dict"]}
    if isinstance(value, dict):
        return np.load(io.BytesIO(arrays[value["array"]]), allow_pickle=False)
    return value
