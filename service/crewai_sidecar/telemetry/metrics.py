"""The metrics of one service process, and the few words in which its parts report.

`Metrics` needs nothing to be made, so it exists before there is a journal to observe. Gauges are read when somebody
asks; `watch` says where from. Counters are safe from any thread: the journal reports on its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from crewai_sidecar.model import Record
from crewai_sidecar.telemetry.names import METRICS, OTHER, PREFIX, Declared

__all__ = ["Metrics", "Source"]

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, with a time in it that no panel uses


class Source(Protocol):
    """Where gauges are read from; each attribute has the name of its gauge."""

    @property
    def active_runs(self) -> int: ...
    @property
    def queued_actions(self) -> int: ...
    @property
    def running_records(self) -> int: ...
    @property
    def retained_records(self) -> int: ...
    @property
    def tombstones(self) -> int: ...
    @property
    def open_reconciliations(self) -> int: ...
    @property
    def journal_bytes(self) -> int: ...
    @property
    def admission_open(self) -> bool: ...


class Metrics:
    """Counts what happens. Implements the journal's observer."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._source: Source | None = None
        self._declared = {metric.name: metric for metric in METRICS}
        self._counters = {metric.name: self._counter(metric) for metric in METRICS if metric.kind == "counter"}
        self._gauges = {metric.name: self._gauge(metric) for metric in METRICS if metric.kind == "gauge"}
        self._histograms = {metric.name: self._histogram(metric) for metric in METRICS if metric.kind == "histogram"}

    def _counter(self, metric: Declared) -> Counter:
        return Counter(PREFIX + metric.name, metric.help, tuple(metric.labels), registry=self._registry)

    def _histogram(self, metric: Declared) -> Histogram:
        return Histogram(
            PREFIX + metric.name, metric.help, tuple(metric.labels), registry=self._registry, buckets=metric.buckets
        )

    def _gauge(self, metric: Declared) -> Gauge:
        gauge = Gauge(PREFIX + metric.name, metric.help, registry=self._registry)
        if metric.name != "event_readers":  # which is counted here
            gauge.set_function(lambda: float(getattr(self._source, metric.name, 0)))
        return gauge

    def watch(self, source: Source) -> None:
        """Read the gauges from here from now on."""
        self._source = source

    def text(self) -> bytes:
        """Write all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    # -- what the parts report ------------------------------------------------------------------------------------

    def admitted(self, operation: str, outcome: str) -> None:
        """A start request was looked up; `outcome` is new, repeat, or the code of the refusal."""
        self._count("admissions_total", operation=operation, outcome=outcome)

    def answered(self, route: str, method: str, code: int) -> None:
        """The contract port gave an answer."""
        self._count("http_answers_total", route=route, method=method, code=str(code))

    def connection_refused(self, listener: str) -> None:
        """A connection was closed at once; `listener` is contract or management."""
        self._count("connections_refused_total", listener=listener)

    def ended(self, record: Record, seconds: float) -> None:
        """An Action ended, after `seconds` in a slot."""
        cause = record.cause or ""
        self._count("runs_ended_total", operation=record.operation, status=record.status, cause=cause)
        operation = self._bounded("run_seconds", "operation", record.operation)
        self._histograms["run_seconds"].labels(operation=operation).observe(seconds)
        if record.to_be_reconciled:
            self._count("reconciliations_opened_total", cause=cause)
        if record.events_dropped:
            self.event_dropped(record.events_dropped)

    def fenced(self, count: int, to_be_reconciled: int = 0) -> None:
        """The start ended `count` records that it found running, so many of them to be reconciled."""
        self._count("records_fenced_total", by=count)
        if to_be_reconciled:
            self._count("reconciliations_opened_total", by=to_be_reconciled, cause="restart")

    def event_dropped(self, count: int) -> None:
        """Events of a run were counted and not stored. `ended` does this for what its record says."""
        self._count("events_dropped_total", by=count)

    def child(self, kind: str) -> None:
        """Something happened to a run's process: forked, exited, killed, lost, refused."""
        self._count("children_total", kind=kind)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Count an open stream of events for as long as it is open."""
        with self._gauges["event_readers"].track_inprogress():
            yield

    # -- the journal's observer -----------------------------------------------------------------------------------

    def committed(self, seconds: float, changes: int, bytes_: int) -> None:
        """A commit became durable."""
        self._count("journal_commits_total")
        self._count("journal_changes_total", by=changes)
        self._count("journal_written_bytes_total", by=bytes_)
        self._histograms["journal_commit_seconds"].observe(seconds)

    def failed(self, kind: str) -> None:
        """The disk did not take a commit."""
        self._count("journal_failures_total", kind=kind)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _count(self, name: str, by: float = 1, **labels: str) -> None:
        counter = self._counters[name]
        if labels:
            counter = counter.labels(**{label: self._bounded(name, label, value) for label, value in labels.items()})
        counter.inc(by)

    def _bounded(self, name: str, label: str, value: str) -> str:
        values = self._declared[name].labels[label]
        return str(value) if values is None or value in values else OTHER
