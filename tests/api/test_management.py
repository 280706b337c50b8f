"""How the service is: /health, /drain, and the management port's probes and metrics."""

from __future__ import annotations

import pytest

from crewai_sidecar import __version__
from crewai_sidecar.model import Cause, Status
from tests.api.service import Service, client_of, in_a_service


@in_a_service(allowed_operations=("train", "run"), training_dir="/t")
async def test_health_has_what_a_connector_checks_and_what_an_operator_asks(service: Service) -> None:
    """The fields that it goes by, and the state of admission beside them."""
    await service.begin()
    await service.begin("act_2")
    await service.scheduler.start("act_2")
    await service.begin("act_3")
    await service.scheduler.start("act_3")
    await service.scheduler.end("act_3", Status.FAILED, Cause.EXCEPTION)
    response = await service.get("/health")
    assert response.status_code == 200
    assert response.json() == {
        "status": "ready",
        "crews": ["crew", "other"],
        "operations": ["cancel", "events", "run", "status", "train"],
        "durable_journal": False,
        "active_runs": 1,
        "retained_runs": 3,
        "max_retained_runs": 100,
        "stream_checkpoint_events": 128,
        "training_directory": True,
        "admission": "open",
        "queued": 1,
        "journal_bytes": 0,
        "to_be_reconciled": 1,
        "worker": "ready",
        "version": __version__,
    }


@in_a_service(max_retained_runs=4)
async def test_health_says_why_admission_is_closed(service: Service) -> None:
    """By the code that a new Action would get; the service is ready all the same (W27)."""
    for number in range(4):
        await service.done(f"act_{number}")
    assert (await service.start("act_5")).json()["code"] == "retained_bound"
    assert service.number("admission_open") == 0
    health = (await service.get("/health")).json()
    assert (health["status"], health["admission"]) == ("ready", "retained_bound")
    await service.archive("act_0")
    assert (await service.get("/health")).json()["admission"] == "open"
    assert service.number("admission_open") == 1


@in_a_service()
async def test_drain_refuses_new_actions_and_returns_at_once(service: Service) -> None:
    """Health is 503 from then on, and its body is not a problem but the same as before."""
    await service.begin()
    response = await service.client.post("/drain")
    assert (response.status_code, response.json()) == (200, {"draining": True})
    health = await service.get("/health")
    assert (health.status_code, health.headers["content-type"]) == (503, "application/json")
    assert (health.json()["status"], health.json()["admission"]) == ("draining", "draining")
    assert (await service.start("act_2")).json()["code"] == "draining"
    assert (await service.get("/jobs/act_1")).status_code == 200


@pytest.mark.parametrize(("state", "code"), [("starting", 503), ("ready", 200), ("draining", 503)])
@in_a_service()
async def test_probes_need_no_token_and_liveness_never_changes(service: Service, state: str, code: int) -> None:
    """Nothing secret is said there."""
    service.state = state
    async with client_of(service.management) as client:
        assert (await client.get("/livez")).status_code == 200
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.text) == (code, f"{state}\n")
        assert (await client.get("/jobs")).status_code == 404
        assert (await client.get("/schema")).status_code == 404


@in_a_service()
async def test_metrics_are_what_prometheus_reads(service: Service) -> None:
    """Gauges follow the service."""
    await service.begin()
    await service.begin("act_2")
    await service.scheduler.start("act_2")
    async with client_of(service.management) as client:
        response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert "crewai_sidecar_active_runs 1.0\n" in response.text
    assert "crewai_sidecar_queued_actions 1.0\n" in response.text
    assert "crewai_sidecar_retained_records 2.0\n" in response.text
    assert "crewai_sidecar_running_records 2.0\n" in response.text
    assert "crewai_sidecar_admission_open 1.0\n" in response.text
    assert "act_2" not in response.text
