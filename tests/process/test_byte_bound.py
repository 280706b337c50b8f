"""A journal at its own byte bound: what runs goes on and ends, what is new is refused, archiving makes room."""

from __future__ import annotations

from collections.abc import Callable

from tests.process.sidecar import Sidecar, until


def test_a_run_that_streams_past_the_bound_still_ends_and_is_stopped_on_time(
    make_sidecar: Callable[..., Sidecar],
) -> None:
    """Its events are counted then, its ending has its room; neither timeout nor cancel waits for the disk."""
    sidecar = make_sidecar(max_state_bytes="1048576").start()
    whole = sidecar.begin("streaming", {"chunks": 900, "text": "y" * 4000})
    record = sidecar.ended(whole)
    assert record["status"] == "completed"
    assert record["events_dropped"] > 0
    assert record["event_count"] + record["events_dropped"] >= 900
    endless = sidecar.begin("streaming", {"chunks": 100_000, "text": "z" * 4000, "pause": 0.001}, timeout_ms=2000)
    record = sidecar.ended(endless, 10)
    assert (record["status"], record["cause"], record["worker_stopped"]) == ("failed", "timeout", True)
    third = sidecar.begin("streaming", {"mark": "third", "chunks": 100_000, "text": "w" * 4000, "pause": 0.001})
    sidecar.wait_for_effect("third")
    assert sidecar.cancel(third, "streaming").json()["status"] == "cancelled"
    sidecar.restart()
    assert sidecar.record(whole)["status"] == "completed"


def test_archiving_makes_room_again(make_sidecar: Callable[..., Sidecar]) -> None:
    """A journal at its bound refuses admissions and takes the archive that ends it; health follows by itself."""
    sidecar = make_sidecar(max_state_bytes="1048576").start()
    assert sidecar.submit("large", {"bytes": 600_000}, action_id="act_0").status_code == 200
    held = sidecar.begin("large", {"mark": "held", "bytes": 500_000})
    sidecar.wait_for_effect("held")
    until(lambda: sidecar.request("GET", "/health").json()["admission"] == "journal_full", 10, "a full journal")
    assert sidecar.record(held)["status"] == "running"
    archived = sidecar.request("DELETE", "/jobs/act_0", headers={"X-AIP-Archive-Confirmation": "act_0"})
    assert archived.status_code == 200, archived.text
    assert sidecar.ended(held)["status"] == "completed"
    until(lambda: sidecar.request("GET", "/health").json()["admission"] == "open", 10, "an open admission")
    assert sidecar.submit("crew", {"mark": "after"}).status_code == 200
