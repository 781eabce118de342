"""Blocking TCP links between the ranks of a gang: length-prefixed frames, no delay, every wait bounded."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TypeVar

import msgspec

from workers.errors import GangLost
from workers.shards.messages import Message, decode, encode

MAX_FRAME_BYTES = 256 << 20
_LENGTH = struct.Struct("<I")

M = TypeVar("M", bound=Message)


class Link:
    """`peer` is what errors call the other side. Sending is thread-safe, receiving is one thread's."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._lock = threading.Lock()
        self.peer = peer
        self.num_sent_bytes = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Raises GangLost if the other side is gone."""
        self.send_frame(frame(message))

    def send_frame(self, data: bytes) -> None:
        try:
            with self._lock:
                self._socket.sendall(data)
                self.num_sent_bytes += len(data)
        except OSError as error:
            raise GangLost(f"{self.peer} is gone: {error}") from error

    def receive(self, timeout_s: float | None = None) -> Message:
        """The next message; None waits for as long as the pulse lets this rank live. Raises GangLost."""
        try:
            self._socket.settimeout(timeout_s)
            (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
            if length > MAX_FRAME_BYTES:
                raise GangLost(f"{self.peer} sent a frame of {length} bytes, more than {MAX_FRAME_BYTES}")
            return decode(self._exactly(length))
        except TimeoutError:
            raise GangLost(f"{self.peer} sent nothing within {timeout_s} s") from None
        except (OSError, msgspec.MsgspecError) as error:
            raise GangLost(f"the link to {self.peer} broke: {error}") from error

    def expect(self, kind: type[M], timeout_s: float | None = None) -> M:
        """The next message, which must be of that kind."""
        message = self.receive(timeout_s)
        if isinstance(message, kind):
            return message
        raise GangLost(f"{self.peer} sent {type(message).__name__} instead of {kind.__name__}")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            count = self._socket.recv_into(view[got:])
            if count == 0:
                raise GangLost(f"{self.peer} closed the link")
            got += count
        return data


def frame(message: Message) -> bytes:
    """The bytes of one frame, its length included."""
    body = encode(message)
    return _LENGTH.pack(len(body)) + body
