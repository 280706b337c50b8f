"""What an Action asks of a crew, on anything that has CrewAI's methods.

The line between "nothing has started" and "the provider may have been called" is the call of the crew's own method: a
crew that does not build, that has no such method, or whose input is wrong is on this side of it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from crewai.hooks import HookAborted

from crewai_sidecar import frames
from crewai_sidecar.child.channel import Channel
from crewai_sidecar.child.crewai_adapter import follow, output
from crewai_sidecar.child.crewai_adapter.stop import Stopped, Stopper
from crewai_sidecar.child.crewai_adapter.stream import FEED
from crewai_sidecar.child.plain import class_name
from crewai_sidecar.child.registry import METHODS, Registry

__all__ = ["OperationUnsupported", "perform"]


class OperationUnsupported(Exception):
    """Raised for a crew without a method for the operation."""


def perform(
    job: frames.Job, registry: Registry, channel: Channel, stopper: Stopper, *, max_output_bytes: int
) -> frames.Result:
    """Do the job and return its result, whatever the crew raises, sys.exit and KeyboardInterrupt among it.

    After it has returned no event follows.
    """
    FEED.attach(channel)
    work = _Work(job, registry, channel, stopper)
    try:
        made = _OPERATIONS[job.operation](work)
        FEED.flush()
        channel.close()
        fitting = output.bounded(output.sealed(made), max_output_bytes)
    except BaseException as error:  # noqa: BLE001  # this is the one place where a crew's failure becomes a result
        FEED.flush()
        channel.close()
        return frames.Result(
            error_type=class_name(error), provider_started=work.started, events_dropped=channel.dropped
        )
    return frames.Result(
        output=fitting.value,
        output_truncated=fitting.truncated,
        output_bytes=fitting.size if fitting.truncated else None,
        events_dropped=channel.dropped,
    )


class _Work:
    """One job, and whether the crew's own code has been called for it."""

    def __init__(self, job: frames.Job, registry: Registry, channel: Channel, stopper: Stopper) -> None:
        self.job = job
        self.input = job.input
        self.channel = channel
        self.stopper = stopper
        self.started = False
        self._registry = registry
        self._loop: asyncio.AbstractEventLoop | None = None

    def call(self, **arguments: Any) -> Any:
        """Build a crew and call its method for the operation; return what it gives once it has been waited for."""
        self.stopper.check()
        crew, _ = self._settled(self._registry.build(self.job.crew_id))
        method = _method(crew, self.job.operation)
        FEED.prepare(crew)
        self.started = True
        value, awaited = self._settled(method(**arguments))
        if not follow.is_stream(value):
            return value
        if follow.is_async_stream(value, awaited=awaited):
            return self._settled(follow.follow_async(value, FEED, self.stopper))[0]
        return follow.follow(value, FEED, self.stopper)

    def _settled(self, value: Any) -> tuple[Any, bool]:
        """Wait for what has to be awaited, in the one event loop of this child; say whether anything had to be."""
        awaited = False
        while inspect.isawaitable(value):
            awaited = True
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            task = self._loop.create_task(_wait(value))
            with self.stopper.cancelling(self._loop, task):
                value = self._loop.run_until_complete(task)
        return value, awaited


def _run(work: _Work) -> dict[str, Any]:
    return output.crew_output(work.call(inputs=work.input))


def _batch_run(work: _Work) -> dict[str, Any]:
    """Run each element with a fresh crew, in sequence. A failed element is one of the results."""
    inputs = work.input["inputs"]
    results: list[dict[str, Any]] = []
    for index, element in enumerate(inputs):
        try:
            result = output.crew_output(work.call(inputs=element))
        except (HookAborted, Stopped, asyncio.CancelledError) as error:
            if work.stopper.ordered:
                raise
            result = {"error_type": class_name(error)}
        except BaseException as error:  # as for a run: an element's failure is not the batch's
            if not work.started:
                raise
            result = {"error_type": class_name(error)}
        results.append(result)
        FEED.flush()
        work.channel.emit("input_completed", {"index": index, "error_type": result.get("error_type")})
    return {"results": results, "count": len(results)}


def _replay(work: _Work) -> dict[str, Any]:
    return output.crew_output(work.call(task_id=work.input["task_id"], inputs=work.input.get("inputs")))


def _train(work: _Work) -> dict[str, Any]:
    name, iterations = work.input["artifact_name"], work.input["n_iterations"]
    if work.job.training_directory is None:
        raise OperationUnsupported
    os.makedirs(work.job.training_directory, mode=0o700, exist_ok=True)  # noqa: PTH103  # mode of the last part only
    artifact = Path(work.job.training_directory, name)
    work.call(n_iterations=iterations, filename=str(artifact), inputs=work.input.get("inputs"))
    return {"status": "completed", "artifact_name": name, "n_iterations": iterations}


def _test(work: _Work) -> dict[str, Any]:
    iterations, judge = work.input["n_iterations"], work.input["eval_llm"]
    work.call(n_iterations=iterations, eval_llm=judge, inputs=work.input.get("inputs"))
    return {"status": "completed", "n_iterations": iterations, "eval_llm": judge}


def _knowledge_query(work: _Work) -> dict[str, Any]:
    found = work.call(
        query=work.input["query"],
        results_limit=work.input.get("results_limit", 3),
        score_threshold=work.input.get("score_threshold", 0.35),
    )
    return {"results": [] if found is None else list(found) if isinstance(found, list | tuple) else [found]}


def _memory_reset(work: _Work) -> dict[str, Any]:
    work.call(command_type=work.input["command_type"])
    return {"status": "completed", "command_type": work.input["command_type"]}


_OPERATIONS: dict[str, Callable[[_Work], dict[str, Any]]] = {
    "run": _run,
    "batch_run": _batch_run,
    "replay": _replay,
    "train": _train,
    "test": _test,
    "knowledge_query": _knowledge_query,
    "memory_reset": _memory_reset,
}


def _method(crew: Any, operation: str) -> Callable[..., Any]:
    for name in METHODS[operation]:
        method = getattr(crew, name, None)
        if callable(method):
            return method  # type: ignore[no-any-return]  # a crew is anything
    raise OperationUnsupported(f"the crew has none of {', '.join(METHODS[operation])}")


async def _wait(value: Awaitable[Any]) -> Any:
    return await value
