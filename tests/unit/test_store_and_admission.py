"""Persist, then publish; look-up and reservation in one step: with a disk that answers when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from crewai_sidecar import codec, transitions
from crewai_sidecar.admission import Admission, Admitted, StartRequest
from crewai_sidecar.clock import SystemClock
from crewai_sidecar.errors import (
    JournalFull,
    JournalRefused,
    NotStored,
    QueueFull,
    RequestConflict,
    RetainedBound,
    SettingRefused,
)
from crewai_sidecar.frames import Crew
from crewai_sidecar.ledger import Entry
from crewai_sidecar.model import Cause, Ending, Operation, Record, Status, Tombstone
from crewai_sidecar.runner.scheduler import MAX_CANCELLED_BY_BYTES, MAX_REASON_BYTES
from crewai_sidecar.settings import Settings
from crewai_sidecar.store import Deliver, Store
from tests.doubles.manual_journal import ManualJournal

FULL = JournalFull("no space")

LEAST_ROOM = next(one.ge for one in Settings.model_fields["ending_room_bytes"].metadata if hasattr(one, "ge"))


def settings(**values: Any) -> Settings:
    return Settings(registry="a:b", max_retained_runs=10, **values)


class Queue:
    """Counts what admission asks of a scheduler."""

    def __init__(self) -> None:
        self.crews = {"c": Crew(crew_id="c")}
        self.draining = False
        self.reserved = 0
        self.scheduled: list[str] = []
        self.full = False

    def reserve(self, input_bytes: int) -> None:
        if self.full:
            raise QueueFull("full")
        self.reserved += 1

    def release(self, input_bytes: int) -> None:
        self.reserved -= 1

    def schedule(self, action_id: str, input_object: dict[str, Any], input_bytes: int) -> None:
        self.reserved -= 1
        self.scheduled.append(action_id)


class House:
    """A store on a manual journal, with an admission before it."""

    def __init__(self, **values: Any) -> None:
        deliver = Deliver(asyncio.get_running_loop())
        self.journal = ManualJournal(deliver)
        self.settings = settings(**values)
        self.store = Store(self.journal, deliver, self.settings, SystemClock())
        self.queue = Queue()
        self.admission = Admission(self.store, self.queue, self.settings, SystemClock())

    def start(self, action_id: str = "act_1", **fields: Any) -> asyncio.Task[Admitted]:
        values: dict[str, Any] = {"input": {}, "key": "k", "timeout_ms": None} | fields
        request = StartRequest(action_id=action_id, crew_id="c", operation="run", input_bytes=2, **values)
        return asyncio.create_task(self.admission.admit(request))

    async def admitted(self, action_id: str = "act_1") -> Entry:
        task = self.start(action_id)
        await turns()
        self.journal.settle()
        return (await task).entry


async def turns(count: int = 5) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


def in_a_house(**values: Any) -> Callable[[Callable[[House], Awaitable[None]]], Callable[[], None]]:
    """Run a test inside an event loop, with a house of its own."""

    def decorate(test: Callable[[House], Awaitable[None]]) -> Callable[[], None]:
        async def inside() -> None:
            await test(House(**values))

        def run() -> None:
            asyncio.run(inside())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


@in_a_house()
async def test_nothing_is_visible_before_it_is_durable(house: House) -> None:
    """Neither the record nor an event (W2)."""
    task = house.start()
    await turns()
    assert house.store.find("act_1") is None
    assert house.queue.scheduled == []
    house.journal.settle()
    entry = (await task).entry
    assert house.queue.scheduled == ["act_1"]
    commit = asyncio.create_task(house.store.commit(transitions.started(entry.record, at="t")))
    await turns()
    assert (entry.event_count, entry.record.started_at) == (0, None)
    house.journal.settle()
    await commit
    assert (entry.event_count, entry.record.started_at) == (1, "t")


@in_a_house()
async def test_identical_requests_while_the_first_is_written_are_one(house: House) -> None:
    """Fifty at once, a slow disk: one change, one run, the same record for all."""
    tasks = [house.start() for _ in range(50)]
    await turns()
    assert len(house.journal.waiting) == 1
    house.journal.settle()
    answers = await asyncio.gather(*tasks)
    assert [answer.new for answer in answers].count(True) == 1
    assert len({id(answer.entry) for answer in answers}) == 1
    assert house.queue.scheduled == ["act_1"]


@in_a_house()
async def test_a_first_write_that_fails_leaves_the_key_free(house: House) -> None:
    """Nobody is told of a success, nothing ran, and the next attempt is a first one."""
    tasks = [house.start() for _ in range(3)]
    await turns()
    house.journal.refuse(FULL)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [JournalFull] * 3
    assert house.store.find("act_1") is None
    assert (house.queue.reserved, house.queue.scheduled) == (0, [])
    assert (await house.admitted()).record.action_id == "act_1"
    assert house.queue.scheduled == ["act_1"]


@in_a_house()
async def test_another_request_of_the_same_id_while_the_first_is_written_is_a_conflict(house: House) -> None:
    """It waits for the same write, then it is told."""
    first, second = house.start(), house.start(input={"other": 1})
    await turns()
    house.journal.settle()
    assert (await first).new
    with pytest.raises(RequestConflict):
        await second


@in_a_house()
async def test_a_caller_that_goes_away_takes_nothing_along(house: House) -> None:
    """The admission and every commit go on without whoever awaited them (W1, W9)."""
    task = house.start()
    await turns()
    task.cancel()
    await turns()
    house.journal.settle()
    await turns()
    assert house.queue.scheduled == ["act_1"]
    entry = house.store.find("act_1")
    assert isinstance(entry, Entry)
    commit = asyncio.create_task(house.store.commit(transitions.started(entry.record, at="t")))
    await turns()
    commit.cancel()
    await turns()
    house.journal.settle()
    await turns()
    assert entry.event_count == 1


@in_a_house()
async def test_readers_wake_with_the_ending_and_its_event_together(house: House) -> None:
    """No reader ever sees a status without its terminal event (W10)."""
    entry = await house.admitted()
    waiting = asyncio.create_task(house.store.ending("act_1", 5))
    await turns()
    ending = Ending(status=Status.CANCELLED, provider_started=False)
    hold = asyncio.create_task(
        house.store.hold(transitions.ended(entry.record, entry.event_count, ending, at="t", effect_free=False))
    )
    await turns()
    assert not waiting.done()
    house.journal.settle()
    await hold
    seen = await waiting
    assert isinstance(seen, Entry)
    assert seen.record.status is Status.CANCELLED
    assert b'"event":"cancelled"' in house.store.events(seen, 0)[-1]


@in_a_house()
async def test_a_held_ending_is_tried_again_when_the_disk_takes_something(house: House) -> None:
    """It is never turned into another ending."""
    entry = await house.admitted()
    other = await house.admitted("act_2")
    ending = Ending(status=Status.COMPLETED, output=b"{}")
    hold = asyncio.create_task(house.store.hold(transitions.ended(entry.record, 0, ending, at="t", effect_free=False)))
    await turns()
    house.journal.refuse(FULL)
    await turns()
    assert not entry.record.ended
    assert house.store.refusal == "journal_full"
    commit = asyncio.create_task(house.store.commit(transitions.started(other.record, at="t")))
    await turns()
    house.journal.settle()
    await commit
    await turns()
    assert len(house.journal.waiting) == 1
    house.journal.settle()
    await hold
    assert entry.record.status is Status.COMPLETED
    assert house.store.refusal is None


@in_a_house(max_concurrency=2)
async def test_the_retained_bound_counts_what_is_on_its_way(house: House) -> None:
    """A burst cannot pass it."""
    tasks = [house.start(f"act_{number}") for number in range(12)]
    await turns()
    house.journal.settle()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(answer, RetainedBound) for answer in answers].count(True) == 2
    assert house.store.ledger.retained == 10
    assert house.store.refusal == "retained_bound"


@in_a_house()
async def test_a_queue_that_is_full_stores_nothing(house: House) -> None:
    """The disk is not even asked."""
    house.queue.full = True
    with pytest.raises(QueueFull):
        await house.start()
    assert house.journal.waiting == []


@in_a_house()
async def test_an_admission_keeps_room_for_its_ending_and_an_ending_may_use_it(house: House) -> None:
    """What the journal is asked for with each change."""
    entry = await house.admitted()
    ended = transitions.ended(entry.record, 0, Ending(status=Status.COMPLETED, output=b"{}"), at="t", effect_free=False)
    for update in (transitions.started(entry.record, at="t"), ended):
        commit = asyncio.create_task(house.store.commit(update))
        await turns()
        house.journal.settle()
        await commit
    assert [(change.room > 0, change.urgent) for change in house.journal.written] == [
        (True, False),
        (True, True),
        (False, True),
    ]


def line(**fields: Any) -> bytes:
    record = Record(crew_id="c", operation=Operation.RUN, request_hash="h", hash_version=1, **fields)
    events = [codec.encode_event("started", 0, {})] if record.started_at else []
    return b"".join(codec.encode_record(record, events))


@in_a_house()
async def test_a_restore_fences_what_was_running_and_leaves_the_rest(house: House) -> None:
    """By what is on disk alone: started or accepted only."""
    stone = Tombstone(action_id="act_4", request_hash="h", hash_version=1, status=Status.FAILED, archived_at="t")
    house.store.restore(
        [
            line(action_id="act_1", started_at="t", provider_started=True),
            line(action_id="act_2"),
            line(action_id="act_3", status=Status.COMPLETED, output=b'{"raw":"x"}'),
            b"".join(codec.encode_tombstone(stone)),
        ]
    )
    assert house.store.fenced == 2
    assert [change.key for change in house.journal.fence] == ["act_1", "act_2"]
    assert all(change.urgent and change.room == 0 for change in house.journal.fence)
    found = {entry.record.action_id: entry.record for entry in house.store}
    assert (found["act_1"].uncertain_outcome, found["act_1"].to_be_reconciled) == (True, True)
    assert (found["act_2"].uncertain_outcome, found["act_2"].to_be_reconciled) == (True, False)
    assert found["act_3"].uncertain_outcome is False
    assert house.store.find("act_4") == stone


@in_a_house()
async def test_a_fence_that_the_disk_did_not_take_is_published_and_written_later(house: House) -> None:
    """Reads must work while a disk is full, and the next start would say the same."""
    house.journal.start_refusal = FULL
    house.store.restore([line(action_id="act_1", started_at="t", provider_started=True)])
    house.store.resume()
    entry = house.store.find("act_1")
    assert isinstance(entry, Entry)
    before = (entry.record, list(entry.events))
    assert entry.record.uncertain_outcome
    assert house.store.refusal == "journal_full"
    await turns()
    (change,) = house.journal.waiting
    assert codec.decode_line(b"".join(change.line)) == before
    house.journal.settle()
    await turns()
    assert (entry.record, entry.events) == before
    assert house.store.refusal is None


@in_a_house()
async def test_a_record_whose_fence_is_not_written_yet_cannot_be_archived(house: House) -> None:
    """The fence would be written over the tombstone."""
    house.journal.start_refusal = FULL
    house.store.restore([line(action_id="act_1")])
    house.store.resume()
    entry = house.store.find("act_1")
    assert isinstance(entry, Entry)
    with pytest.raises(JournalFull):
        await house.store.commit(transitions.archived(entry.record, at="t"))
    await turns()
    house.journal.settle()
    await turns()
    archive = asyncio.create_task(house.store.commit(transitions.archived(entry.record, at="t")))
    await turns()
    house.journal.settle()
    await archive
    assert isinstance(house.store.find("act_1"), Tombstone)


@in_a_house(max_events_per_run=2, max_concurrency=1)
async def test_a_restore_counts_the_ending_that_it_is_about_to_write(house: House) -> None:
    """What one start writes, the next one accepts."""
    record = Record(action_id="act_1", crew_id="c", operation=Operation.RUN, request_hash="h", hash_version=1)
    events = [codec.encode_event("started", 0, {}), codec.encode_event("chunk", 1, {})]
    with pytest.raises(SettingRefused, match=r"AIP_CREWAI_MAX_EVENTS_PER_RUN.* 3 at least"):
        house.store.restore([b"".join(codec.encode_record(record, events))])


def test_the_longest_started_and_ending_fit_the_least_room_that_is_kept_for_them() -> None:
    """Everything that a caller can make long, at its bound: an ending on a full disk must not be held."""
    record = Record(
        action_id="\U0001f600" * 256,
        crew_id="c" * 256,
        operation=Operation.KNOWLEDGE_QUERY,
        request_hash="f" * 64,
        hash_version=1,
        key_digest="f" * 64,
        trace_id="f" * 32,
        span_id="f" * 16,
        timeout_ms=3_600_000,
        accepted_at="2026-01-01T00:00:00.000000Z",
    )
    admitted = sum(map(len, codec.encode_record(record, ())))
    start = transitions.started(record, at="2026-01-01T00:00:00.000000Z")
    assert isinstance(start.record, Record)
    longest = 0
    for cause in Cause:
        ending = Ending(
            status=Status.CANCELLED if cause in {Cause.CANCELLED, Cause.SHUTDOWN} else Status.FAILED,
            cause=cause,
            error_type="E" * 128,
            worker_stopped=False,
            finished_late=True,
            cancel_reason="r" * MAX_REASON_BYTES,
            cancelled_by="a" * MAX_CANCELLED_BY_BYTES,
        )
        end = transitions.ended(start.record, 1, ending, at="2026-01-01T00:00:00.000000Z", effect_free=False)
        assert isinstance(end.record, Record)
        line_length = sum(map(len, codec.encode_record(end.record, (*start.events, *end.events))))
        longest = max(longest, line_length - admitted)
        assert len(end.events[0]) <= 1024, "the least bound of an event"
    assert longest <= LEAST_ROOM


@in_a_house()
async def test_a_restore_refuses_what_is_no_record(house: House) -> None:
    """With the number of the line."""
    with pytest.raises(JournalRefused, match="record 2"):
        house.store.restore([line(action_id="act_1", status=Status.COMPLETED, output=b"{}"), b'{"action_id":"x"}'])


@in_a_house(max_concurrency=1)
async def test_a_restore_over_the_retained_bound_names_the_variable(house: House) -> None:
    """And its least value."""
    lines = [line(action_id=f"act_{n}", status=Status.COMPLETED, output=b"{}") for n in range(11)]
    with pytest.raises(SettingRefused, match=r"AIP_CREWAI_MAX_RETAINED_RUNS.*11"):
        house.store.restore(lines)


@in_a_house()
async def test_a_reader_that_gives_up_leaves_nothing(house: House) -> None:
    """A cursor and one future, gone with the wait."""
    await house.admitted()
    task: asyncio.Task[Any] = asyncio.create_task(_wait(house.store.watch.changed("act_1", 60)))
    await turns()
    assert house.store.watch.readers == 1
    task.cancel()
    await turns()
    assert house.store.watch.readers == 0
    assert await house.store.watch.changed("act_1", 0.01) is False
    assert house.store.watch.readers == 0


async def _wait(coming: Coroutine[Any, Any, bool]) -> bool:
    return await coming


def test_the_errors_of_the_disk_are_one_family() -> None:
    """Whoever holds an ending catches them all."""
    assert issubclass(JournalFull, NotStored)
    assert issubclass(RetainedBound, NotStored)
