"""Events are bounded before they leave the child, and none follows the result."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crewai_sidecar import frames, jsontext
from crewai_sidecar.child.channel import Channel, bounded

SIMPLE = st.text(max_size=3000) | st.integers() | st.booleans() | st.none()


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """Give a channel and the service's end of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(theirs, 1024), ours


@given(st.text(max_size=5000), st.dictionaries(st.text(max_size=20), SIMPLE, max_size=5))
def test_a_chunk_s_parts_are_within_the_bound_and_carry_its_whole_text(text: str, rest: dict[str, Any]) -> None:
    """However long the text and the fields beside it are."""
    parts = list(bounded("chunk", {**rest, "content": text}, 900))
    assert "".join(part["content"] for part in parts) == text
    assert all(len(jsontext.encode(part)) <= 900 for part in parts)


@given(st.dictionaries(st.text(max_size=2000), SIMPLE | st.lists(SIMPLE), max_size=30))
def test_any_other_event_is_one_event_within_the_bound(data: dict[str, Any]) -> None:
    """Its largest fields are cut for it, and that is said."""
    (only,) = bounded("model_called", data, 900)
    assert len(jsontext.encode(only)) <= 900
    assert only == data or only == {} or only["sanitized"] is True


def test_events_after_the_close_are_counted_and_not_sent(ends: tuple[Channel, socket.socket]) -> None:
    """The result is the last frame of a child."""
    channel, ours = ends
    channel.emit("chunk", {"content": "before"})
    channel.close()
    channel.emit("chunk", {"content": "after"})
    channel.send(frames.Result(output={}, events_dropped=channel.dropped))
    reader = frames.FrameReader()
    messages = [frames.decode(text, frames.FromChild) for text in reader.feed(ours.recv(65536))]
    assert messages == [
        frames.Event(name="chunk", data={"content": "before"}),
        frames.Result(output={}, events_dropped=1),
    ]


def test_an_event_for_a_service_that_has_gone_is_no_error(ends: tuple[Channel, socket.socket]) -> None:
    """The crew goes on undisturbed until the child notices."""
    channel, ours = ends
    ours.close()
    channel.emit("chunk", {"content": "x"})
    assert channel.dropped == 1
