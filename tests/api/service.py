"""The contract's application on a journal in memory, with a scheduler that a test commands.

`in_a_service` speaks to it without a socket; `Service.listening` puts the same application behind a real listener, for
what only a connection can show.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from crewai_sidecar.admission import Admission
from crewai_sidecar.api.auth import read_token
from crewai_sidecar.app import create_contract_app, create_management_app
from crewai_sidecar.clock import SystemClock
from crewai_sidecar.journal import memory_journal
from crewai_sidecar.listeners import Limits, Listener, bind
from crewai_sidecar.settings import Settings
from crewai_sidecar.store import Deliver, Store
from crewai_sidecar.telemetry.metrics import Metrics
from tests.doubles.scheduler import ManualScheduler

TOKEN = "the-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Service:
    """One service; make it inside a loop."""

    def __init__(self, *, heartbeat_seconds: float = 15.0, store_on: Any = None, **values: Any) -> None:
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        settings: dict[str, Any] = {"registry": "a:b", "bearer_token": TOKEN, "max_retained_runs": 100} | values
        self.settings = Settings(**settings)
        deliver = Deliver(loop)
        self.journal = (store_on or (lambda settled: memory_journal(settled).journal))(deliver)
        self.store = Store(self.journal, deliver, self.settings, clock)
        self.store.restore([])
        self.scheduler = ManualScheduler(self.store)
        self.metrics = Metrics()
        self.closing = asyncio.Event()
        self.state = "ready"
        self.app: Any = create_contract_app(
            store=self.store,
            admission=Admission(self.store, self.scheduler, self.settings, clock),
            scheduler=self.scheduler,
            settings=self.settings,
            token=read_token(self.settings),
            metrics=self.metrics,
            closing=self.closing,
            heartbeat_seconds=heartbeat_seconds,
        )
        self.management: Any = create_management_app(self.metrics, lambda: self.state)
        self.client = client_of(self.app, BEARER)

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(path, **options)

    async def start(
        self, action_id: str = "act_1", value: Any = None, *, path: str = "/jobs", headers: Any = None, **fields: Any
    ) -> httpx.Response:
        """Send a start and wait for the answer."""
        body = {"crew_id": "crew", "action_id": action_id, **({} if value is None else {"input": value}), **fields}
        return await self.client.post(path, json=body, headers={"Idempotency-Key": "k", **(headers or {})})

    async def begin(self, action_id: str = "act_1", value: Any = None, **fields: Any) -> dict[str, Any]:
        """Admit an Action without waiting for it."""
        response = await self.start(action_id, value, headers={"Prefer": "respond-async"}, **fields)
        assert response.status_code == 202, response.text
        return dict(response.json())

    async def done(self, action_id: str = "act_1", output: Any = None, **fields: Any) -> None:
        """Admit an Action and complete it."""
        await self.begin(action_id, **fields)
        await self.scheduler.complete(action_id, output or {"raw": "done"})

    async def cancel(self, action_id: str = "act_1", crew_id: str = "crew", **options: Any) -> httpx.Response:
        path = options.pop("path", f"/jobs/{action_id}/cancel")
        headers = options.pop("headers", {})
        return await self.client.post(
            path, json={"crew_id": crew_id, "action_id": action_id, **options}, headers=headers
        )

    async def archive(self, action_id: str = "act_1") -> httpx.Response:
        return await self.client.delete(f"/jobs/{action_id}", headers={"X-AIP-Archive-Confirmation": action_id})

    def number(self, name: str, **labels: str) -> float:
        """The value of a metric."""
        inside = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
        wanted = f"crewai_sidecar_{name}{{{inside}}} " if labels else f"crewai_sidecar_{name} "
        for line in self.metrics.text().decode().splitlines():
            if line.startswith(wanted):
                return float(line.removeprefix(wanted))
        return 0.0

    @contextlib.asynccontextmanager
    async def listening(self, limits: Limits | None = None) -> AsyncIterator[tuple[httpx.AsyncClient, int]]:
        """A client of the application behind a real server on loopback, and its port."""
        listener = Listener(
            self.app,
            bind("127.0.0.1", 0, "PORT"),
            "contract",
            limits or Limits(connections=1000),
            functools.partial(self.metrics.connection_refused, "contract"),
        )
        await listener.up()
        try:
            async with httpx.AsyncClient(base_url=listener.url, headers=BEARER, timeout=10) as client:
                yield client, int(listener.url.rpartition(":")[2])
        finally:
            await listener.close()


def client_of(app: Any, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    """A client that calls an application without a socket."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x", headers=headers)


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Let the loop go on until something is true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # what is awaited has no event
            await asyncio.sleep(0.001)


def in_a_service(**values: Any) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run a test inside an event loop, with a service of its own as its first argument."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        async def inside(arguments: dict[str, Any]) -> None:
            service = Service(**values)
            async with service.client:
                await test(service, **arguments)
            service.journal.close()

        @functools.wraps(test)
        def run(**arguments: Any) -> None:
            asyncio.run(inside(arguments))

        signature = inspect.signature(test)
        run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]  # what pytest reads
        del run.__wrapped__  # pytest would look through it
        return run

    return decorate
