"""The messages between the service, the fork server and a run's child.

Between service and child: a stream socket that carries frames, each a 4-byte big-endian length and that many bytes of
compact JSON. Between service and fork server: a SOCK_SEQPACKET socket, one JSON object a packet, with the child's file
descriptors beside a `Fork`. Every frame is bounded before it is read: a child cannot make the service hold more than
one of them.

What comes from a child is checked on arrival like any other input (the types below are decoded strictly); what a crew
does with its own process is not trusted.
"""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from crewai_sidecar import jsontext

__all__ = [
    "HIDDEN_VARIABLES",
    "MAX_FRAME_BYTES",
    "MAX_PACKET_BYTES",
    "Configure",
    "Crew",
    "Event",
    "Exited",
    "Fork",
    "ForkFailed",
    "ForkServerReady",
    "Forked",
    "FrameError",
    "FrameReader",
    "FromChild",
    "FromForkServer",
    "Job",
    "Ping",
    "Pong",
    "Ready",
    "Result",
    "Stop",
    "ToChild",
    "ToForkServer",
    "decode",
    "decode_order",
    "frame",
    "packet",
    "receive",
]

MAX_FRAME_BYTES = 8 << 20
"""Bytes of one frame without its length. An input of 1 MiB and an output of 4 MiB fit, ASCII-escaped."""

MAX_PACKET_BYTES = 64 << 10
"""Bytes of one packet between service and fork server."""

HIDDEN_VARIABLES = ("AIP_CREWAI_BEARER_TOKEN", "AIP_CREWAI_BEARER_TOKEN_FILE", "AIP_CREWAI_STATE_FILE")
"""Settings that no child may see: what a model makes a tool do is not trusted with the token or the journal's place."""

_LENGTH = 4


class FrameError(ValueError):
    """Raised for a frame that is too large or is not one of the messages."""


# -- service to fork server ---------------------------------------------------------------------------------------


class Configure(msgspec.Struct, frozen=True, tag="configure", kw_only=True):
    """First packet to the fork server: what every child needs to know before a job.

    `registry` is AIP_CREWAI_REGISTRY, `start_directory` goes first on a child's sys.path, `environment` is put into a
    child's os.environ before the registry is imported (the user's own values of variables that the fork server had to
    be started without), `max_event_bytes` bounds one event and `max_output_bytes` an output, both as encoded JSON.
    """

    registry: str
    start_directory: str
    environment: dict[str, str] = {}
    max_event_bytes: int = 262_144
    max_output_bytes: int = 4_194_304


class Fork(msgspec.Struct, frozen=True, tag="fork", kw_only=True):
    """Ask for a child. Its end of the frame socket and of the output pipe come with the packet, in this order.

    `directory` exists, is empty, is this child's alone, and is absolute: cwd, HOME, TMPDIR and scratch storage go below
    it. With `describe` the child's Ready names the crews.
    """

    number: int
    directory: str
    describe: bool = False


class Ping(msgspec.Struct, frozen=True, tag="ping", kw_only=True):
    """Ask the fork server whether it still serves. It answers with a Pong once all before it is done."""


# -- fork server to service ---------------------------------------------------------------------------------------


class ForkServerReady(msgspec.Struct, frozen=True, tag="fork_server_ready", kw_only=True):
    """The fork server has imported what it preloads and has one thread."""

    pid: int


class Forked(msgspec.Struct, frozen=True, tag="forked", kw_only=True):
    """The child of a Fork exists."""

    number: int
    pid: int


class ForkFailed(msgspec.Struct, frozen=True, tag="fork_failed", kw_only=True):
    """There is no child for a Fork: the kernel refused one, or the packet could not be used (then -1 as number)."""

    number: int
    error: str


class Exited(msgspec.Struct, frozen=True, tag="exited", kw_only=True):
    """A child is reaped. `code` is its exit code, negative for a signal.

    `strangers` counts processes of its tree that were left behind and could not be ended yet: 0 means that nothing of
    the run is left on this machine.
    """

    pid: int
    code: int
    strangers: int = 0


class Pong(msgspec.Struct, frozen=True, tag="pong", kw_only=True):
    """The answer to a Ping."""


# -- service to child ---------------------------------------------------------------------------------------------


class Job(msgspec.Struct, frozen=True, tag="job", kw_only=True):
    """The one piece of work of a child. Sent only after the record's `started` event is durable."""

    action_id: str
    crew_id: str
    operation: str
    input: dict[str, Any]
    training_directory: str | None = None


class Stop(msgspec.Struct, frozen=True, tag="stop", kw_only=True):
    """Ask the run to stop at its next step: the first of the three steps of stopping."""

    reason: str = "cancelled"


# -- child to service ---------------------------------------------------------------------------------------------


class Crew(msgspec.Struct, frozen=True, kw_only=True):
    """What the registry says of one crew.

    `operations` names what the object can do, or is null for a factory: what it makes is known in the run only.
    `warning` is a sentence for the log, such as a crew object that embeds knowledge when it is imported.
    """

    crew_id: str
    operations: list[str] | None = None
    warning: str | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready", kw_only=True):
    """The child has imported the registry and waits for its job; with `error`, it could not and ends."""

    pid: int
    crews: list[Crew] | None = None
    error: str | None = None


class Event(msgspec.Struct, frozen=True, tag="event", kw_only=True):
    """Something that happened in the run, at most max_event_bytes as it will be stored."""

    name: str
    data: dict[str, Any]


class Result(msgspec.Struct, frozen=True, tag="result", kw_only=True):
    """The last frame of a child: an output, or the class name of an exception.

    `provider_started` is false where the crew could not be built or the child found the input to be wrong.
    `events_dropped` counts what came after the result or could not be made into an event.
    """

    output: dict[str, Any] | None = None
    error_type: str | None = None
    provider_started: bool = True
    output_truncated: bool = False
    output_bytes: int | None = None
    events_dropped: int = 0


FromChild = Ready | Event | Result
ToChild = Job | Stop
FromForkServer = ForkServerReady | Forked | ForkFailed | Exited | Pong
ToForkServer = Configure | Fork | Ping


def packet(message: FromForkServer | ToForkServer) -> bytes:
    """Write one packet between service and fork server."""
    return jsontext.encode(msgspec.to_builtins(message))


def frame(message: FromChild | ToChild) -> bytes:
    """Write one frame.

    Raises FrameError for a message over MAX_FRAME_BYTES, ValueError for one that is not strict JSON.
    """
    text = jsontext.encode(msgspec.to_builtins(message))
    if len(text) > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(text):,} bytes is over the bound of {MAX_FRAME_BYTES:,}")
    return len(text).to_bytes(_LENGTH, "big") + text


def decode(text: bytes, kind: Any) -> Any:
    """Read one message of the union `kind`.

    Raises FrameError for anything else, NaN, lone surrogates and unknown tags among it.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError, MemoryError) as error:
        raise FrameError(str(error) or type(error).__name__) from None


def decode_order(text: bytes) -> ToChild:
    """Read one message of the service: the child's side.

    An input has passed jsontext, so it is read by the same rules: msgspec counts the sign of an integer as one of its
    4,300 digits. Raises FrameError for anything else.
    """
    try:
        order: ToChild = msgspec.convert(jsontext.decode(text), type=ToChild)
    except (jsontext.InvalidJson, msgspec.MsgspecError, MemoryError) as error:
        raise FrameError(str(error) or type(error).__name__) from None
    return order


class FrameReader:
    """Cuts a stream of bytes into frames. Feed what arrived; iterate over what is whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes and return the texts of the frames that are whole now.

        Raises FrameError for a frame whose announced length is over the bound.
        """
        self._buffer += data
        texts: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH:
            length = int.from_bytes(self._buffer[start : start + _LENGTH], "big")
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length:,} bytes is over the bound of {MAX_FRAME_BYTES:,}")
            if len(self._buffer) - start - _LENGTH < length:
                break
            start += _LENGTH
            texts.append(bytes(self._buffer[start : start + length]))
            start += length
        if start:
            del self._buffer[:start]
        return texts


def receive(stream: socket.socket) -> bytes | None:
    """Read one frame from a blocking socket: the child's side. None at the end of the stream.

    Raises FrameError for a length over the bound.
    """
    head = _exactly(stream, _LENGTH)
    if head is None:
        return None
    length = int.from_bytes(head, "big")
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length:,} bytes is over the bound of {MAX_FRAME_BYTES:,}")
    return _exactly(stream, length)


def _exactly(stream: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = stream.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
