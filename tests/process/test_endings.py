"""The table of endings, each row by a real process: what the record says, and what really happened."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.process.sidecar import Sidecar, alive, family, until


def says(record: dict[str, Any], **expected: Any) -> None:
    """Compare the fields of a record that a row names."""
    assert {name: record[name] for name in expected} == expected


def test_success(shared: Sidecar) -> None:
    """completed, the output itself as the answer, nothing to be reconciled."""
    response = shared.submit("crew", {"mark": "ok", "answer": "forty-two"}, action_id="act_ok")
    assert response.status_code == 200
    assert response.json()["raw"] == "forty-two"
    record = shared.record("act_ok")
    says(
        record,
        status="completed",
        cause=None,
        provider_started=True,
        uncertain_outcome=False,
        to_be_reconciled=False,
        worker_stopped=True,
    )
    assert [event["event"] for event in shared.events("act_ok")] == ["started", "completed"]
    assert shared.happened("ok") == 1


def test_an_exception_in_the_crew(shared: Sidecar) -> None:
    """failed with the class alone; the text of an exception may carry a secret and is nowhere."""
    response = shared.submit("crew", {"mark": "boom", "fail": 1}, action_id="act_boom")
    assert response.status_code == 502
    record = shared.record("act_boom")
    says(
        record,
        status="failed",
        cause="exception",
        error_type="ValueError",
        provider_started=True,
        uncertain_outcome=False,
        to_be_reconciled=True,
    )
    event = shared.events("act_boom")[-1]
    assert event["event"] == "failed"
    assert "uncertain_outcome" not in event["data"]
    for place in (response.text, str(record), str(event), shared.errors(), shared.state_file.read_text()):
        assert "s3cret" not in place
    again = shared.submit("crew", {"mark": "boom", "fail": 1}, action_id="act_boom")
    assert again.status_code == 502
    assert shared.happened("boom") == 1


def test_a_crew_that_does_not_build(shared: Sidecar) -> None:
    """failed, and provably nothing of the provider's had started."""
    response = shared.submit("unbuilt", action_id="act_unbuilt")
    assert response.status_code == 502
    says(
        shared.record("act_unbuilt"),
        status="failed",
        cause="exception",
        error_type="RuntimeError",
        provider_started=False,
        to_be_reconciled=False,
    )


def test_an_operation_timeout_fires_on_time_and_the_waiting_caller_gets_504(shared: Sidecar) -> None:
    """Whatever the child does; a later repeat gets the stored failure."""
    begin = time.monotonic()
    response = shared.submit("crew", {"mark": "slow", "seconds": 60}, action_id="act_slow", timeout_ms=700)
    assert response.status_code == 504
    assert time.monotonic() - begin < 5
    record = shared.ended("act_slow", 8)
    says(
        record,
        status="failed",
        cause="timeout",
        error_type="TimeoutError",
        provider_started=True,
        worker_stopped=True,
        uncertain_outcome=False,
        to_be_reconciled=True,
    )
    again = shared.submit("crew", {"mark": "slow", "seconds": 60}, action_id="act_slow", timeout_ms=700)
    assert again.status_code == 502
    assert shared.happened("slow") == 1


def test_a_cancel_before_the_crew_had_its_input(make_sidecar: Callable[..., Sidecar]) -> None:
    """cancelled, provider_started false, no event but the ending, and no effect at all."""
    sidecar = make_sidecar(max_concurrency="1").start()
    first = sidecar.begin("crew", {"mark": "first", "seconds": 30})
    sidecar.wait_for_effect("first")
    queued = sidecar.begin("crew", {"mark": "queued"})
    response = sidecar.cancel(queued, "crew", reason="changed my mind")
    assert response.status_code == 200
    says(
        response.json(),
        status="cancelled",
        cause="cancelled",
        provider_started=False,
        to_be_reconciled=False,
        cancel_reason="changed my mind",
    )
    assert [event["event"] for event in sidecar.events(queued)] == ["cancelled"]
    assert sidecar.cancel(first, "crew").status_code == 200
    assert sidecar.happened("queued") == 0


def test_a_cancel_of_a_running_crew(shared: Sidecar) -> None:
    """cancelled and to be reconciled; the local process is gone, and the record says who asked and why."""
    action = shared.begin("crew", {"mark": "running", "seconds": 60})
    shared.wait_for_effect("running")
    response = shared.request(
        "POST",
        f"/jobs/{action}/cancel",
        json={"crew_id": "crew", "action_id": action, "reason": "stop it"},
        headers={"X-AIP-Action-ID": "act_the_cancel", "Idempotency-Key": "k"},
    )
    assert response.status_code == 200
    says(
        response.json(),
        status="cancelled",
        cause="cancelled",
        provider_started=True,
        worker_stopped=True,
        uncertain_outcome=False,
        to_be_reconciled=True,
        cancel_reason="stop it",
        cancelled_by="act_the_cancel",
    )
    assert shared.submit("crew", {"mark": "running", "seconds": 60}, action_id=action).status_code == 409


def test_a_cancel_of_a_child_that_swallows_it_is_bounded_and_truthful(shared: Sidecar) -> None:
    """Asked, SIGTERM, SIGKILL: the ending is on disk within 5 s of the order."""
    action = shared.begin("stubborn", {"mark": "stubborn"})
    shared.wait_for_effect("stubborn")
    begin = time.monotonic()
    response = shared.cancel(action, "stubborn")
    assert response.status_code == 200
    assert time.monotonic() - begin < 6
    says(response.json(), status="cancelled", worker_stopped=True, to_be_reconciled=True)


def test_two_cancels_in_a_row_end_the_same_way(shared: Sidecar) -> None:
    """The second interrupts nothing of the first (W11)."""
    action = shared.begin("stubborn", {"mark": "twice"})
    shared.wait_for_effect("twice")
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda n: shared.cancel(action, "stubborn", reason=f"number {n}"), range(3)))
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert len({answer.json()["cancel_reason"] for answer in answers}) == 1
    assert [event["event"] for event in shared.events(action)].count("cancelled") == 1


def test_a_cancel_that_comes_after_the_result_changes_nothing(shared: Sidecar) -> None:
    """The first to be ordered decides."""
    assert shared.submit("crew", {"mark": "done"}, action_id="act_done").status_code == 200
    response = shared.cancel("act_done", "crew")
    assert response.status_code == 200
    says(response.json(), status="completed", cause=None, cancel_reason=None)


def test_cancels_against_completions_leave_one_truth(shared: Sidecar) -> None:
    """Whichever is first: the answer of the cancel, the record and the last event agree."""
    for number in range(10):
        action = shared.begin("crew", {"mark": f"race-{number}", "seconds": 0.02})
        shared.wait_for_effect(f"race-{number}")
        answer = shared.cancel(action, "crew").json()
        record = shared.record(action)
        assert answer["status"] == record["status"] in {"completed", "cancelled"}
        assert shared.events(action)[-1]["event"] == record["status"]
        assert shared.happened(f"race-{number}") == 1


def test_a_result_that_comes_after_the_order_is_not_kept_but_said(shared: Sidecar) -> None:
    """finished_late: somebody who reconciles wants to know."""
    action = shared.begin("crew", {"mark": "late", "seconds": 1.2})
    shared.wait_for_effect("late")
    record = shared.cancel(action, "crew").json()
    says(record, status="cancelled", finished_late=True, output=None, to_be_reconciled=True)


@pytest.mark.parametrize("how", ["segfault", "os._exit"])
def test_a_child_that_dies_ends_its_own_run_only(shared: Sidecar, how: str) -> None:
    """worker_lost, and the neighbour does not notice."""
    neighbour = shared.begin("crew", {"mark": f"neighbour-{how}", "seconds": 1})
    response = shared.submit("ending", {"mark": how, "how": how}, action_id=f"act_{how}")
    assert response.status_code == 502
    says(
        shared.record(f"act_{how}"),
        status="failed",
        cause="worker_lost",
        error_type="WorkerLost",
        provider_started=True,
        worker_stopped=True,
        to_be_reconciled=True,
    )
    says(shared.ended(neighbour), status="completed")


@pytest.mark.parametrize(
    ("how", "error_type"),
    [("sys.exit", "SystemExit"), ("keyboard", "KeyboardInterrupt"), ("generator", "GeneratorExit")],
)
def test_an_exit_raised_in_a_crew_is_an_exception_of_that_run(shared: Sidecar, how: str, error_type: str) -> None:
    """It ends no process but its own."""
    assert shared.submit("ending", {"mark": how, "how": how}, action_id=f"act_{how}").status_code == 502
    says(shared.record(f"act_{how}"), status="failed", cause="exception", error_type=error_type, provider_started=True)


def test_a_child_that_closes_its_socket_is_lost(shared: Sidecar) -> None:
    """It ends without a result that anybody could have heard."""
    assert shared.submit("ending", {"mark": "deaf", "how": "close_fds"}, action_id="act_deaf").status_code == 502
    says(shared.record("act_deaf"), status="failed", cause="worker_lost", worker_stopped=True)


def test_the_fork_servers_death_ends_its_runs_and_admission_goes_on(sidecar: Sidecar) -> None:
    """worker_lost for what ran; what was admitted meanwhile runs in the next fork server."""
    running = sidecar.begin("crew", {"mark": "lost", "seconds": 60})
    sidecar.wait_for_effect("lost")
    before = family(sidecar.pid) - {sidecar.pid}
    (fork_server,) = (
        pid
        for pid in before
        if b"crewai_sidecar.child.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
        and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == str(sidecar.pid)
    )
    os.kill(fork_server, signal.SIGKILL)
    record = sidecar.ended(running)
    says(record, status="failed", cause="worker_lost", worker_stopped=True, to_be_reconciled=True)
    assert sidecar.submit("crew", {"mark": "after"}).status_code == 200
    until(lambda: not alive(before), 5, "the end of the old fork server's children")
    assert sidecar.happened("lost") == 1


def test_strangers_that_hold_socket_and_pipes_delay_nothing_and_are_ended(shared: Sidecar) -> None:
    """The result and the exit message end a run, not end-of-file."""
    begin = time.monotonic()
    response = shared.submit("leaver", action_id="act_leaver")
    assert response.status_code == 200
    assert time.monotonic() - begin < 5
    strangers = {int(line.split()[1]) for line in shared.effects.read_text().splitlines() if "stranger" in line}
    assert strangers
    until(lambda: not alive(strangers), 3, "the end of the strangers")
    says(shared.record("act_leaver"), status="completed", worker_stopped=True)


def test_a_knowledge_query_is_never_to_be_reconciled(make_sidecar: Callable[..., Sidecar]) -> None:
    """Nor is a crew that the operator declared to be without effects; the word is stored at the ending."""
    sidecar = make_sidecar(effect_free_crews="ending").start()
    sidecar.submit("ending", {"how": "os._exit"}, action_id="act_free")
    sidecar.submit("unbuilt", {"query": ["q"]}, action_id="act_other")
    says(sidecar.record("act_free"), status="failed", cause="worker_lost", to_be_reconciled=False)
    sidecar.stop()
    sidecar.settings["AIP_CREWAI_EFFECT_FREE_CREWS"] = ""
    sidecar.start()
    says(sidecar.record("act_free"), to_be_reconciled=False)
