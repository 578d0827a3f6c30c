"""Messages over a socket between two of our own processes: a JSON header and a block of bytes.

The header never needs unpickling, so a process that does not trust the other end can read it safely.
"""

import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

_LENGTHS = struct.Struct("!QQ")
_CHUNK_BYTES = 1 << 18
_HEADER_LIMIT_BYTES = 64 << 20


class Closed(ConnectionError):
    """The other end has gone."""


@dataclass(frozen=True)
class Message:
    """One message: `kind` says what it is, `fields` are JSON, `payload` is bytes."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    payload: bytes | bytearray | memoryview = b""


def send(sock: socket.socket, kind: str, payload: bytes | memoryview = b"", **fields: Any) -> None:
    """Write one message; raises `OSError` when the other end has gone."""
    header = json.dumps({"kind": kind, **fields}).encode()
    sock.sendall(_LENGTHS.pack(len(header), len(payload)) + header)
    if payload:
        sock.sendall(payload)


def receive(sock: socket.socket) -> Message:
    """Read one message, waiting for all of it; raises `Closed` at the end of the stream."""
    decoder = Decoder()
    while True:
        for message in decoder.feed(_read(sock, decoder.num_missing_bytes)):
            return message


def _read(sock: socket.socket, num_bytes: int) -> bytes:
    data = sock.recv(min(num_bytes, _CHUNK_BYTES))
    if not data:
        raise Closed("the other end closed the connection")
    return data


class Decoder:
    """Turns chunks as they arrive into whole messages; keeps what is not whole yet."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted = _LENGTHS.size

    @property
    def num_missing_bytes(self) -> int:
        """Bytes that can be read without reading into the message after this one."""
        return self._wanted - len(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        """Add `data`; returns the messages that it completed."""
        self._buffer += data
        messages = []
        while self._grow() and len(self._buffer) >= self._wanted:
            messages.append(self._take())
        return messages

    def _grow(self) -> bool:
        if len(self._buffer) < _LENGTHS.size:
            return False
        header, payload = _LENGTHS.unpack_from(self._buffer)
        if header > _HEADER_LIMIT_BYTES:
            raise ValueError(f"a message header of {header} bytes; at most {_HEADER_LIMIT_BYTES} are allowed")
        self._wanted = _LENGTHS.size + header + payload
        return True

    def _take(self) -> Message:
        header_bytes, _ = _LENGTHS.unpack_from(self._buffer)
        start = _LENGTHS.size + header_bytes
        fields = json.loads(self._buffer[_LENGTHS.size : start])
        payload = self._buffer[start : self._wanted]
        del self._buffer[: self._wanted]
        self._wanted = _LENGTHS.size
        return Message(fields.pop("kind"), fields, payload)
