"""Slots, timers and neighbours: what one crew does costs the others nothing."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from crewai_sidecar.runner.stopping import STEP_SECONDS
from tests.process.sidecar import Sidecar, until


def test_a_slot_is_held_until_the_child_is_gone(make_sidecar: Callable[..., Sidecar]) -> None:
    """A timeout ends the wait and the child, not only the wait (W13)."""
    sidecar = make_sidecar(max_concurrency="1").start()
    stuck = sidecar.begin("stubborn", {"mark": "stuck"}, timeout_ms=300)
    following = sidecar.begin("crew", {"mark": "following"})
    sidecar.wait_for_effect("following")
    first, second = sidecar.record(stuck), sidecar.record(following)
    assert first["cause"] == "timeout"
    assert first["worker_stopped"] is True
    assert first["ended_at"] <= second["started_at"]


def test_time_in_the_queue_does_not_count_to_the_operation_timeout(make_sidecar: Callable[..., Sidecar]) -> None:
    """The caller's wait does count it, and says 504 while the Action goes on (W17)."""
    sidecar = make_sidecar(max_concurrency="1").start()
    first = sidecar.begin("crew", {"mark": "first", "seconds": 4})
    sidecar.wait_for_effect("first")
    begin = time.monotonic()
    answer = sidecar.submit("crew", {"mark": "second", "seconds": 0.1}, action_id="act_2", timeout_ms=800)
    assert (answer.status_code, answer.json()["code"]) == (504, "wait_timeout")
    assert time.monotonic() - begin > 0.7
    assert (sidecar.record("act_2")["status"], sidecar.record("act_2")["started_at"]) == ("running", None)
    assert sidecar.ended(first)["status"] == "completed"
    assert sidecar.ended("act_2")["status"] == "completed"
    assert (
        sidecar.submit("crew", {"mark": "second", "seconds": 0.1}, action_id="act_2", timeout_ms=800).status_code == 200
    )


def test_a_blocking_caller_of_a_cancelled_action_gets_409(shared: Sidecar) -> None:
    """Not a 500 out of the wait (W11c)."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(shared.submit, "crew", {"mark": "blocked", "seconds": 30}, action_id="act_blocked")
        shared.wait_for_effect("blocked")
        assert shared.cancel("act_blocked", "crew").status_code == 200
        answer = waiting.result(10)
    assert (answer.status_code, answer.json()["code"]) == (409, "run_cancelled")
    assert answer.json()["to_be_reconciled"] is True


def test_a_cancel_closes_a_streaming_output(shared: Sidecar) -> None:
    """Between two chunks the run stops when it is asked, without a signal (W11b)."""
    action = shared.begin("streaming", {"mark": "flow", "chunks": 10_000, "pause": 0.02})
    shared.wait_for_effect("flow")
    begin = time.monotonic()
    record = shared.cancel(action, "streaming").json()
    assert record["status"] == "cancelled"
    assert time.monotonic() - begin < STEP_SECONDS


def test_crews_that_hold_every_slot_delay_neither_health_nor_repeats_nor_admissions(
    make_sidecar: Callable[..., Sidecar],
) -> None:
    """No thread of theirs is one of ours (W14, W22, W23)."""
    sidecar = make_sidecar(max_concurrency="4").start()
    sidecar.submit("crew", {"mark": "known"}, action_id="act_known")
    stuck = [sidecar.begin("stubborn", {"mark": f"stuck-{n}"}) for n in range(4)]
    for number in range(4):
        sidecar.wait_for_effect(f"stuck-{number}")
    times = []
    for number in range(20):
        begin = time.monotonic()
        assert sidecar.request("GET", "/health").json()["status"] == "ready"
        assert httpx.get(sidecar.management_url + "/livez").status_code == 200
        assert sidecar.submit("crew", {"mark": "known"}, action_id="act_known").status_code == 200
        sidecar.begin("crew", {"mark": f"waits-{number}"})
        times.append(time.monotonic() - begin)
    assert statistics.median(times) < 2.0
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda action: sidecar.cancel(action, "stubborn"), stuck))
    assert {answer.status_code for answer in answers} == {200}
    until(lambda: sidecar.happened("waits-19"), 20, "the queue")


def test_a_key_that_was_used_before_is_seen_in_the_record(shared: Sidecar) -> None:
    """A new Action ID is new work whatever its key; the digests show that two Actions share one (W18)."""
    for action in ("act_key_1", "act_key_2"):
        assert shared.submit("crew", {"mark": "same-key"}, action_id=action, key="one-key").status_code == 200
    assert shared.record("act_key_1")["key_digest"] == shared.record("act_key_2")["key_digest"]
    assert shared.happened("same-key") == 2


def test_web_concurrency_starts_one_process_all_the_same(
    make_sidecar: Callable[..., Sidecar], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has one writer (W29)."""
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    sidecar = make_sidecar().start()
    assert sidecar.submit("crew").status_code == 200


def test_a_log_line_of_a_run_names_its_action_and_no_text_of_the_crew(shared: Sidecar) -> None:
    """JSON lines on standard error (W26)."""
    shared.submit("crew", {"mark": "logged", "fail": 1}, action_id="act_logged")
    lines = [json.loads(line) for line in shared.errors().splitlines()]
    assert any(line.get("action_id") == "act_logged" for line in lines)
    assert "s3cret" not in shared.errors()
