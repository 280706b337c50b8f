"""The list of metrics, which dashboards and alerts go by, and its bounds."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from crewai_sidecar.model import Cause, Operation, Record, Status
from crewai_sidecar.telemetry.metrics import Metrics
from crewai_sidecar.telemetry.names import METRICS, PREFIX

LIST = {
    "active_runs": ("gauge", ()),
    "admission_open": ("gauge", ()),
    "admissions_total": ("counter", ("operation", "outcome")),
    "children_total": ("counter", ("kind",)),
    "connections_refused_total": ("counter", ("listener",)),
    "event_readers": ("gauge", ()),
    "events_dropped_total": ("counter", ()),
    "http_answers_total": ("counter", ("route", "method", "code")),
    "journal_bytes": ("gauge", ()),
    "journal_changes_total": ("counter", ()),
    "journal_commit_seconds": ("histogram", ()),
    "journal_commits_total": ("counter", ()),
    "journal_failures_total": ("counter", ("kind",)),
    "journal_written_bytes_total": ("counter", ()),
    "open_reconciliations": ("gauge", ()),
    "queued_actions": ("gauge", ()),
    "reconciliations_opened_total": ("counter", ("cause",)),
    "records_fenced_total": ("counter", ()),
    "retained_records": ("gauge", ()),
    "run_seconds": ("histogram", ("operation",)),
    "running_records": ("gauge", ()),
    "runs_ended_total": ("counter", ("operation", "status", "cause")),
    "tombstones": ("gauge", ()),
}


def ended(**values: Any) -> Record:
    fields: dict[str, Any] = {
        "action_id": "a",
        "crew_id": "c",
        "operation": Operation.RUN,
        "request_hash": "h",
        "hash_version": 1,
        "status": Status.FAILED,
        "cause": Cause.TIMEOUT,
        "to_be_reconciled": True,
    }
    return Record(**(fields | values))


def lines(metrics: Metrics) -> list[str]:
    return [line.removeprefix(PREFIX) for line in metrics.text().decode().splitlines() if not line.startswith("#")]


def test_the_list_is_this() -> None:
    """Names, kinds and labels; a change breaks somebody's panel."""
    assert {metric.name: (metric.kind, tuple(metric.labels)) for metric in METRICS} == LIST


def test_what_is_exposed_is_what_is_declared() -> None:
    """With the help of each, and no series beside them."""
    text = Metrics().text().decode()
    exposed = dict(re.findall(rf"^# TYPE {PREFIX}(\S+) (\S+)$", text, re.MULTILINE))
    assert exposed == {name: kind for name, (kind, _) in LIST.items()}
    helps = dict(re.findall(rf"^# HELP {PREFIX}(\S+) (.+)$", text, re.MULTILINE))
    assert helps == {metric.name: metric.help for metric in METRICS}


def test_a_name_says_its_unit() -> None:
    """Counters end in total, seconds and bytes are in the name."""
    for metric in METRICS:
        assert metric.name.endswith("_total") is (metric.kind == "counter")
        assert metric.unit in metric.name
        assert bool(metric.buckets) is (metric.kind == "histogram")


def test_the_time_of_a_run_is_told_apart_up_to_an_hour() -> None:
    """The longest timeout there is."""
    (run_seconds,) = [metric for metric in METRICS if metric.name == "run_seconds"]
    assert run_seconds.buckets[-1] == 3600


def test_an_ending_is_counted_with_its_cause() -> None:
    """And what it leaves to be reconciled, and what was dropped."""
    metrics = Metrics()
    metrics.ended(ended(events_dropped=3), 90.0)
    metrics.ended(ended(status=Status.COMPLETED, cause=None, to_be_reconciled=False), 0.2)
    found = lines(metrics)
    assert 'runs_ended_total{cause="timeout",operation="run",status="failed"} 1.0' in found
    assert 'runs_ended_total{cause="",operation="run",status="completed"} 1.0' in found
    assert 'reconciliations_opened_total{cause="timeout"} 1.0' in found
    assert "events_dropped_total 3.0" in found
    assert 'run_seconds_bucket{le="60.0",operation="run"} 1.0' in found
    assert 'run_seconds_bucket{le="120.0",operation="run"} 2.0' in found


def test_a_restart_s_fence_is_counted() -> None:
    """And what of it is to be reconciled."""
    metrics = Metrics()
    metrics.fenced(3, 2)
    assert {"records_fenced_total 3.0", 'reconciliations_opened_total{cause="restart"} 2.0'} <= set(lines(metrics))


def test_the_journal_s_reports_are_counted_from_any_thread() -> None:
    """It reports on its own."""
    metrics = Metrics()

    def report() -> None:
        for _ in range(100):
            metrics.committed(0.002, 3, 10)
        metrics.failed("journal_full")

    threads = [threading.Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {
        "journal_commits_total 400.0",
        "journal_changes_total 1200.0",
        "journal_written_bytes_total 4000.0",
        "journal_commit_seconds_count 400.0",
        'journal_failures_total{kind="journal_full"} 4.0',
    } <= set(lines(metrics))


def test_a_label_value_that_is_on_no_list_is_other() -> None:
    """However many there are, they are one series."""
    metrics = Metrics()
    for number in range(100):
        metrics.admitted(f"operation-{number}", f"outcome-{number}")
        metrics.child(f"kind-{number}")
        metrics.failed(f"kind-{number}")
        metrics.answered("unmatched", f"METHOD-{number}", 404)
    found = [line for line in lines(metrics) if "other" in line]
    assert found == [
        'admissions_total{operation="other",outcome="other"} 100.0',
        'http_answers_total{code="404",method="other",route="unmatched"} 100.0',
        'children_total{kind="other"} 100.0',
        'journal_failures_total{kind="other"} 100.0',
    ]


def test_two_services_in_one_process_do_not_share_numbers() -> None:
    """Each has a registry of its own."""
    one, other = Metrics(), Metrics()
    one.event_dropped(5)
    assert "events_dropped_total 0.0" in lines(other)


def test_a_reader_is_counted_while_it_reads() -> None:
    """Also one that ends in an error."""
    metrics = Metrics()

    def read() -> None:
        with metrics.reading():
            assert "event_readers 1.0" in lines(metrics)
            raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        read()
    assert "event_readers 0.0" in lines(metrics)
