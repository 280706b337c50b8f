"""The two applications, put together: the contract's and the management's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from litestar import Litestar
from litestar.types import ASGIApp

from crewai_sidecar.admission import Admission
from crewai_sidecar.api.auth import Token
from crewai_sidecar.api.door import Door, refuse
from crewai_sidecar.api.management import management_routes
from crewai_sidecar.api.parts import HEARTBEAT_SECONDS, Parts, Scheduler
from crewai_sidecar.api.routes import contract_routes
from crewai_sidecar.clock import Clock, SystemClock
from crewai_sidecar.settings import Settings
from crewai_sidecar.store import Store
from crewai_sidecar.telemetry.metrics import Metrics

__all__ = ["create_contract_app", "create_management_app"]


def create_contract_app(
    *,
    store: Store,
    admission: Admission,
    scheduler: Scheduler,
    settings: Settings,
    token: Token,
    metrics: Metrics,
    closing: asyncio.Event,
    clock: Clock | None = None,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> ASGIApp:
    """Make the application of the contract port.

    `closing` ends the streams whose record has no ending that could still be awaited.
    """
    service = Parts(
        store=store,
        admission=admission,
        scheduler=scheduler,
        settings=settings,
        metrics=metrics,
        clock=clock or SystemClock(),
        closing=closing,
        heartbeat_seconds=heartbeat_seconds,
    )
    metrics.watch(service)
    app = Litestar(
        route_handlers=contract_routes(),
        exception_handlers={Exception: refuse},
        openapi_config=None,
        logging_config=None,
        request_max_body_size=None,  # bodies are read and bounded by api/wire.py
    )
    app.state.parts = service
    return Door(app, token, metrics)


def create_management_app(metrics: Metrics, state: Callable[[], str]) -> ASGIApp:
    """Make the application of the management port; `state` is starting, ready or draining."""
    return Litestar(route_handlers=management_routes(metrics, state), openapi_config=None, logging_config=None)
