"""The rules of each operation's input: what can be said before any crew is asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from crewai_sidecar.errors import InputInvalid
from crewai_sidecar.model import Operation

__all__ = ["check_input"]

_ARTIFACT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MEMORIES = ("memory", "knowledge", "agent_knowledge", "kickoff_outputs", "all")


def check_input(operation: Operation, value: dict[str, Any]) -> None:
    """Check an input against its operation's rules.

    Raises InputInvalid, whose text names the field.
    """
    _RULES[operation](value)


def _run(value: dict[str, Any]) -> None:
    """A run's input is the crew's own affair."""


def _batch_run(value: dict[str, Any]) -> None:
    _only(value, "inputs")
    inputs = value.get("inputs")
    if not isinstance(inputs, list) or not 1 <= len(inputs) <= 100 or any(type(one) is not dict for one in inputs):
        raise InputInvalid("inputs must be a list of 1 to 100 objects.")


def _replay(value: dict[str, Any]) -> None:
    _only(value, "task_id", "inputs")
    _text(value, "task_id", 256)
    _inputs(value)


def _train(value: dict[str, Any]) -> None:
    _only(value, "n_iterations", "artifact_name", "inputs")
    _count(value, "n_iterations")
    name = value.get("artifact_name")
    if not isinstance(name, str) or not _ARTIFACT.fullmatch(name):
        raise InputInvalid("artifact_name must be a letter or digit, then up to 127 letters, digits, '.', '_' or '-'.")
    _inputs(value)


def _test(value: dict[str, Any]) -> None:
    _only(value, "n_iterations", "eval_llm", "inputs")
    _count(value, "n_iterations")
    _text(value, "eval_llm", 256)
    _inputs(value)


def _knowledge_query(value: dict[str, Any]) -> None:
    _only(value, "query", "results_limit", "score_threshold")
    query = value.get("query")
    if not isinstance(query, list) or not 1 <= len(query) <= 100:
        raise InputInvalid("query must be a list of 1 to 100 texts.")
    for text in query:
        _text({"query": text}, "query", 4096)
    if "results_limit" in value:
        _count(value, "results_limit")
    threshold = value.get("score_threshold", 0.0)
    if type(threshold) not in (int, float) or not 0 <= threshold <= 1:
        raise InputInvalid("score_threshold must be a number from 0 to 1.")


def _memory_reset(value: dict[str, Any]) -> None:
    _only(value, "command_type")
    if value.get("command_type") not in _MEMORIES:
        raise InputInvalid(f"command_type must be one of {', '.join(_MEMORIES)}.")


def _only(value: dict[str, Any], *names: str) -> None:
    for name in value:
        if name not in names:
            raise InputInvalid(f"{name!r} is not a field of this operation's input; it has {', '.join(names)}.")


def _count(value: dict[str, Any], name: str) -> None:
    number = value.get(name)
    if type(number) is not int or not 1 <= number <= 100:  # a bool is an int to isinstance
        raise InputInvalid(f"{name} must be an integer from 1 to 100.")


def _text(value: dict[str, Any], name: str, most: int) -> None:
    text = value.get(name)
    if not isinstance(text, str) or not 1 <= len(text.encode("utf-8")) <= most or any(c < " " for c in text):
        raise InputInvalid(f"{name} must be a text of 1 to {most:,} bytes without control characters.")


def _inputs(value: dict[str, Any]) -> None:
    if "inputs" in value and type(value["inputs"]) is not dict:
        raise InputInvalid("inputs must be an object.")


_RULES: dict[Operation, Callable[[dict[str, Any]], None]] = {
    Operation.RUN: _run,
    Operation.BATCH_RUN: _batch_run,
    Operation.REPLAY: _replay,
    Operation.TRAIN: _train,
    Operation.TEST: _test,
    Operation.KNOWLEDGE_QUERY: _knowledge_query,
    Operation.MEMORY_RESET: _memory_reset,
}
