"""The parser of event streams, against the standard's rules and against every way of cutting a stream into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crewai_sidecar.connector import sse
from crewai_sidecar.connector.sse import FrameTooLarge, Message, Parser


def parse(stream: bytes) -> list[Message]:
    return Parser().feed(stream)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(b"data: a\n\n", [Message("message", "a", None)], id="a frame without a name is a message"),
        pytest.param(b"event: x\ndata: a\ndata: b\n\n", [Message("x", "a\nb", None)], id="data lines are joined"),
        pytest.param(
            b"data: a\r\n\r\ndata: b\r\r",
            [Message("message", "a", None), Message("message", "b", None)],
            id="every line end counts",
        ),
        pytest.param(b": ping\n\ndata: a\n\n", [Message("message", "a", None)], id="comments are passed over"),
        pytest.param(b"event: x\n\ndata: a\n\n", [Message("message", "a", None)], id="a frame without data is dropped"),
        pytest.param(
            b"data:a\n\ndata:  b\n\n",
            [Message("message", "a", None), Message("message", " b", None)],
            id="one space after the colon is not data",
        ),
        pytest.param(b"data\n\n", [Message("message", "", None)], id="a name alone has an empty value"),
        pytest.param(
            b"id: 7\ndata: a\n\ndata: b\n\n",
            [Message("message", "a", "7"), Message("message", "b", "7")],
            id="an id stays until the next",
        ),
        pytest.param(b"id: 7\nid: a\x00b\ndata: a\n\n", [Message("message", "a", "7")], id="an id with NUL is ignored"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [Message("message", "a", None)], id="a byte order mark is no data"),
        pytest.param(
            b"retry: 5\nother: y\ndata: a\n\n", [Message("message", "a", None)], id="unknown fields are ignored"
        ),
        pytest.param(b"data: a\n", [], id="a frame that does not end is not given out"),
        pytest.param(
            "data: \u2028\x85\x0b\n\n".encode(),
            [Message("message", "\u2028\x85\x0b", None)],
            id="only CR and LF end a line",
        ),
    ],
)
def test_a_stream_is_read_as_the_standard_says(stream: bytes, expected: list[Message]) -> None:
    """Each rule of the standard that a sidecar's stream can meet."""
    assert parse(stream) == expected


TEXT = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=20)
LINE_END = st.sampled_from([b"\n", b"\r\n", b"\r"])


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, str]]]:
    """Write frames with any mixture of line ends, and say what they hold."""
    stream, expected = b"", []
    for name, lines in draw(st.lists(st.tuples(TEXT, st.lists(TEXT, min_size=1, max_size=3)), max_size=5)):
        for line in [f"event: {name}", *(f"data: {line}" for line in lines), ": a comment", ""]:
            end = draw(LINE_END)
            if not line and stream.endswith(b"\r") and end == b"\n":
                end = b"\r\n"  # a lone line feed would only complete the line end before it
            stream += line.encode() + end
        expected.append((name or "message", "\n".join(lines)))
    return stream, expected


@given(frames(), st.data())
def test_frames_are_the_same_however_the_stream_is_cut(
    written: tuple[bytes, list[tuple[str, str]]], data: st.DataObject
) -> None:
    """The pieces in which a network delivers a stream change nothing: not within a CRLF, not within a character."""
    stream, expected = written
    if stream.endswith(b"\r"):
        stream += b"\n"
    parser, found, rest = Parser(), [], stream
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        found += parser.feed(rest[:size])
        rest = rest[size:]
    assert [(message.event, message.data) for message in found] == expected


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_are_frames_or_a_clear_refusal(pieces: list[bytes]) -> None:
    """Nothing but UnicodeDecodeError comes out of bytes that are no stream."""
    parser = Parser()
    for piece in pieces:
        try:
            messages = parser.feed(piece)
        except UnicodeDecodeError:
            return
        assert all(isinstance(message, Message) for message in messages)


@pytest.mark.parametrize("line_end", [b"", b"\n"], ids=["one line", "many lines"])
def test_a_frame_without_an_end_is_refused(line_end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that never ends a frame cannot fill the client's memory."""
    monkeypatch.setattr(sse, "MAX_FRAME_BYTES", 1000)
    parser = Parser()
    for _ in range(9):
        assert parser.feed(b"data: " + b"x" * 100 + line_end) == []
    with pytest.raises(FrameTooLarge):
        parser.feed(b"data: " + b"x" * 100 + line_end)
