"""The messages between a supervisor and its children: JSON behind its length, over a socket.

Nothing is pickled: the supervisor reads a child's messages, which the project's code may have written, as data.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

from chainsched.domain.outcomes import Outcome
from chainsched.domain.run_context import Claim
from chainsched.domain.states import ExecutionState
from chainsched.exceptions import ChainschedError

Message = dict[str, Any]

_LENGTH = struct.Struct("!I")
# An output of the largest size that can be configured, and its traceback, fit.
MAX_MESSAGE = 256 * 1024 * 1024
CHUNK = 256 * 1024


class GarbledMessage(ChainschedError):
    """The bytes are no message; the project's code may have written to the socket."""


_encoded = json.JSONEncoder(default=str, separators=(",", ":")).encode


def encode(message: Message) -> bytes:
    """A message as it travels."""
    body = _encoded(message).encode()
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Puts messages together from the pieces in which they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with these bytes; raises GarbledMessage for bytes that are none."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_MESSAGE:
                raise GarbledMessage(f"a message of {length} bytes was announced")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield _read(body)


def _read(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise GarbledMessage(str(error)) from error
    if not isinstance(message, dict):
        raise GarbledMessage("a message is an object")
    return message


class Channel:
    """The supervisor's end of a socket: it never blocks, whatever the other end does."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self._decoder = Decoder()
        self._unsent = bytearray()
        # The reason for which the bytes that arrived are no message, if they ended it.
        self.malformed_reason = ""

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Send as much as the socket takes now; the rest goes with ``flush``."""
        self._unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            # The other end is gone; reading will say so.
            self._unsent.clear()

    def receive(self) -> tuple[list[Message], bool]:
        """The messages that have arrived, and whether more can come: not from an end that is gone or makes no sense."""
        messages: list[Message] = []
        try:
            while data := self.socket.recv(CHUNK):
                messages.extend(self._decoder.feed(data))
        except BlockingIOError:
            return messages, True
        except GarbledMessage as error:
            self.malformed_reason = str(error)
        except OSError:
            pass
        return messages, False

    def close(self) -> None:
        self.socket.close()


_CLAIM = tuple(field.name for field in fields(Claim))
_values = attrgetter(*_CLAIM)
_CORRELATION_ID, _SCHEDULED_FOR = _CLAIM.index("correlation_id"), _CLAIM.index("scheduled_for")
_OF_FAILURES = tuple(field.name for field in fields(Outcome) if field.name not in {"state", "output"})
_COMPLETED = Outcome(ExecutionState.COMPLETED)


def pack_claim(item: Claim) -> list[Any]:
    """A claim as a part of a message: its values, without their names."""
    values = list(_values(item))
    # Here, and not as unknown types by the encoder, which takes longer for that.
    values[_CORRELATION_ID] = str(values[_CORRELATION_ID])
    values[_SCHEDULED_FOR] = values[_SCHEDULED_FOR].isoformat()
    return values


def unpack_claim(values: list[Any]) -> Claim:
    """The claim that these values make."""
    values[_CORRELATION_ID] = UUID(values[_CORRELATION_ID])
    values[_SCHEDULED_FOR] = datetime.fromisoformat(values[_SCHEDULED_FOR])
    return Claim(**dict(zip(_CLAIM, values, strict=True)))


def pack_outcome(outcome: Outcome) -> Message | None:
    """An outcome as a message: None for a success without an output; facts about failures if it is one."""
    if outcome.state is ExecutionState.COMPLETED and outcome.output is None:
        return None
    message: Message = {"state": outcome.state, "output": outcome.output}
    return message | {name: fact for name in _OF_FAILURES if (fact := getattr(outcome, name))}


def unpack_outcome(message: Message | None) -> Outcome:
    """The outcome that a message holds; raises GarbledMessage if it holds none."""
    if message is None:
        return _COMPLETED
    try:
        return Outcome(**{**message, "state": ExecutionState(message["state"])})
    except (TypeError, ValueError, KeyError) as error:
        raise GarbledMessage(f"an outcome was expected: {error}") from error
