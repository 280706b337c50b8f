"""The table of endings, row by row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crewai_sidecar import transitions
from crewai_sidecar.events import MAX_COMPLETED_BYTES, completed_event
from crewai_sidecar.model import Cause, Ending, Operation, Record, Status

RECORD = Record(action_id="act_1", crew_id="c", operation=Operation.RUN, request_hash="h", hash_version=1)

ROWS = [
    # status, cause, provider_started, error_type -> uncertain_outcome, to be reconciled
    (Status.COMPLETED, None, True, None, False, False),
    (Status.FAILED, Cause.EXCEPTION, True, "ValueError", False, True),
    (Status.FAILED, Cause.EXCEPTION, False, "ImportError", False, False),
    (Status.FAILED, Cause.TIMEOUT, True, "TimeoutError", False, True),
    (Status.CANCELLED, Cause.CANCELLED, False, None, False, False),
    (Status.CANCELLED, Cause.CANCELLED, True, None, False, True),
    (Status.FAILED, Cause.WORKER_LOST, True, "WorkerLost", False, True),
    (Status.FAILED, Cause.WORKER_LOST, False, "WorkerLost", False, False),
    (Status.CANCELLED, Cause.SHUTDOWN, True, None, False, True),
    (Status.CANCELLED, Cause.SHUTDOWN, False, None, False, False),
    (Status.FAILED, Cause.RESTART, True, None, True, True),
    (Status.FAILED, Cause.RESTART, False, None, True, False),
]


def close(ending: Ending, *, effect_free: bool = False) -> tuple[Record, dict[str, Any] | None]:
    """The record afterwards, and its stored terminal event."""
    update = transitions.ended(RECORD, 3, ending, at="2026-01-01T00:00:00.000000Z", effect_free=effect_free)
    assert isinstance(update.record, Record)
    assert update.urgent
    return update.record, json.loads(update.events[0]) if update.events else None


@pytest.mark.parametrize(("status", "cause", "started", "error_type", "uncertain", "reconcile"), ROWS)
def test_an_ending_says_what_its_row_says(
    status: Status, cause: Cause | None, started: bool, error_type: str | None, uncertain: bool, reconcile: bool
) -> None:
    """Record and terminal event agree, and only a restart makes an outcome uncertain."""
    output = b"{}" if status is Status.COMPLETED else None
    ending = Ending(status=status, cause=cause, provider_started=started, error_type=error_type, output=output)
    record, event = close(ending)
    assert (record.status, record.cause, record.provider_started) == (status, cause, started)
    assert (record.uncertain_outcome, record.to_be_reconciled) == (uncertain, reconcile)
    if event is None:
        assert status is Status.COMPLETED
        return
    assert event["event"] == status
    assert event["sequence"] == 3
    assert event["data"].get("uncertain_outcome", False) is uncertain
    assert event["data"]["provider_started"] is started
    assert event["data"].get("error_type") == error_type
    assert event["data"]["message"].endswith(".")


def test_every_cause_has_a_row() -> None:
    """A cause added to the model needs its row here."""
    assert {row[1] for row in ROWS} == {None, *Cause}


def test_work_without_effects_is_never_to_be_reconciled() -> None:
    """knowledge_query, and the crews that the operator names."""
    ending = Ending(status=Status.FAILED, cause=Cause.TIMEOUT, error_type="TimeoutError")
    record, event = close(ending, effect_free=True)
    assert record.to_be_reconciled is False
    assert event is not None
    assert event["data"]["to_be_reconciled"] is False


def test_a_result_that_came_after_the_order_is_said() -> None:
    """It is not kept, but that it came matters to whoever reconciles."""
    record, event = close(Ending(status=Status.CANCELLED, cause=Cause.CANCELLED, finished_late=True))
    assert record.finished_late
    assert event is not None
    assert event["data"]["finished_late"] is True


def test_the_terminal_event_of_a_completed_record_is_composed_of_its_output() -> None:
    """The output is stored once."""
    assert json.loads(completed_event(b'{"raw":"x"}', 4)) == {"event": "completed", "sequence": 4, "data": {"raw": "x"}}


@pytest.mark.parametrize("raw", ["x" * 2_000_000, "é" * 400_000, "😀" * 200_000, '"' * 900_000])
def test_a_long_raw_is_cut_so_that_the_event_fits_its_frame(raw: str) -> None:
    """And the event says so; the record has it whole."""
    output = json.dumps({"raw": raw, "token_usage": {"total_tokens": 1}, "tasks_output": []}).encode()
    event = completed_event(output, 9)
    assert MAX_COMPLETED_BYTES - 12 <= len(event) <= MAX_COMPLETED_BYTES
    data = json.loads(event)["data"]
    assert data["output_truncated"] is True
    assert data["output_bytes"] == len(output)
    assert data["token_usage"] == {"total_tokens": 1}
    assert raw.startswith(data["raw"])


def test_an_output_whose_other_parts_are_too_long_keeps_what_the_contract_needs() -> None:
    """raw, token_usage and tasks_output keep their types for the connector's output schema."""
    output = json.dumps({"raw": "kept", "token_usage": {"n": 1}, "tasks_output": ["y" * 2_000_000]}).encode()
    data = json.loads(completed_event(output, 1))["data"]
    assert data["raw"] == "kept"
    assert data["token_usage"] == {"n": 1}
    assert data["tasks_output"] == []
    assert data["output_truncated"] is True
