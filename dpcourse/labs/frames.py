"""What goes between a rank and the switch: a short head, and the numbers of a tensor behind it."""

import struct
from dataclasses import dataclass

_HEAD = struct.Struct("<4sqiIQ")
HEAD_BYTES = _HEAD.size
MAX_BYTES = 1 << 26  # of one message: far more than any lab sends

# From a rank: a tensor for a peer; ready for one; the main thread waits for the message of that number; a
# word for the log; all is done. From the switch: a tensor; a message has been taken; nobody can go on.
SEND, READY, WAIT, NOTE, DONE = b"SEND", b"RECV", b"WAIT", b"NOTE", b"DONE"
DATA, TAKEN, STOP = b"DATA", b"TAKN", b"STOP"


@dataclass(frozen=True)
class Frame:
    """One of the above: `number` is the sender's own for the message, `peer` the other rank."""

    kind: bytes
    number: int = 0
    peer: int = -1
    tag: int = 0
    payload: bytes | memoryview = b""

    def encode(self) -> list[bytes | memoryview]:
        """The bytes to send, head first."""
        head = _HEAD.pack(self.kind, self.tag, self.peer, self.number, len(self.payload))
        return [head, self.payload] if len(self.payload) else [head]


def decode(head: bytes | bytearray) -> tuple[Frame, int]:
    """A frame without its payload, and how many bytes of payload follow.

    Raises:
        ValueError: more of them than any message has.
    """
    kind, tag, peer, number, num_bytes = _HEAD.unpack(head)
    if num_bytes > MAX_BYTES:
        raise ValueError(f"a message of {num_bytes:,} bytes")
    return Frame(kind, number, peer, tag), num_bytes
