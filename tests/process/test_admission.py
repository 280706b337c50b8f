"""One request, one run: repeats, races and conflicts against a real process."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.process.sidecar import TOKEN, Sidecar, until


def test_fifty_identical_requests_at_once_run_one_crew_and_all_get_its_result(shared: Sidecar) -> None:
    """One of them is new work, the others are repeats."""
    with ThreadPoolExecutor(50) as pool:
        answers = list(
            pool.map(
                lambda _: shared.submit("crew", {"mark": "fifty", "seconds": 0.3, "answer": "one"}, action_id="act_50"),
                range(50),
            )
        )
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["raw"] for answer in answers} == {"one"}
    assert shared.happened("fifty") == 1


def test_the_same_action_id_with_another_request_is_a_conflict(shared: Sidecar) -> None:
    """409, no work, and the first record is as it was."""
    shared.submit("crew", {"mark": "c1"}, action_id="act_conflict")
    others: list[dict[str, Any]] = [
        {"value": {"mark": "c2"}},
        {"value": {"mark": "c1"}, "key": "another"},
        {"value": {"mark": "c1"}, "timeout_ms": 5},
    ]
    for options in others:
        answer = shared.submit("crew", action_id="act_conflict", **options)
        assert answer.status_code == 409
        assert answer.json()["code"] == "request_conflict"
    assert shared.submit("large", {"mark": "c1"}, action_id="act_conflict").status_code == 409
    assert shared.record("act_conflict")["status"] == "completed"
    assert (shared.happened("c1"), shared.happened("c2")) == (1, 0)


def test_the_run_does_not_hang_on_the_connection(shared: Sidecar) -> None:
    """A client that goes away half-way finds the result when it comes back."""
    host, _, port = shared.url.removeprefix("http://").partition(":")
    body = (
        b'{"crew_id":"crew","action_id":"act_gone","input":{"effects":"%s","mark":"gone","seconds":0.5}}'
        % str(shared.effects).encode()
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nIdempotency-Key: act_gone\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (TOKEN.encode(), len(body), body)
        )
        shared.wait_for_effect("gone")
    assert shared.ended("act_gone")["status"] == "completed"
    repeat = shared.submit("crew", {"mark": "gone", "seconds": 0.5}, action_id="act_gone")
    assert (repeat.status_code, repeat.json()["raw"]) == (200, "done")
    assert shared.happened("gone") == 1


def test_slots_bound_what_runs_and_the_queue_is_served_in_order(make_sidecar: Callable[..., Sidecar]) -> None:
    """And a full queue says when to come back, before anything is stored."""
    sidecar = make_sidecar(max_concurrency="1", max_queued="2").start()
    first = sidecar.begin("crew", {"mark": "0", "seconds": 0.5})
    sidecar.wait_for_effect("0")
    queued = [sidecar.begin("crew", {"mark": str(number)}) for number in (1, 2)]
    refused = sidecar.submit("crew", {"mark": "3"}, action_id="act_refused")
    assert (refused.status_code, refused.json()["code"]) == (503, "queue_full")
    assert int(refused.headers["Retry-After"]) >= 1
    assert sidecar.request("GET", "/jobs/act_refused").status_code == 404
    for action in (first, *queued):
        assert sidecar.ended(action)["status"] == "completed"
    assert sidecar.effects.read_text().split() == ["0", "1", "2"]
    assert sidecar.submit("crew", {"mark": "3"}, action_id="act_refused").status_code == 200


def test_the_retained_bound_refuses_new_actions_and_archiving_makes_room(make_sidecar: Callable[..., Sidecar]) -> None:
    """507 without any work; an archived Action ID stays spent, also after a restart."""
    sidecar = make_sidecar(max_retained_runs="4", max_concurrency="4").start()
    for number in range(4):
        assert sidecar.submit("crew", {"mark": "kept"}, action_id=f"act_{number}").status_code == 200
    refused = sidecar.submit("crew", {"mark": "fifth"}, action_id="act_5")
    assert (refused.status_code, refused.json()["code"]) == (507, "retained_bound")
    assert sidecar.happened("fifth") == 0
    archived = sidecar.request("DELETE", "/jobs/act_0", headers={"X-AIP-Archive-Confirmation": "act_0"})
    assert (archived.status_code, archived.json()) == (200, {"archived": True, "action_id": "act_0"})
    assert sidecar.submit("crew", {"mark": "fifth"}, action_id="act_5").status_code == 200
    sidecar.restart()
    for answer in (
        sidecar.submit("crew", {"mark": "kept"}, action_id="act_0"),
        sidecar.request("GET", "/jobs/act_0"),
        sidecar.request("GET", "/jobs/act_0/events"),
        sidecar.cancel("act_0", "crew"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (410, "action_archived")
    assert sidecar.happened("kept") == 4


def test_what_is_to_be_reconciled_cannot_be_archived(shared: Sidecar) -> None:
    """Nor can what runs."""
    shared.submit("crew", {"mark": "m", "fail": 1}, action_id="act_open")
    answer = shared.request("DELETE", "/jobs/act_open", headers={"X-AIP-Archive-Confirmation": "act_open"})
    assert (answer.status_code, answer.json()["code"]) == (409, "reconciliation_open")
    running = shared.begin("crew", {"mark": "still", "seconds": 30})
    answer = shared.request("DELETE", f"/jobs/{running}", headers={"X-AIP-Archive-Confirmation": running})
    assert (answer.status_code, answer.json()["code"]) == (409, "still_running")
    shared.cancel(running, "crew")


def test_a_cancel_reaches_an_action_that_is_being_admitted(shared: Sidecar) -> None:
    """Never: 200 for the cancel and then the job starts (W8)."""
    for number in range(15):
        action = f"act_early_{number}"
        with ThreadPoolExecutor(2) as pool:
            start = pool.submit(shared.submit, "crew", {"mark": action, "seconds": 20}, action_id=action, wait=False)
            cancel = pool.submit(shared.cancel, action, "crew")
        assert start.result().status_code in {202, 409}
        if cancel.result().status_code == 404:  # it was there before the start: nothing to cancel yet
            assert shared.cancel(action, "crew").status_code == 200
        record = shared.record(action)
        assert record["status"] == "cancelled"
        assert record["provider_started"] == bool(shared.happened(action)) or record["provider_started"]


def test_every_operation_goes_through_the_same_door(shared: Sidecar) -> None:
    """Admitted, journalled, run in a child, answered in the contract's shapes."""
    asked = {
        "run": {},
        "batch_run": {"inputs": [{"effects": str(shared.effects)}, {"fail": True}]},
        "replay": {"task_id": "t-1"},
        "train": {"n_iterations": 2, "artifact_name": "good.pkl"},
        "test": {"n_iterations": 3, "eval_llm": "judge"},
        "knowledge_query": {"query": ["a", "b"], "results_limit": 2},
        "memory_reset": {"command_type": "all"},
    }
    answers = {}
    for operation, value in asked.items():
        action = f"act_{operation}"
        body = {"crew_id": "everything", "action_id": action, "operation": operation, "input": value}
        if operation == "run":
            body["input"] = shared.with_effects(None)
        response = shared.request("POST", "/jobs", json=body, headers={"Idempotency-Key": action})
        assert response.status_code == 200, (operation, response.text)
        answers[operation] = response.json()
        assert shared.record(action)["operation"] == operation
    assert answers["run"]["raw"] == "ran"
    assert answers["batch_run"]["count"] == 2
    assert answers["batch_run"]["results"][0]["raw"] == "ran"
    assert answers["batch_run"]["results"][1] == {"error_type": "ValueError"}
    assert answers["replay"]["raw"] == "replayed t-1"
    assert answers["train"] == {"status": "completed", "artifact_name": "good.pkl", "n_iterations": 2}
    assert answers["test"] == {"status": "completed", "n_iterations": 3, "eval_llm": "judge"}
    assert [hit["content"] for hit in answers["knowledge_query"]["results"]] == ["a", "b"]
    assert answers["memory_reset"] == {"status": "completed", "command_type": "all"}
    names = [event["event"] for event in shared.events("act_batch_run")]
    assert names == ["started", "input_completed", "input_completed", "completed"]
    until(lambda: list((shared.directory / "training").glob("good*")), 5, "the artefact")


def test_what_a_crew_cannot_do_is_known_before_anything_is_stored(make_sidecar: Callable[..., Sidecar]) -> None:
    """A crew object says what methods it has; a factory's crew is known in the run only."""
    sidecar = make_sidecar(registry="other_crews:crews").start()
    answer = sidecar.submit("replayer", {}, action_id="act_1", operation="run")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert sidecar.request("GET", "/jobs/act_1").status_code == 404
