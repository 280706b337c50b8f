"""What a child makes of crews: every operation, every shape of output, streams, and real CrewAI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crewai_sidecar import jsontext
from crewai_sidecar.codec import encode_event
from crewai_sidecar.frames import Event, Result
from crewai_sidecar.runner.launcher import Launcher
from tests.process.launching import Shared, perform, shared

MAX_EVENT_BYTES = 1024
MAX_OUTPUT_BYTES = 65_536


@pytest.fixture(scope="module")
def crews(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A launcher of every test crew, with small bounds."""
    directory = tmp_path_factory.mktemp("operations")
    with shared(directory, max_event_bytes=MAX_EVENT_BYTES, max_output_bytes=MAX_OUTPUT_BYTES) as launcher:
        yield launcher


def job(
    crews: Shared, crew_id: str, operation: str = "run", training: Path | None = None, **inputs: Any
) -> tuple[list[Event], Result]:
    """Run one job in a child of its own; each event is within its bound."""
    got: list[tuple[list[Event], Result]] = []

    async def scenario(launcher: Launcher) -> None:
        events, result, exited = await perform(launcher, crew_id, operation, training, **inputs)
        assert (exited.code, exited.strangers) == (0, 0)
        assert result is not None
        got.append((events, result))

    crews.run(scenario)
    for event in got[0][0]:
        assert len(encode_event(event.name, 99_999, event.data)) <= MAX_EVENT_BYTES
    return got[0]


def output(crews: Shared, crew_id: str, operation: str = "run", training: Path | None = None, **inputs: Any) -> Any:
    """Run one job that has an output."""
    _, result = job(crews, crew_id, operation, training, **inputs)
    assert result.error_type is None
    assert result.output is not None
    jsontext.decode(jsontext.encode(result.output))  # strict, whatever the crew gave
    return result.output


EMPTY: dict[str, Any] = {"token_usage": {}, "tasks_output": [], "json_dict": None, "pydantic": None}


@pytest.mark.parametrize(
    ("crew", "expected"),
    [
        ("answer", {"raw": "hello world"}),
        ("awaited", {"raw": "awaited"}),
        ("native", {"raw": "native"}),
        ("awaited_factory", {"raw": "hello world"}),
        ("crew_base", {"raw": "hello world"}),
        ("crew_base_object", {"raw": "hello world"}),
        ("none", {"raw": ""}),
        ("list", {"raw": '[1,"two"]'}),
        ("raw_dict", {"raw": "as it is", "more": [1]}),
        ("raw_number", {"raw": "5", "sanitized": True}),
        (
            "model",
            {"raw": '{"n":1,"nested":{"n":2,"nested":null}}', "pydantic": {"n": 1, "nested": {"n": 2, "nested": None}}},
        ),
        (
            "dict",
            {
                "raw": '{"score":1,"nan":null}',
                "json_dict": {"score": 1, "nan": None},
                "sanitized": True,
            },
        ),
        ("circular", {"raw": "round", "self": None, "sanitized": True}),
        ("huge_integer", {"raw": "n", "n": None, "sanitized": True}),
    ],
)
def test_whatever_a_crew_returns_becomes_a_run_s_output(crews: Shared, crew: str, expected: dict[str, Any]) -> None:
    """raw is a text, token_usage an object, tasks_output a list, and what JSON cannot carry is replaced and said."""
    assert output(crews, f"duck.{crew}") == {**EMPTY, **expected}


def test_an_output_with_parts_that_no_json_can_carry_is_made_plain_and_marked(crews: Shared) -> None:
    """NaN, bytes, sets and half a surrogate pair are replaced; messages, which are prompts, are left out."""
    assert output(crews, "duck.weird") == {
        "raw": "half \ufffd of a pair",
        "pydantic": {"n": 1, "nested": {"n": 2, "nested": None}},
        "json_dict": {"set": [1]},
        "tasks_output": [{"raw": "\ufffd\ufffd"}, {"1": None}],
        "token_usage": {"total_tokens": None},
        "sanitized": True,
    }


def test_an_output_over_its_bound_is_cut_and_its_size_said(crews: Shared) -> None:
    """The effect happened: the run is completed, raw fills the bound, other parts are dropped."""
    _, result = job(crews, "duck.big")
    assert result.output is not None
    assert result.output_truncated
    assert result.output_bytes is not None
    assert result.output_bytes > 6 * 3_000_000
    assert MAX_OUTPUT_BYTES - 16 < len(jsontext.encode(result.output)) <= MAX_OUTPUT_BYTES
    assert result.output["tasks_output"] == []


@pytest.mark.parametrize(
    ("crew", "operation", "error_type"),
    [
        ("fails", "run", "LookupError"),
        ("answer", "replay", "OperationUnsupported"),
        ("everything", "batch_run", "KeyError"),
        ("unknown", "run", "KeyError"),
        ("everything", "train", "OperationUnsupported"),
    ],
)
def test_what_cannot_begin_has_started_no_provider(crews: Shared, crew: str, operation: str, error_type: str) -> None:
    """No crew, no method, or an input that is wrong: a failure before any provider work."""
    inputs = {"artifact_name": "a", "n_iterations": 1} if operation == "train" else {"task_id": "1"}
    _, result = job(crews, f"duck.{crew}", operation, **inputs)
    assert (result.error_type, result.provider_started, result.output) == (error_type, False, None)


def test_an_exception_of_a_crew_is_said_by_its_class_alone(crews: Shared) -> None:
    """Its text may carry a prompt or a secret, so nothing of it leaves the child."""
    events, result = job(crews, "duck.raises")
    assert (events, result.error_type, result.provider_started) == ([], "ValueError", True)
    assert "s3cret" not in str(result)


@pytest.mark.parametrize(
    ("crew", "error_type"),
    [("unnamed", "Unnamed"), ("long_name", "\U00010330" * 21), ("odd_name", "a__b___c__")],
)
def test_an_exception_whatever_its_class_is_called_is_the_result_of_the_run(
    crews: Shared, crew: str, error_type: str
) -> None:
    """A name that cannot be asked for is read all the same; one that is long, or no name, is cut and mended."""
    _, result = job(crews, f"duck.{crew}")
    assert (result.error_type, result.provider_started) == (error_type, True)


def test_the_longest_integers_reach_the_crew(crews: Shared) -> None:
    """The sign of an integer is none of its 4,300 digits."""
    made = output(crews, "duck.answer", topic="x", most=int("9" * 4300), least=-int("9" * 4300))
    assert made["raw"] == "hello x"


def test_a_batch_uses_a_fresh_crew_for_each_input_and_keeps_the_failed_ones(crews: Shared) -> None:
    """Results stand in the order of the inputs; each has its event; an element that exits fails alone."""
    inputs = [{"n": 1}, {"fail": "yes"}, {"fail": "exit"}, {"n": 4}]
    for crew in ("duck.fresh", "duck.object"):
        events, result = job(crews, crew, "batch_run", inputs=inputs)
        assert result.output == {
            "results": [
                {"raw": "1", "used": 1, **EMPTY},
                {"error_type": "ValueError"},
                {"error_type": "SystemExit"},
                {"raw": "4", "used": 1, **EMPTY},
            ],
            "count": 4,
        }
        assert [(event.name, event.data) for event in events] == [
            ("input_completed", {"index": 0, "error_type": None}),
            ("input_completed", {"index": 1, "error_type": "ValueError"}),
            ("input_completed", {"index": 2, "error_type": "SystemExit"}),
            ("input_completed", {"index": 3, "error_type": None}),
        ]


def test_every_other_operation_calls_its_method(crews: Shared, tmp_path: Path) -> None:
    """Arguments by CrewAI's names, defaults of the contract, outputs of the contract."""
    crew = "duck.everything"
    assert output(crews, crew, "replay", task_id="t1")["json_dict"] == {"task_id": "t1", "inputs": None}
    trained = output(crews, crew, "train", tmp_path / "new", n_iterations=2, artifact_name="a.pkl", inputs={"a": 1})
    assert trained == {"status": "completed", "artifact_name": "a.pkl", "n_iterations": 2}
    assert (tmp_path / "new" / "a.pkl").read_text() == "2 {'a': 1}"
    tested = output(crews, crew, "test", n_iterations=2, eval_llm="judge")
    assert tested == {"status": "completed", "n_iterations": 2, "eval_llm": "judge"}
    assert output(crews, crew, "knowledge_query", query=["cats"]) == {
        "results": [{"content": "cats", "limit": 3, "threshold": 0.35}]
    }
    assert output(crews, "duck.knows_async", "knowledge_query", query=["cats"]) == {"results": []}
    assert output(crews, crew, "memory_reset", command_type="all") == {"status": "completed", "command_type": "all"}


def test_a_stream_is_followed_with_the_simple_fields_of_its_chunks(crews: Shared) -> None:
    """Content and simple fields become an event, strict and marked; private fields and clients stay in the child."""
    events, result = job(crews, "duck.streams")
    call = {"tool_name": "search", "score": None}
    assert [event.data for event in events] == [
        {"content": "one ", "tool_call": call, "index": 0, "sanitized": True},
        {"content": "two", "tool_call": call, "index": 1, "sanitized": True},
    ]
    assert result.output is not None
    assert result.output["raw"] == "one two"


@pytest.mark.parametrize(
    ("crew", "texts", "raw"),
    [("streams_async", ["one ", "two"], "one two"), ("generates", ["a", "b", "c"], "generated")],
)
def test_asynchronous_streams_and_generators_are_streams_too(
    crews: Shared, crew: str, texts: list[str], raw: str
) -> None:
    """What was awaited is iterated asynchronously; what a generator returns is its result."""
    events, result = job(crews, f"duck.{crew}")
    assert [event.data["content"] for event in events] == texts
    assert result.output is not None
    assert result.output["raw"] == raw


def test_a_chunk_over_the_bound_becomes_several_events(crews: Shared) -> None:
    """Nothing of its text is lost, and each part has the chunk's other fields."""
    text = "text \u00e9\U0001f600 " * 400
    events, _ = job(crews, "duck.streams", texts=[text])
    assert len(events) > 10
    assert "".join(event.data["content"] for event in events) == text
    assert {event.data["index"] for event in events} == {0}


# -- real CrewAI --------------------------------------------------------------------------------------------------


def test_a_real_crew_streams_chunks_and_events(crews: Shared) -> None:
    """Chunks in the order of the run, the rest with their emission, no prompt and no argument outside of chunks."""
    events, result = job(crews, "scripted.pair", topic="cats")
    names = [event.name for event in events]
    for name, count in {"task_started": 2, "task_completed": 2, "tool_started": 1, "tool_finished": 1}.items():
        assert names.count(name) == count
    assert names.count("model_called") == 3
    chunks = [event.data for event in events if event.name == "chunk"]
    assert "".join(one["content"] for one in chunks).startswith("Thought: I use the tool.\nAction: echo")
    assert {one["task_name"] for one in chunks} == {"research", None}
    assert {one["agent_role"] for one in chunks} == {"Researcher", "Writer"}
    others = [event.data for event in events if event.name != "chunk"]
    emissions = [one["emission"] for one in others]
    assert len(set(emissions)) == len(emissions)
    assert not [word for word in ("cats", "secret argument", "Research ") if word in str(others)]
    assert {one["response_id"] for one in others if "model" in one} == {"response-0", "response-1"}
    made = result.output
    assert made is not None
    assert made["raw"] == "the text"
    assert made["token_usage"]["total_tokens"] == 45
    assert [task["raw"] for task in made["tasks_output"]] == ["notes", "the text"]
    assert not [task for task in made["tasks_output"] if "messages" in task]


def test_a_structured_answer_comes_with_its_fields(crews: Shared) -> None:
    """CrewAI's own dump would give an empty object here."""
    made = output(crews, "scripted.structured")
    assert made["pydantic"] == {"score": 7}
    assert made["tasks_output"][0]["pydantic"] == {"score": 7}


@pytest.mark.parametrize("crew", ["streaming", "awaits", "awaits_stream", "passes_on", "wrapped"])
def test_each_chunk_of_a_real_crew_comes_once(crews: Shared, crew: str) -> None:
    """From the bus, from CrewAI's streaming output, or passed on by a crew of a user's own: never twice."""
    plain, _ = job(crews, "scripted.pair", topic="cats")
    events, result = job(crews, f"scripted.{crew}", topic="cats")
    assert _text(events) == _text(plain)
    assert result.output is not None
    assert result.output["raw"] == "the text"


def test_a_real_batch_has_a_fresh_crew_for_each_input(crews: Shared) -> None:
    """The script begins anew with each crew, and usage does not add up."""
    events, result = job(crews, "scripted.pair", "batch_run", inputs=[{"topic": "cats"}, {"topic": "dogs"}])
    assert result.output is not None
    assert [one["token_usage"]["total_tokens"] for one in result.output["results"]] == [45, 45]
    assert [event.data["index"] for event in events if event.name == "input_completed"] == [0, 1]
    last = max(index for index, event in enumerate(events) if event.name == "task_completed")
    assert last < len(events) - 1  # what an input has done is told before its end


def test_no_telemetry_leaves_a_run(crews: Shared) -> None:
    """Not one connection and not one name look-up in a whole run."""
    assert output(crews, "scripted.guarded", topic="cats")["json_dict"] == {"attempts": []}


def test_a_crew_s_files_land_in_the_run_s_directory(crews: Shared) -> None:
    """Storage, Chroma's path, lock files and home are the run's: nothing is written outside."""
    seen = output(crews, "scripted.places", topic="cats")["json_dict"]
    run = Path(seen["run"])
    assert run.name.startswith("run-")
    assert {Path(one).is_relative_to(run) for one in seen["places"].values()} == {True}
    assert seen["places"]["chroma"] == seen["places"]["storage"]
    assert "latest_kickoff_task_outputs.db" in seen["files"]


def _text(events: list[Event]) -> str:
    return "".join(event.data["content"] for event in events if event.name == "chunk")
