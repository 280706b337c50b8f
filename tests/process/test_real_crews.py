"""Real CrewAI crews, with a scripted model, behind the whole service."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewai_sidecar.runner.stopping import STEP_SECONDS
from tests.process.sidecar import Sidecar, until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A sidecar with the registry of real crews."""
    sidecar = Sidecar(tmp_path_factory.mktemp("real"), registry="tests.crews.scripted:crews")
    sidecar.start_directory = ROOT
    sidecar.start()
    yield sidecar
    sidecar.kill()


def test_a_run_of_a_real_crew_is_answered_streamed_and_recorded(service: Sidecar) -> None:
    """Output, chunks, tasks, tool, model calls, and the evidence for a reconciliation."""
    response = service.submit("pair", {"topic": "tides"}, action_id="act_pair")
    assert response.status_code == 200
    output = response.json()
    assert isinstance(output["raw"], str)
    assert output["token_usage"]["total_tokens"] > 0
    assert len(output["tasks_output"]) == 2
    assert "messages" not in json.dumps(output)
    events = service.events("act_pair")
    names = [event["event"] for event in events]
    assert names[0] == "started"
    assert names[-1] == "completed"
    assert {"chunk", "task_started", "task_completed", "tool_started", "tool_finished", "model_called"} <= set(names)
    assert events[-1]["data"] == output
    record = service.record("act_pair")
    assert len(record["task_ids"]) == 2
    assert len(record["tool_names"]) == 1
    assert record["provider_started"] is True
    emissions = [event["data"]["emission"] for event in events if "emission" in event["data"]]
    assert len(set(emissions)) == len(emissions)


def test_a_batch_of_real_crews_runs_in_sequence_with_a_fresh_crew_each(service: Sidecar) -> None:
    """One Action, one record; token counts do not add up from element to element."""
    inputs = {"inputs": [{"topic": "a"}, {"topic": "b"}]}
    body = {"crew_id": "pair", "action_id": "act_batch", "operation": "batch_run", "input": inputs}
    response = service.request("POST", "/jobs", json=body, headers={"Idempotency-Key": "k"})
    assert response.status_code == 200
    output = response.json()
    assert output["count"] == 2
    first, second = (result["token_usage"]["total_tokens"] for result in output["results"])
    assert first == second > 0
    names = [event["event"] for event in service.events("act_batch")]
    assert names.count("input_completed") == 2


def test_a_streaming_crew_says_each_chunk_once(service: Sidecar) -> None:
    """CrewAI's own streaming output and its event bus tell the same."""
    service.submit("pair", {"topic": "x"}, action_id="act_plain")
    service.submit("streaming", {"topic": "x"}, action_id="act_streaming")
    texts = [
        "".join(event["data"]["content"] for event in service.events(action) if event["event"] == "chunk")
        for action in ("act_plain", "act_streaming")
    ]
    assert texts[0] == texts[1] != ""


def test_a_real_crew_that_is_cancelled_stops_at_its_next_step(service: Sidecar) -> None:
    """By CrewAI's own hook, without a signal: the ending is there before the second step of stopping."""
    action = service.begin("slow", {"topic": "x"})
    until(lambda: len(service.events(action)) > 2, 20, "its first steps")
    begin = time.monotonic()
    record = service.cancel(action, "slow").json()
    assert time.monotonic() - begin < STEP_SECONDS
    assert (record["status"], record["worker_stopped"], record["to_be_reconciled"]) == ("cancelled", True, True)


def test_no_line_of_crewai_reaches_the_log(service: Sidecar) -> None:
    """It prints exception texts; what it writes is counted, not shown."""
    service.submit("pair", {"topic": "x"}, action_id="act_quiet")
    assert "Traceback" not in service.errors()
    assert all(json.loads(line)["level"] for line in service.errors().splitlines())
