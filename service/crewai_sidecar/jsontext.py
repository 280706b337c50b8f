"""Strict JSON: what is read from outside and what is ever written.

Reading refuses what the standard library lets pass and other parsers understand differently: duplicate keys, NaN and
infinities, numbers that overflow, lone surrogates, integers of more than 4,300 digits, and nesting that would exhaust
the stack. Writing is compact ASCII on one line, so a text can be a line of the journal and the data line of a
server-sent event as it is: U+0085, U+2028 and U+2029 are escaped like every other character beyond ASCII.
"""

from __future__ import annotations

import json
import math
from typing import Any, Never

__all__ = ["MAX_DEPTH", "MAX_DIGITS", "InvalidJson", "decode", "encode", "length"]

MAX_DEPTH = 100
"""Levels of arrays and objects that a text may have. RFC 8259 section 9 allows such a limit."""

MAX_DIGITS = 4300
"""Decimal digits of an integer: CPython's own limit for turning text into an integer."""


class InvalidJson(ValueError):
    """Raised for a text that is not strict JSON; the message says what is wrong in words for the sender."""


def encode(value: Any) -> bytes:
    """Write compact ASCII JSON on one line.

    Raises ValueError for NaN, an infinity or a circular value and TypeError for what JSON has no form for.
    """
    return _ENCODER.encode(value).encode("ascii")


def length(text: str) -> int:
    """Bytes that a text takes inside the quotes of its encoded form."""
    return len(json.encoder.encode_basestring_ascii(text)) - 2


def decode(text: bytes) -> Any:
    """Read one strict JSON value.

    Raises InvalidJson for everything that is not one, with a sentence fit to be shown to the sender.
    """
    try:
        value = _DECODER.decode(text.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidJson("The text is not valid UTF-8.") from None
    except RecursionError:
        raise InvalidJson(f"The text is nested more than {MAX_DEPTH} levels deep.") from None
    except json.JSONDecodeError as error:
        raise InvalidJson(f"The text is not JSON: {error.msg} at character {error.pos}.") from None
    _check(value)
    return value


def _check(value: Any) -> None:
    """Walk a decoded value without recursion, for depth and for characters that UTF-8 cannot carry."""
    level: list[Any] = [value]
    depth = 0
    while level:
        if depth > MAX_DEPTH:
            raise InvalidJson(f"The text is nested more than {MAX_DEPTH} levels deep.")
        below: list[Any] = []
        for one in level:
            if type(one) is str:
                _check_text(one)
            elif type(one) is dict:
                for key in one:
                    _check_text(key)
                below.extend(one.values())
            elif type(one) is list:
                below.extend(one)
        level, depth = below, depth + 1


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidJson("The text has a lone surrogate, which no UTF-8 text can carry.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise InvalidJson("An object names the same key twice.")
    return members


def _constant(name: str) -> Never:
    raise InvalidJson(f"{name} is not a JSON value.")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidJson("A number is too large for a double.")
    return value


def _integer(text: str) -> int:
    if len(text) - text.startswith("-") > MAX_DIGITS:
        raise InvalidJson(f"An integer has more than {MAX_DIGITS:,} digits.")
    return int(text)


_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant, parse_float=_float, parse_int=_integer)
