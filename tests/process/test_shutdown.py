"""SIGTERM: who is let in, what is written, how it ends."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import EventSource

from tests.process.sidecar import TOKEN, Sidecar, alive, family, until


def test_running_actions_end_in_the_drain_time_and_new_ones_are_refused(make_sidecar: Callable[..., Sidecar]) -> None:
    """Readiness is gone at once, liveness is not, reads and repeats go on to the end."""
    sidecar = make_sidecar(drain_seconds="20").start()
    assert sidecar.submit("crew", {"mark": "before"}, action_id="act_before").status_code == 200
    action = sidecar.begin("crew", {"mark": "running", "seconds": 2})
    sidecar.wait_for_effect("running")
    assert sidecar.process is not None
    sidecar.process.send_signal(signal.SIGTERM)
    until(lambda: httpx.get(sidecar.management_url + "/readyz").status_code == 503, 5, "not ready")
    assert httpx.get(sidecar.management_url + "/livez").status_code == 200
    refused = sidecar.submit("crew", {"mark": "new"}, action_id="act_new")
    assert (refused.status_code, refused.json()["code"]) == (503, "draining")
    assert sidecar.request("GET", "/health").status_code == 503
    assert sidecar.submit("crew", {"mark": "before"}, action_id="act_before").status_code == 200
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(15) == 0
    sidecar.start()
    assert sidecar.record(action)["status"] == "completed"
    assert sidecar.request("GET", "/jobs/act_new").status_code == 404
    assert sidecar.happened("new") == 0


def test_what_still_runs_after_the_drain_time_is_cancelled_and_its_readers_see_it(
    make_sidecar: Callable[..., Sidecar],
) -> None:
    """shutdown, to be reconciled if started; open streams get the ending; exit code 0; nothing is left."""
    sidecar = make_sidecar(max_concurrency="1", drain_seconds="0.3").start()
    running = sidecar.begin("stubborn", {"mark": "stuck"})
    sidecar.wait_for_effect("stuck")
    queued = sidecar.begin("crew", {"mark": "queued"})
    seen: list[dict[str, Any]] = []

    def follow() -> None:
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/event-stream"}
        with httpx.stream("GET", f"{sidecar.url}/jobs/{running}/events", headers=headers, timeout=30) as response:
            seen.extend(json.loads(event.data) for event in EventSource(response).iter_sse())

    reader = threading.Thread(target=follow)
    reader.start()
    everything = family(sidecar.pid)
    begin = time.monotonic()
    assert sidecar.stop() == 0
    assert time.monotonic() - begin < 10
    reader.join(5)
    assert seen[-1]["event"] == "cancelled"
    assert seen[-1]["data"]["cause"] == "shutdown"
    assert not alive(everything)
    sidecar.start()
    record = sidecar.record(running)
    assert (record["status"], record["cause"], record["provider_started"]) == ("cancelled", "shutdown", True)
    assert record["to_be_reconciled"] is True
    record = sidecar.record(queued)
    assert (record["status"], record["cause"], record["provider_started"]) == ("cancelled", "shutdown", False)
    assert record["to_be_reconciled"] is False
    assert sidecar.happened("queued") == 0


def test_drain_refuses_new_actions_and_returns_at_once(sidecar: Sidecar) -> None:
    """For a preStop hook: SIGTERM comes later."""
    action = sidecar.begin("crew", {"mark": "running", "seconds": 1})
    sidecar.wait_for_effect("running")
    assert sidecar.request("POST", "/drain").json() == {"draining": True}
    assert httpx.get(sidecar.management_url + "/readyz").status_code == 503
    assert sidecar.request("GET", "/health").status_code == 503
    assert sidecar.submit("crew").status_code == 503
    assert sidecar.ended(action)["status"] == "completed"


def test_sigterm_while_it_starts_ends_it(make_sidecar: Callable[..., Sidecar], tmp_path: Path) -> None:
    """As PID 1 a signal without a handler would be ignored: the handler is there first."""
    sidecar = make_sidecar(registry="slow_registry:crews")
    sidecar.process = sidecar._spawn()
    until(sidecar.state_file.exists, 20, "the journal")
    everything = family(sidecar.pid)
    assert sidecar.stop(15) == 0
    assert not alive(everything)


def test_what_waits_for_a_slot_still_gets_one_in_the_drain_time(make_sidecar: Callable[..., Sidecar]) -> None:
    """Everything that was admitted runs to its end while there is time."""
    sidecar = make_sidecar(max_concurrency="1", drain_seconds="20").start()
    actions = [sidecar.begin("crew", {"mark": str(number), "seconds": 0.3}) for number in range(4)]
    sidecar.wait_for_effect("0")
    assert sidecar.stop() == 0
    sidecar.start()
    assert {sidecar.record(action)["status"] for action in actions} == {"completed"}
    assert sidecar.effects.read_text().split() == ["0", "1", "2", "3"]
