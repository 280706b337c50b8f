"""Any value of Python becomes strict JSON, and it is said whether something was changed for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from crewai_sidecar import jsontext
from crewai_sidecar.child.plain import Plain, class_name, plain


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 2


@dataclass
class Point:
    x: int


class Base(BaseModel):
    pass


class Derived(Base):
    model_config = ConfigDict(extra="allow")
    n: float


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("not even a text")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        ("text \u2028", "text \u2028"),
        ((1, 2.5), [1, 2.5]),
        (Colour.RED, "red"),
        (Level.HIGH, 2),
        (Point(1), {"x": 1}),
        (Derived.model_validate({"n": 1, "more": "kept"}), {"n": 1.0, "more": "kept"}),
        ({"a": {"b": [Point(2)]}}, {"a": {"b": [{"x": 2}]}}),
    ],
)
def test_what_json_can_carry_is_carried(value: Any, expected: Any) -> None:
    """Models, dataclasses, tuples and enumerations have a form of their own, so nothing is marked."""
    assert plain(value) == (expected, False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        (-math.inf, None),
        ([1 << 100_000], [None]),
        ("half \ud83d", "half \ufffd"),
        (b"caf\xc3\xa9 \xff", "caf\u00e9 \ufffd"),
        ({1: "a"}, {"1": "a"}),
        ({1}, [1]),
        (1 + 2j, "(1+2j)"),
        (Broken(), "Broken"),
        ([Broken(), 1], ["Broken", 1]),
    ],
)
def test_what_json_cannot_carry_is_replaced_and_said(value: Any, expected: Any) -> None:
    """NaN, surrogates, bytes, foreign objects: something readable stands in their place."""
    assert plain(value) == (expected, True)


def test_a_pair_of_surrogates_is_the_character_that_it_spells() -> None:
    """Two halves that belong together are not lost."""
    assert plain("\ud83d\ude00") == ("\U0001f600", True)


def test_cycles_and_depth_end_in_null() -> None:
    """A value that holds itself, or is too deep to be read again, is cut and not followed."""
    circular: list[Any] = [1]
    circular.append(circular)
    assert plain(circular) == ([1, None], True)
    deep: Any = 0
    for _ in range(10_000):
        deep = [deep]
    clean, changed = plain(deep)
    assert changed
    assert jsontext.decode(jsontext.encode({"one": {"more": clean}}))


def test_a_value_of_too_many_parts_is_cut() -> None:
    """Lists that share lists grow beyond any memory when they are written; the walk is bounded."""
    doubled: list[Any] = []
    for _ in range(40):
        doubled = [doubled, doubled]
    walk = Plain(max_nodes=1000)
    assert len(jsontext.encode(walk.value(doubled))) < 10_000
    assert walk.changed


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.characters(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.sets(st.integers()),
        max_leaves=20,
    )
)
def test_every_value_can_be_written_and_read_again(value: Any) -> None:
    """What comes out is strict JSON, and plain already."""
    clean, _ = plain(value)
    assert jsontext.decode(jsontext.encode(clean)) == clean
    assert plain(clean) == (clean, False)


@given(st.text())
def test_a_class_has_a_short_name_of_plain_characters(name: str) -> None:
    """Whatever it was called by whoever made it."""
    made = class_name(type(name.replace("\0", "") or "_", (), {})())
    assert 1 <= len(made) <= 128
    assert jsontext.length(made) <= 256
    assert f"_{made}".isidentifier()
