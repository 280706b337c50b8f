"""Who a request is: keys, canonical text, hash."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crewai_sidecar import jsontext
from crewai_sidecar.errors import KeyInvalid, KeyMissing
from crewai_sidecar.identity import canonical, idempotency_key, key_digest, request_hash


def text_of(body: str, *, key: str = "k", timeout_ms: int | None = None) -> bytes:
    """The canonical text of a request whose input was sent as `body`."""
    return canonical(
        action_id="act_1",
        crew_id="support",
        operation="run",
        input_object=jsontext.decode(body.encode()),
        timeout_ms=timeout_ms,
        key=key,
    )


def test_the_two_published_vectors_hash_as_published() -> None:
    """Canonical text and hash, to the letter."""
    first = canonical(
        action_id="act_1",
        crew_id="support",
        operation="run",
        input_object={"n": None, "b": 1.0, "a": "é€😀"},
        timeout_ms=None,
        key="k-1",
    )
    assert first == (
        rb'{"action_id":"act_1","crew_id":"support","idempotency_key":"k-1",'
        rb'"input":{"a":"\u00e9\u20ac\ud83d\ude00","b":1.0,"n":null},"operation":"run","timeout_ms":null}'
    )
    assert request_hash(first) == "ca3e0ddcafb0138dd5205e0457914bbcf2b4bc63e723b60fb18542b9f4265546"
    second = canonical(
        action_id="action-1",
        crew_id="support",
        operation="run",
        input_object={},
        timeout_ms=600_000,
        key="key-1",
    )
    assert request_hash(second) == "5d5b81070ade4d2d4d2109c20ed731185323ec67215dd6b1f4e6a843f6de7be0"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}'),
        ('{"a":1}', ' {\n"a" :\t1 } '),
        ('{"a":"é"}', '{"a":"\\u00e9"}'),
        ('{"a":1e0}', '{"a":1.0}'),
        ('{"a":"/"}', '{"a":"\\/"}'),
    ],
)
def test_spellings_of_the_same_request_have_one_hash(one: str, other: str) -> None:
    """Order, white space, escapes and the spelling of a double do not matter."""
    assert text_of(one) == text_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1}', '{"a":1.0}'),
        ('{"a":1}', '{"a":true}'),
        ('{"a":0}', '{"a":false}'),
        ('{"a":9007199254740993}', '{"a":9007199254740992}'),
        ('{"a":12345678901234567890}', '{"a":12345678901234567890.0}'),
        ('{"a":"\\u00e9"}', '{"a":"e\\u0301"}'),
        ('{"a":-0.0}', '{"a":0}'),
        ('{"a":null}', "{}"),
        ('{"a":[1,2]}', '{"a":[2,1]}'),
    ],
)
def test_different_requests_differ_in_their_hash(one: str, other: str) -> None:
    """Types, big integers, Unicode composition, absence and order of lists matter."""
    assert text_of(one) != text_of(other)


def test_an_absent_timeout_is_not_the_default_timeout() -> None:
    """Absent is null in the canonical text."""
    assert text_of("{}") != text_of("{}", timeout_ms=600_000)


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b"abc", "abc"),
        (b" \t abc\t ", "abc"),
        (b'"abc"', '"abc"'),
        ("é".encode(), "é"),
        (b"a b", "a b"),
        (b"x" * 512, "x" * 512),
        ("é".encode() * 256, "é" * 256),
        (b"\x7f", "\x7f"),
    ],
)
def test_a_key_is_its_utf_8_text_without_outer_blanks(raw: bytes, key: str) -> None:
    """Quotes belong to the key, and 512 bytes of UTF-8 fit as UTF-8, not as Latin-1."""
    assert idempotency_key([raw]) == key


@pytest.mark.parametrize("values", [[], [b""], [b"   "], [b"\t"], ["\u00a0".encode()]])
def test_a_missing_or_blank_key_is_asked_for(values: list[bytes]) -> None:
    """428, not 400: the request is well formed but must be made conditional on a key."""
    with pytest.raises(KeyMissing):
        idempotency_key(values)


@pytest.mark.parametrize(
    "values",
    [
        [b"\xb2"],
        [b"x" * 513],
        ("é" * 257,),
        [b"a\x01b"],
        [b"\x1f"],
        [b"a\nb"],
        [b"a", b"a"],
    ],
)
def test_a_key_that_breaks_a_rule_is_refused(values: list[Any]) -> None:
    """Not UTF-8, too long, control characters, or sent twice: never cut short, never a 500."""
    with pytest.raises(KeyInvalid):
        idempotency_key([v.encode() if isinstance(v, str) else v for v in values])


def test_a_key_digest_is_salted_with_the_journal() -> None:
    """The same key in two journals cannot be recognised as the same."""
    assert key_digest("00" * 16, "k") != key_digest("11" * 16, "k")
    assert key_digest("00" * 16, "k") == key_digest("00" * 16, "k")
    assert "k-1" not in key_digest("00" * 16, "k-1")


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"b":1}}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e400}',
        b'{"a":"\\ud800"}',
        b'{"\\udfff":1}',
        b'{"a":' + b"9" * 4301 + b"}",
        b'{"a":-' + b"9" * 4301 + b"}",
        b"[" * 100_000,
        b'{"a":' * 102 + b"1" + b"}" * 102,
        b'{"a":"\xff"}',
        b"",
        b"{",
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b"nul",
        b'{"a":01}',
        b'{"a":"\n"}',
    ],
    ids=lambda text: repr(text[:24]),
)
def test_what_is_not_strict_json_is_refused(text: bytes) -> None:
    """Every text that two parsers could read differently, and every one that could exhaust the stack."""
    with pytest.raises(jsontext.InvalidJson):
        jsontext.decode(text)


def test_the_largest_integer_and_the_deepest_nesting_that_are_allowed_pass() -> None:
    """The bounds themselves are inside."""
    assert jsontext.decode(b"9" * 4300) == int("9" * 4300)
    assert jsontext.decode(b"-" + b"9" * 4300) == -int("9" * 4300)
    assert jsontext.decode(b"[" * 100 + b"1" + b"]" * 100) is not None


def test_written_json_is_one_line_of_ascii() -> None:
    """U+0085, U+2028 and U+2029 would end a line for common readers."""
    text = jsontext.encode({"a": "\u0085\u2028\u2029\r\n😀"})
    assert text == rb'{"a":"\u0085\u2028\u2029\r\n\ud83d\ude00"}'
    assert json.loads(text) == {"a": "\u0085\u2028\u2029\r\n😀"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": object()}])
def test_what_json_has_no_form_for_is_not_written(value: object) -> None:
    """NaN is never put down as a token that other parsers refuse (W28)."""
    with pytest.raises((ValueError, TypeError)):
        jsontext.encode(value)
