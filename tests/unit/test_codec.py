"""Records and tombstones as lines of the journal."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crewai_sidecar import codec
from crewai_sidecar.model import Cause, Operation, Record, Status, Tombstone

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


@st.composite
def records(draw: st.DrawFn) -> tuple[Record, list[bytes]]:
    """Any record with any events."""
    count = draw(st.integers(0, 3))
    events = [codec.encode_event("chunk", n, {"content": draw(TEXT)}) for n in range(count)]
    record = Record(
        action_id=draw(TEXT),
        crew_id=draw(TEXT),
        operation=draw(st.sampled_from(Operation)),
        request_hash=draw(TEXT),
        hash_version=draw(st.integers(0, 9)),
        key_digest=draw(st.none() | TEXT),
        timeout_ms=draw(st.none() | st.integers(1, 3_600_000)),
        trace_id=draw(st.none() | TEXT),
        span_id=draw(st.none() | TEXT),
        accepted_at=draw(st.none() | TEXT),
        started_at=draw(st.none() | TEXT),
        status=draw(st.sampled_from([Status.RUNNING, Status.COMPLETED])),
        cause=draw(st.none() | st.sampled_from(Cause)),
        error_type=draw(st.none() | TEXT),
        provider_started=draw(st.booleans()),
        worker_stopped=draw(st.none() | st.booleans()),
        uncertain_outcome=draw(st.booleans()),
        finished_late=draw(st.booleans()),
        to_be_reconciled=draw(st.booleans()),
        cancel_reason=draw(st.none() | TEXT),
        cancelled_by=draw(st.none() | TEXT),
        task_ids=tuple(draw(st.lists(TEXT, max_size=2))),
        model_response_ids=tuple(draw(st.lists(TEXT, max_size=2))),
        tool_names=tuple(draw(st.lists(TEXT, max_size=2))),
        events_dropped=draw(st.integers(0, 5)),
        output_truncated=draw(st.booleans()),
        output_bytes=draw(st.none() | st.integers(0, 10**9)),
        decisions=tuple(draw(st.lists(st.fixed_dictionaries({"by": TEXT}), max_size=1))),
        output=draw(st.none() | st.just(b'{"raw":"x"}')),
        extra=dict.fromkeys(draw(st.sets(st.sampled_from(["new_field", "zz"]), max_size=2)), b'{"later":[1,2]}'),
    )
    return record, events


@given(records())
def test_a_record_is_read_back_as_it_was_written(pair: tuple[Record, list[bytes]]) -> None:
    """Every field, also those a later version has added, survives a rewrite."""
    record, events = pair
    line = b"".join(codec.encode_record(record, events))
    assert line.isascii()
    assert b"\n" not in line
    assert codec.decode_line(line) == (record, events)


def test_every_field_of_a_record_is_in_the_round_trip() -> None:
    """A field added to the record without a line in the strategy above would not be tested."""
    plain = Record(action_id="a", crew_id="c", operation=Operation.RUN, request_hash="h", hash_version=1)
    names = set(msgspec.structs.asdict(plain))
    assert len(names) == 31
    assert {"output", "extra", "decisions", "ended_at"} <= names


def test_a_tombstone_is_read_back_as_it_was_written() -> None:
    """What is left of an archived Action."""
    stone = Tombstone(
        action_id="a", request_hash="h", hash_version=1, status=Status.CANCELLED, archived_at="2026-01-01T00:00:00Z"
    )
    assert codec.decode_line(b"".join(codec.encode_tombstone(stone))) == stone


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        (b"{}", "action_id"),
        (b"[]", "object"),
        (b'{"action_id":"a"', "truncated"),
        (b'{"action_id":"a","crew_id":"c","operation":"sing","request_hash":"h","hash_version":1}', "sing"),
        (b'{"action_id":"a","crew_id":"c","operation":"run","request_hash":"h","hash_version":"1"}', "int"),
        (
            b'{"action_id":"a","crew_id":"c","operation":"run","request_hash":"h","hash_version":1,'
            b'"events":[{"event":"started","sequence":1,"data":{}}]}',
            "sequence",
        ),
        (
            b'{"action_id":"a","crew_id":"c","operation":"run","request_hash":"h","hash_version":1,'
            b'"events":[{"event":"sung","sequence":0,"data":{}}]}',
            "sung",
        ),
        (
            b'{"action_id":"a","crew_id":"c","operation":"run","request_hash":"h","hash_version":1,"status":"failed"}',
            "terminal",
        ),
        (b'{"tombstone":true,"action_id":"a"}', "request_hash"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_the_fact(line: bytes, fact: str) -> None:
    """A gap in the sequences is found at the start, not by a reader later (W7b)."""
    with pytest.raises(codec.InvalidLine, match=fact):
        codec.decode_line(line)
