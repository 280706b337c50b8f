"""The rules of each operation's input."""

from __future__ import annotations

from typing import Any

import pytest

from crewai_sidecar.errors import InputInvalid
from crewai_sidecar.inputs import check_input
from crewai_sidecar.model import Operation

GOOD: list[tuple[Operation, dict[str, Any]]] = [
    (Operation.RUN, {}),
    (Operation.RUN, {"anything": [1, None]}),
    (Operation.BATCH_RUN, {"inputs": [{}]}),
    (Operation.BATCH_RUN, {"inputs": [{"a": 1}] * 100}),
    (Operation.REPLAY, {"task_id": "t"}),
    (Operation.REPLAY, {"task_id": "t" * 256, "inputs": {}}),
    (Operation.TRAIN, {"n_iterations": 1, "artifact_name": "a"}),
    (Operation.TRAIN, {"n_iterations": 100, "artifact_name": "A" + "._-9" * 31, "inputs": {"x": 1}}),
    (Operation.TEST, {"n_iterations": 1, "eval_llm": "m"}),
    (Operation.KNOWLEDGE_QUERY, {"query": ["q"]}),
    (Operation.KNOWLEDGE_QUERY, {"query": ["q" * 4096] * 100, "results_limit": 100, "score_threshold": 1}),
    (Operation.MEMORY_RESET, {"command_type": "all"}),
]

BAD: list[tuple[Operation, dict[str, Any], str]] = [
    (Operation.BATCH_RUN, {}, "inputs"),
    (Operation.BATCH_RUN, {"inputs": []}, "inputs"),
    (Operation.BATCH_RUN, {"inputs": [{}] * 101}, "inputs"),
    (Operation.BATCH_RUN, {"inputs": [1]}, "inputs"),
    (Operation.BATCH_RUN, {"inputs": [{}], "more": 1}, "more"),
    (Operation.REPLAY, {}, "task_id"),
    (Operation.REPLAY, {"task_id": ""}, "task_id"),
    (Operation.REPLAY, {"task_id": "t" * 257}, "task_id"),
    (Operation.REPLAY, {"task_id": "é" * 129}, "task_id"),
    (Operation.REPLAY, {"task_id": "a\n"}, "task_id"),
    (Operation.REPLAY, {"task_id": "t", "inputs": []}, "inputs"),
    (Operation.TRAIN, {"n_iterations": 0, "artifact_name": "a"}, "n_iterations"),
    (Operation.TRAIN, {"n_iterations": 101, "artifact_name": "a"}, "n_iterations"),
    (Operation.TRAIN, {"n_iterations": True, "artifact_name": "a"}, "n_iterations"),
    (Operation.TRAIN, {"n_iterations": 1.0, "artifact_name": "a"}, "n_iterations"),
    (Operation.TRAIN, {"n_iterations": 1, "artifact_name": ".a"}, "artifact_name"),
    (Operation.TRAIN, {"n_iterations": 1, "artifact_name": "../a"}, "artifact_name"),
    (Operation.TRAIN, {"n_iterations": 1, "artifact_name": "a\n"}, "artifact_name"),
    (Operation.TRAIN, {"n_iterations": 1, "artifact_name": "a" * 129}, "artifact_name"),
    (Operation.TEST, {"n_iterations": 1}, "eval_llm"),
    (Operation.KNOWLEDGE_QUERY, {"query": "q"}, "query"),
    (Operation.KNOWLEDGE_QUERY, {"query": []}, "query"),
    (Operation.KNOWLEDGE_QUERY, {"query": ["q"] * 101}, "query"),
    (Operation.KNOWLEDGE_QUERY, {"query": [""]}, "query"),
    (Operation.KNOWLEDGE_QUERY, {"query": ["q" * 4097]}, "query"),
    (Operation.KNOWLEDGE_QUERY, {"query": ["q"], "results_limit": 0}, "results_limit"),
    (Operation.KNOWLEDGE_QUERY, {"query": ["q"], "score_threshold": 1.1}, "score_threshold"),
    (Operation.KNOWLEDGE_QUERY, {"query": ["q"], "score_threshold": True}, "score_threshold"),
    (Operation.MEMORY_RESET, {}, "command_type"),
    (Operation.MEMORY_RESET, {"command_type": ["all"]}, "command_type"),
    (Operation.MEMORY_RESET, {"command_type": "short"}, "command_type"),
]


@pytest.mark.parametrize(("operation", "value"), GOOD)
def test_an_input_within_its_rules_passes(operation: Operation, value: dict[str, Any]) -> None:
    """The bounds themselves are inside."""
    check_input(operation, value)


@pytest.mark.parametrize(("operation", "value", "field"), BAD)
def test_an_input_that_breaks_a_rule_is_refused_by_the_name_of_its_field(
    operation: Operation, value: dict[str, Any], field: str
) -> None:
    """One sentence that names the field."""
    with pytest.raises(InputInvalid, match=field):
        check_input(operation, value)
