"""From what a child says to what is stored."""

from __future__ import annotations

import json
from typing import Any

from crewai_sidecar.frames import Event
from crewai_sidecar.runner.batching import Batch, Pending


def pending(*, max_events: int = 1000, max_event_bytes: int = 262_144, most: int = 128) -> Pending:
    return Pending(max_events=max_events, max_event_bytes=max_event_bytes, most=most)


def chunk(content: str, **fields: Any) -> Event:
    return Event(name="chunk", data={"content": content, "task_id": "t", "agent_role": "r", **fields})


def stored(batch: Batch) -> list[dict[str, Any]]:
    return [json.loads(event) for event in batch.events]


def test_chunks_of_one_task_that_wait_for_the_same_commit_become_one_event() -> None:
    """Bursts cost little; the text is the same."""
    waiting = pending()
    for word in ("one ", "two ", "three"):
        waiting.add(chunk(word))
    events = stored(waiting.take(1))
    assert events == [
        {"event": "chunk", "sequence": 1, "data": {"content": "one two three", "task_id": "t", "agent_role": "r"}}
    ]


def test_chunks_of_different_agents_or_fields_stay_apart() -> None:
    """Only chunks that are equal in everything but their text are joined, and only with their neighbour."""
    waiting = pending()
    for event in (chunk("a"), chunk("b", agent_role="s"), chunk("c"), chunk("d", channel="tools"), chunk("e")):
        waiting.add(event)
    assert [event["data"]["content"] for event in stored(waiting.take(0))] == ["a", "b", "c", "d", "e"]


def test_joined_chunks_stay_within_their_bound_whatever_the_text() -> None:
    """4 KiB as encoded, and half of a small event bound: an escape takes up to twelve bytes a character."""
    waiting = pending(max_event_bytes=1024)
    for _ in range(200):
        waiting.add(chunk("😀"))
    batch = waiting.take(0)
    assert batch.dropped == 0
    assert all(len(event) <= 1024 for event in batch.events)
    assert "".join(event["data"]["content"] for event in stored(batch)) == "😀" * 200


def test_sequences_follow_the_events_that_the_record_has() -> None:
    """Contiguous from the given count."""
    waiting = pending()
    for name in ("task_started", "tool_started", "tool_finished"):
        waiting.add(Event(name=name, data={}))
    assert [event["sequence"] for event in stored(waiting.take(7))] == [7, 8, 9]


def test_the_last_slot_is_kept_for_the_ending_and_what_is_over_is_counted() -> None:
    """A run does not fail for the event bound."""
    waiting = pending(max_events=3)
    for number in range(5):
        waiting.add(Event(name="task_started", data={"n": number}))
    batch = waiting.take(1)
    assert [event["data"]["n"] for event in stored(batch)] == [0]
    assert batch.dropped == 4


def test_one_commit_takes_no_more_chunk_events_than_it_may() -> None:
    """AIP_CREWAI_STREAM_CHECKPOINT_EVENTS."""
    waiting = pending(most=2)
    for number in range(5):
        waiting.add(Event(name="task_started", data={"n": number}))
    assert [len(waiting.take(0).events) for _ in range(3)] == [2, 2, 1]
    assert not waiting


def test_a_child_cannot_say_the_services_own_words() -> None:
    """A forged ending is counted, not stored."""
    waiting = pending()
    for name in ("completed", "failed", "cancelled", "started", "sung"):
        waiting.add(Event(name=name, data={}))
    batch = waiting.take(0)
    assert batch.events == ()
    assert batch.dropped == 5


def test_an_event_over_its_bound_is_counted() -> None:
    """What was written must be read back under the same bound (W3)."""
    waiting = pending(max_event_bytes=1024)
    waiting.add(Event(name="task_started", data={"task_name": "x" * 2000}))
    batch = waiting.take(0)
    assert batch.events == ()
    assert batch.dropped == 1


def test_evidence_is_kept_also_of_events_that_are_dropped() -> None:
    """Ids and names are what reconciliation starts from."""
    waiting = pending(max_events=2)
    waiting.add(Event(name="task_started", data={"task_id": "t1"}))
    waiting.add(Event(name="tool_started", data={"tool_name": "pay"}))
    waiting.add(Event(name="model_called", data={"response_id": "r" * 300}))
    batch = waiting.take(1)
    assert batch.events == ()
    assert batch.evidence == [("task_ids", "t1"), ("tool_names", "pay"), ("model_response_ids", "r" * 256)]


def test_what_the_disk_did_not_take_is_counted_and_its_evidence_waits() -> None:
    """The run goes on; the ending says how much is missing."""
    waiting = pending()
    waiting.add(Event(name="tool_started", data={"tool_name": "pay"}))
    waiting.give_up(waiting.take(1))
    batch = waiting.take(1)
    assert batch.events == ()
    assert batch.dropped == 1
    assert batch.evidence == [("tool_names", "pay")]
