"""From what a crew returns to what the contract promises: strict JSON of a known shape and size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from crewai_sidecar import frames, jsontext
from crewai_sidecar.child.plain import Plain

__all__ = ["Output", "bounded", "crew_output", "sealed"]

_SLACK = 4096
"""Bytes of a result's frame that are not its output."""

_SANITIZED = "sanitized"


class Output(NamedTuple):
    """An output that fits, whether it had to be cut for it, and how many bytes it would have had."""

    value: dict[str, Any]
    truncated: bool
    size: int


def crew_output(value: Any) -> dict[str, Any]:
    """Shape what a crew's kickoff or replay returned; `sanitized` is set where it was not strict JSON."""
    walk = Plain()
    if isinstance(value, Mapping):
        shaped = walk.value(value)
        if "raw" not in shaped:
            shaped = {"raw": _text(shaped), "json_dict": shaped}
    elif not isinstance(value, str) and hasattr(value, "raw"):
        shaped = {
            "raw": walk.value(value.raw),
            "pydantic": walk.value(_model(getattr(value, "pydantic", None))),
            "json_dict": walk.value(getattr(value, "json_dict", None)),
            "tasks_output": [_task(walk, task) for task in _list(getattr(value, "tasks_output", None))],
            "token_usage": walk.value(getattr(value, "token_usage", None) or {}),
        }
    else:
        clean = walk.value(value)
        shaped = {"raw": "" if clean is None else _text(clean)}
        if isinstance(value, BaseModel):
            shaped["pydantic"] = clean
    return _completed(shaped, walk)


def sealed(output: dict[str, Any]) -> dict[str, Any]:
    """Make any other operation's output plain, with `sanitized` set where that changed it."""
    walk = Plain()
    clean: dict[str, Any] = walk.value(output)
    if walk.changed or any(isinstance(one, dict) and one.get(_SANITIZED) for one in _list(clean.get("results"))):
        clean[_SANITIZED] = True
    return clean


def bounded(output: dict[str, Any], most: int) -> Output:
    """Cut an output to `most` bytes of JSON: `raw` is cut and the other parts dropped, results from the end."""
    most = min(most, frames.MAX_FRAME_BYTES - _SLACK)
    size = len(jsontext.encode(output))
    if size <= most:
        return Output(output, truncated=False, size=size)
    results = output.get("results")
    if isinstance(results, list):
        return Output(_fewer(output, results, most), truncated=True, size=size)
    if isinstance(output.get("raw"), str):
        return Output(_shorter(output, most), truncated=True, size=size)
    return Output({"status": "completed"}, truncated=True, size=size)


def _completed(shaped: dict[str, Any], walk: Plain) -> dict[str, Any]:
    """Give the promised members their promised kinds."""
    kinds: dict[str, tuple[type | tuple[type, ...], Any]] = {
        "token_usage": (dict, {}),
        "tasks_output": (list, []),
        "json_dict": ((dict, type(None)), None),
        "pydantic": ((dict, type(None)), None),
    }
    if not isinstance(shaped["raw"], str):
        walk.changed = True
        shaped["raw"] = "" if shaped["raw"] is None else _text(shaped["raw"])
    for name, (kind, default) in kinds.items():
        if name not in shaped:
            shaped[name] = default
        elif not isinstance(shaped[name], kind):
            walk.changed = True
            shaped[name] = default
    if walk.changed:
        shaped[_SANITIZED] = True
    return shaped


def _task(walk: Plain, task: Any) -> Any:
    """One task's output without its messages, which are prompts."""
    fields = getattr(type(task), "model_fields", None)
    if isinstance(fields, Mapping):
        task = {name: getattr(task, name, None) for name in fields}
    if not isinstance(task, Mapping):
        return walk.value(task)
    kept = {name: one for name, one in task.items() if name != "messages"}
    if "pydantic" in kept:
        kept["pydantic"] = _model(kept["pydantic"])
    return walk.value(kept)


def _model(value: Any) -> Any:
    """A replayed output comes with a bare BaseModel where there was a model: nothing is known of it."""
    return None if type(value) is BaseModel else value


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else jsontext.encode(value).decode("ascii")


def _shorter(output: dict[str, Any], most: int) -> dict[str, Any]:
    kept: dict[str, Any] = {"raw": "", "token_usage": {}, "tasks_output": [], "json_dict": None, "pydantic": None}
    if output.get(_SANITIZED):
        kept[_SANITIZED] = True
    usage = output.get("token_usage")
    if isinstance(usage, dict) and len(jsontext.encode(usage)) <= min(1024, most // 4):
        kept["token_usage"] = usage
    return {**kept, "raw": _fitting(output["raw"], most - len(jsontext.encode(kept)))}


def _fewer(output: dict[str, Any], results: list[Any], most: int) -> dict[str, Any]:
    """Shorten each result to an equal share; what has no text to cut and is over it is dropped to its kind."""
    kept = {**output, "results": []}
    share = max(0, (most - len(jsontext.encode(kept))) // max(1, len(results)) - 1)
    for one in results:
        if len(jsontext.encode(one)) <= share:
            kept["results"].append(one)
        elif isinstance(one, dict) and isinstance(one.get("raw"), str):
            kept["results"].append(_shorter(one, share))
        elif isinstance(one, dict) and isinstance(one.get("content"), str):
            bare = {"content": ""}
            kept["results"].append({"content": _fitting(one["content"], share - len(jsontext.encode(bare)))})
    return kept


def _fitting(text: str, room: int) -> str:
    """Return the longest beginning of a text whose JSON form has at most `room` bytes beside its quotes."""
    low, high = 0, min(len(text), max(0, room))
    while low < high:
        middle = (low + high + 1) // 2
        if len(jsontext.encode(text[:middle])) - 2 <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low]
