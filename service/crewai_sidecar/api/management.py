"""How the service is: /health and /drain on the contract port, probes and metrics on the management port.

Liveness never depends on the disk, readiness means that records can be read: a restart would turn every running Action
into an uncertain one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from crewai_sidecar import __version__
from crewai_sidecar.api.actions import answer
from crewai_sidecar.api.parts import AnyRequest, parts
from crewai_sidecar.model import CONTROL_OPERATIONS
from crewai_sidecar.telemetry.metrics import Metrics

__all__ = ["Drained", "Health", "drain", "health", "management_routes"]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What a connector checks before it uses the service, and what an operator asks next.

    `admission` is `open`, or the code of the refusal that a new Action would get.
    """

    status: Literal["ready", "draining"]
    crews: list[str]
    operations: list[str]
    durable_journal: bool
    active_runs: int
    retained_runs: int
    max_retained_runs: int
    stream_checkpoint_events: int
    training_directory: bool
    admission: str
    queued: int
    journal_bytes: int
    to_be_reconciled: int
    worker: str
    version: str


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """The service takes no new Action from now on."""

    draining: bool = True


async def health(request: AnyRequest) -> ASGIResponse:
    """Say how the service is. While it drains the status is 503, and the body is the same."""
    service = parts(request)
    draining = service.scheduler.draining
    body = Health(
        status="draining" if draining else "ready",
        crews=sorted(service.scheduler.crews),
        operations=sorted({*service.settings.allowed_operations, *CONTROL_OPERATIONS}),
        durable_journal=service.store.durable,
        active_runs=service.scheduler.active,
        retained_runs=service.store.ledger.retained,
        max_retained_runs=service.settings.max_retained_runs,
        stream_checkpoint_events=service.settings.stream_checkpoint_events,
        training_directory=service.settings.training_dir is not None,
        admission=service.admission_state,
        queued=service.scheduler.queued,
        journal_bytes=service.store.size,
        to_be_reconciled=service.store.ledger.to_be_reconciled,
        worker=service.scheduler.worker,
        version=__version__,
    )
    return answer(body, 503 if draining else 200)


async def drain(request: AnyRequest) -> ASGIResponse:
    """Take no new Action from now on, and return at once. What runs goes on."""
    parts(request).scheduler.drain()
    return answer(Drained())


def management_routes(metrics: Metrics, state: Callable[[], str]) -> list[HTTPRouteHandler]:
    """Make the routes of the management port; `state` is starting, ready or draining."""

    @get("/livez")
    async def livez() -> ASGIResponse:
        return ASGIResponse(body=b"alive\n", media_type="text/plain")

    @get("/readyz")
    async def readyz() -> ASGIResponse:
        now = state()
        return ASGIResponse(
            body=now.encode("ascii") + b"\n", media_type="text/plain", status_code=200 if now == "ready" else 503
        )

    @get("/metrics")
    async def expose() -> ASGIResponse:
        return ASGIResponse(body=metrics.text(), headers={"content-type": metrics.content_type})

    return [livez, readyz, expose]
