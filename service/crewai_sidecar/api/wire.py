"""Requests: bytes in, checked values out, in the order of deploy/guide/contract.md. Nothing here has an effect.

The fields of a body are declared once, as data: the check and the OpenAPI description both read the list.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from crewai_sidecar import identity, jsontext
from crewai_sidecar.admission import StartRequest
from crewai_sidecar.api.parts import AnyRequest, parts
from crewai_sidecar.errors import AliasMisuse, BodyTooLarge, InputTooLarge, InvalidBody, InvalidFields, SidecarError
from crewai_sidecar.model import CONTROL_OPERATIONS, Operation

__all__ = [
    "CANCEL_FIELDS",
    "MAX_BODY_BYTES",
    "MAX_INPUT_BYTES",
    "MAX_TIMEOUT_MS",
    "START_FIELDS",
    "Body",
    "ClientGone",
    "Field",
    "header",
    "headers",
    "integer",
    "query",
    "query_integer",
    "read_fields",
    "start_request",
    "trace_context",
]

MAX_BODY_BYTES = 8 << 20
"""Bytes of a body; a larger one is not parsed."""

MAX_INPUT_BYTES = 1_048_576
"""Bytes of an input as compact UTF-8 JSON, the connector's own measure."""

MAX_TIMEOUT_MS = 3_600_000

_LARGE = 256 << 10
"""Bytes of a body that is parsed on another thread: the loop has streams to serve meanwhile."""


_COMPACT = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))
"""Writes what was parsed, in which there are no circles: the check for them would keep what it saw in one."""


class ClientGone(Exception):
    """Raised when the client has closed the connection before its request was read."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a JSON body. `least` and `most` bound a text's characters or an integer's value."""

    name: str
    kind: Literal["text", "integer", "object"]
    description: str
    least: int = 0
    most: int = 0
    required: bool = False
    nullable: bool = False
    choices: tuple[str, ...] = ()

    def fault(self, value: Any) -> str | None:
        """Say what is wrong with a value, or None."""
        if value is None and self.nullable:
            return None
        if self.choices:
            fine = isinstance(value, str) and value in self.choices
            rule = f"one of {', '.join(self.choices)}"
        elif self.kind == "text":
            fine = isinstance(value, str) and self.least <= len(value) <= self.most
            rule = f"a text of {self.least:,} to {self.most:,} characters"
        elif self.kind == "integer":  # a bool is an int to isinstance
            fine = type(value) is int and self.least <= value <= self.most
            rule = f"an integer from {self.least:,} to {self.most:,}"
        else:
            fine = type(value) is dict
            rule = "an object"
        return None if fine else f"{self.name} must be {rule}{' or null' if self.nullable else ''}"


START_FIELDS = (
    Field("crew_id", "text", "A crew of the registry.", 1, 256, required=True),
    Field("action_id", "text", "The Action's id, spent in this journal once admitted.", 1, 256, required=True),
    Field(
        "operation",
        "text",
        "What to do; `run` if absent. The control operations are named here to be refused with 403.",
        choices=(*Operation, *CONTROL_OPERATIONS),
    ),
    Field("input", "object", "The operation's input, at most 1,048,576 bytes as compact UTF-8 JSON. {} if absent."),
    Field(
        "timeout_ms",
        "integer",
        "Time for the operation, and for a blocking caller's wait. 600,000 if absent or null.",
        1,
        MAX_TIMEOUT_MS,
        nullable=True,
    ),
)

CANCEL_FIELDS = (
    Field("crew_id", "text", "The Action's crew.", 1, 256, required=True),
    Field("action_id", "text", "The Action's id, as in the path.", 1, 256, required=True),
    Field("reason", "text", "Why; kept in the record.", 0, 2048, nullable=True),
)


# -- body -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Body:
    """The checked fields of a body, and the bytes of its `input` as compact UTF-8 JSON.

    Of an input that is too large, only that is kept.
    """

    fields: dict[str, Any]
    input_bytes: int


async def read_fields(request: AnyRequest, fields: Sequence[Field]) -> Body:
    """Read a JSON object of the given fields.

    Raises BodyTooLarge, InvalidBody, InvalidFields (which lists every fault), ClientGone.
    """
    text = await _read_body(request)
    if len(text) > _LARGE:
        async with parts(request).parsing:
            read = await asyncio.to_thread(_read_large, text, fields)
    else:
        read = _read(text, fields)
    if isinstance(read, SidecarError):
        raise read
    return read


def _read_large(text: bytes, fields: Sequence[Field]) -> Body | InvalidBody | InvalidFields:
    """Read with no collection meanwhile: it would stop every thread, and what JSON makes has no cycles."""
    gc.disable()
    try:
        return _read(text, fields)
    finally:
        gc.enable()


def _read(text: bytes, fields: Sequence[Field]) -> Body | InvalidBody | InvalidFields:
    """Parse, check and measure a body, on whatever thread.

    A refusal is returned and not raised: its traceback would keep the values, and let them be freed on the event loop,
    where millions of them take a second.
    """
    try:
        value = jsontext.decode(text)
    except jsontext.InvalidJson as error:
        return InvalidBody(str(error))
    if type(value) is not dict:
        return InvalidFields("The body must be a JSON object.")
    faults = [f"{field.name} is required" for field in fields if field.required and field.name not in value]
    known = {field.name: field for field in fields}
    for name, one in value.items():
        fault = known[name].fault(one) if name in known else f"{_short(name)} is not a field of this body"
        if fault is not None:
            faults.append(fault)
    if faults:
        return InvalidFields("; ".join(faults[:20]) + ".")
    size = _size(value.get("input", {}), large=len(text) > _LARGE)
    if size > MAX_INPUT_BYTES:
        value["input"] = {}
    return Body(value, size)


def _size(value: Any, *, large: bool) -> int:
    """Bytes of a value as compact UTF-8 JSON; where it is large, no more are counted than show that it is too large."""
    if not large:
        return len(_COMPACT.encode(value).encode("utf-8"))
    size = 0
    for part in _COMPACT.iterencode(value):  # in Python, which lets other threads in; the whole at once would not
        size += len(part.encode("utf-8"))
        if size > MAX_INPUT_BYTES:
            break
    return size


async def _read_body(request: AnyRequest) -> bytes:
    announced = header(request, b"content-length")
    if announced is not None and announced.isdigit() and int(announced[:20]) > MAX_BODY_BYTES:
        raise BodyTooLarge(f"The body has more than {MAX_BODY_BYTES:,} bytes.")
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientGone
        chunk = message.get("body", b"")
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise BodyTooLarge(f"The body has more than {MAX_BODY_BYTES:,} bytes.")
        if not message.get("more_body", False):
            return b"".join(chunks)


def _short(name: str) -> str:
    return repr(name if len(name) <= 64 else name[:61] + "...")


# -- a start --------------------------------------------------------------------------------------------------------


async def start_request(request: AnyRequest, *, alias: bool) -> StartRequest:
    """Read a start and check its form, up to the key.

    Raises BodyTooLarge, InvalidBody, InvalidFields, AliasMisuse, InputTooLarge, KeyMissing, KeyInvalid, ClientGone.
    """
    read = await read_fields(request, START_FIELDS)
    body = read.fields
    operation = body.get("operation", Operation.RUN.value)
    if alias and operation != Operation.RUN:
        raise AliasMisuse("The /runs routes are for the operation run; use /jobs.")
    if read.input_bytes > MAX_INPUT_BYTES:
        raise InputTooLarge(f"The input has more than {MAX_INPUT_BYTES:,} bytes as compact JSON.")
    trace_id, span_id = trace_context(headers(request, b"traceparent"))
    return StartRequest(
        action_id=body["action_id"],
        crew_id=body["crew_id"],
        operation=operation,
        input=body.get("input", {}),
        input_bytes=read.input_bytes,
        timeout_ms=body.get("timeout_ms"),
        key=identity.idempotency_key(headers(request, b"idempotency-key")),
        trace_id=trace_id,
        span_id=span_id,
    )


_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


def trace_context(values: list[bytes]) -> tuple[str | None, str | None]:
    """Read trace and span id of a W3C traceparent; None for both where it is missing or not valid."""
    match = _TRACEPARENT.fullmatch(values[0].strip()) if len(values) == 1 else None
    if match is None:
        return None, None
    version, trace_id, span_id, rest = match.groups()
    unknown = version == b"ff" or (version == b"00" and rest is not None)
    if unknown or not trace_id.strip(b"0") or not span_id.strip(b"0"):
        return None, None
    return trace_id.decode("ascii"), span_id.decode("ascii")


# -- headers and query ----------------------------------------------------------------------------------------------


def headers(request: AnyRequest, name: bytes) -> list[bytes]:
    """All values of a header, as raw bytes: a framework's text would be Latin-1."""
    return [value for found, value in request.scope["headers"] if found.lower() == name]


def header(request: AnyRequest, name: bytes) -> bytes | None:
    """The value of a header that is there once, else None."""
    values = headers(request, name)
    return values[0] if len(values) == 1 else None


def query(request: AnyRequest, name: str) -> str | None:
    """The value of a query parameter, None where it is absent.

    Raises InvalidFields where it was sent twice.
    """
    values: list[str] = request.query_params.getall(name, [])
    if len(values) > 1:
        raise InvalidFields(f"The query parameter {name} was sent {len(values)} times.")
    return values[0] if values else None


def query_integer(request: AnyRequest, name: str) -> int | None:
    """The value of a query parameter that is an integer, None where it is absent.

    Raises InvalidFields where it is something else.
    """
    text = query(request, name)
    if text is None:
        return None
    value = integer(text)
    if value is None:
        raise InvalidFields(f"The query parameter {name} must be an integer.")
    return value


def integer(text: str) -> int | None:
    """The value of a decimal integer of 40 digits at most, which is larger than whatever is counted here, or None."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,40}", text) else None
