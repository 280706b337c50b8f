"""What the routes work with, and how a route gets at it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from litestar import Request

from crewai_sidecar.admission import Admission
from crewai_sidecar.clock import Clock
from crewai_sidecar.frames import Crew
from crewai_sidecar.settings import Settings
from crewai_sidecar.store import Store
from crewai_sidecar.telemetry.metrics import Metrics

__all__ = ["HEARTBEAT_SECONDS", "AnyRequest", "Parts", "Scheduler", "parts"]

HEARTBEAT_SECONDS = 15.0
"""Time after which a quiet stream gets a comment: below the read limits of proxies."""

AnyRequest: TypeAlias = Request[Any, Any, Any]


class Scheduler(Protocol):
    """What the routes ask of the runner."""

    draining: bool

    @property
    def crews(self) -> Mapping[str, Crew]:
        """The registry's crews by id."""

    @property
    def active(self) -> int:
        """Runs that have a slot."""

    @property
    def queued(self) -> int:
        """Admitted Actions that wait for one."""

    @property
    def worker(self) -> str:
        """`ready`, or `restarting` while there is no fork server."""

    def cancel(self, action_id: str, *, reason: str | None, cancelled_by: str | None) -> None:
        """Order a run to stop; the first order counts, none does after the ending."""

    def drain(self) -> None:
        """Refuse new Actions from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The service behind the contract port. Also the source of the gauges that say how it is."""

    store: Store
    admission: Admission
    scheduler: Scheduler
    settings: Settings
    metrics: Metrics
    clock: Clock
    closing: asyncio.Event
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    archiving: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    parsing: asyncio.Lock = field(default_factory=asyncio.Lock)  # large bodies, one at a time

    @property
    def admission_state(self) -> str:
        """`open`, or the code of the refusal that a new Action would get now."""
        return "draining" if self.scheduler.draining else self.store.refusal or "open"

    @property
    def active_runs(self) -> int:
        return self.scheduler.active

    @property
    def queued_actions(self) -> int:
        return self.scheduler.queued

    @property
    def running_records(self) -> int:
        return self.store.ledger.running

    @property
    def retained_records(self) -> int:
        return self.store.ledger.retained

    @property
    def tombstones(self) -> int:
        return self.store.ledger.tombstones

    @property
    def open_reconciliations(self) -> int:
        return self.store.ledger.to_be_reconciled

    @property
    def journal_bytes(self) -> int:
        return self.store.size

    @property
    def admission_open(self) -> bool:
        return self.admission_state == "open"


def parts(request: AnyRequest) -> Parts:
    """Get at the parts of the application that a request came to."""
    found: Parts = request.app.state.parts
    return found
