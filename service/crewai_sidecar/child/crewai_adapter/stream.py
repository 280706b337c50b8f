"""From CrewAI's event bus to our events.

Only chunks are delivered in the order of the run: the bus calls their handlers in the thread that emits them. Others
come from its pool of threads and carry their emission number. Prompts, tool arguments and tool results stay here; a
task without a name is not called by its description, which is a prompt, as CrewAI's own events do.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import Any

from crewai.events.event_bus import crewai_event_bus
from crewai.events.types.llm_events import LLMCallCompletedEvent, LLMCallFailedEvent, LLMStreamChunkEvent
from crewai.events.types.task_events import TaskCompletedEvent, TaskStartedEvent
from crewai.events.types.tool_usage_events import ToolUsageErrorEvent, ToolUsageFinishedEvent, ToolUsageStartedEvent
from crewai.hooks import InterceptionPoint, register_hook

from crewai_sidecar.child.channel import Channel

__all__ = ["FEED", "Feed"]

_FLUSH_SECONDS = 10.0
_MOST_ECHOES = 10_000


class Feed:
    """Carries events from the bus to the channel of the child's run. Without a channel there is no run to carry for."""

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._names: dict[str, str] = {}
        self._echoes: Counter[str] | None = None
        self._own: Counter[str] = Counter()
        self._lock = threading.Lock()

    def attach(self, channel: Channel) -> None:
        """Carry what comes from now on to this channel."""
        self._channel = channel

    def prepare(self, crew: Any) -> None:
        """Learn the names of a crew's tasks and have its models stream, where it has any."""
        for task in _listed(crew, "tasks"):
            self._learn(task)
        for agent in (*_listed(crew, "agents"), _attribute(crew, "manager_agent")):
            llm = _attribute(agent, "llm")
            if isinstance(getattr(llm, "stream", ""), bool | None):  # not a method of that name, and not absent
                with contextlib.suppress(Exception):  # a model that cannot be told so stays as it is
                    llm.stream = True

    def flush(self) -> None:
        """Wait for the bus's threads to deliver what has been emitted."""
        crewai_event_bus.flush(timeout=_FLUSH_SECONDS)

    # -- chunks that may come twice -------------------------------------------------------------------------------

    def follow(self) -> None:
        """A streaming output is being read beside the bus: keep account of what both bring."""
        with self._lock:
            self._echoes, self._own = Counter(), Counter()

    def chunk(self, data: dict[str, Any]) -> None:
        """Pass a streaming output's chunk on, unless the bus has brought the same text already."""
        if self._first(str(data.get("content")), own=True):
            self._emit("chunk", data)

    def _first(self, content: str, *, own: bool) -> bool:
        """Whether this text has not come the other way yet; the second copy of each is the one that is left out."""
        with self._lock:
            if self._echoes is None:
                return True
            mine, other = (self._own, self._echoes) if own else (self._echoes, self._own)
            if other[content]:
                other[content] -= 1
                return False
            if len(mine) < _MOST_ECHOES:
                mine[content] += 1
            return True

    # -- the bus --------------------------------------------------------------------------------------------------

    def on_chunk(self, _source: Any, event: LLMStreamChunkEvent) -> None:
        data = {"content": event.chunk, **self._place(event), "channel": "text", "response_id": event.response_id}
        if event.tool_call is not None:
            call = event.tool_call
            data["channel"] = "tool_call"
            data["tool_call"] = {
                "tool_id": call.id,
                "tool_name": call.function.name,
                "arguments": call.function.arguments,
                "index": call.index,
            }
        if self._first(event.chunk, own=False):
            self._emit("chunk", data)

    def on_task_started(self, source: Any, event: TaskStartedEvent) -> None:
        self._emit("task_started", self._task(source, event))

    def on_task_completed(self, source: Any, event: TaskCompletedEvent) -> None:
        self._emit("task_completed", self._task(source, event))

    def on_tool_started(self, _source: Any, event: ToolUsageStartedEvent) -> None:
        self._emit("tool_started", {"tool_name": event.tool_name, **self._fact(event)})

    def on_tool_finished(self, _source: Any, event: ToolUsageFinishedEvent) -> None:
        failed = event.failure is not None
        data = {"tool_name": event.tool_name, "failed": failed, "from_cache": event.from_cache, **self._fact(event)}
        self._emit("tool_finished", data)

    def on_tool_error(self, _source: Any, event: ToolUsageErrorEvent) -> None:
        self._emit("tool_finished", {"tool_name": event.tool_name, "failed": True, **self._fact(event)})

    def on_model_called(self, _source: Any, event: LLMCallCompletedEvent) -> None:
        data = {"model": event.model, "response_id": event.response_id, "failed": False, **self._fact(event)}
        data["finish_reason"] = event.finish_reason
        self._emit("model_called", data)

    def on_model_failed(self, _source: Any, event: LLMCallFailedEvent) -> None:
        self._emit("model_called", {"model": event.model, "response_id": None, "failed": True, **self._fact(event)})

    # -- inside ---------------------------------------------------------------------------------------------------

    def _emit(self, name: str, data: dict[str, Any]) -> None:
        if self._channel is not None:
            self._channel.emit(name, data)

    def _place(self, event: Any) -> dict[str, Any]:
        task_id = event.task_id
        return {"task_id": task_id, "task_name": self._names.get(task_id or ""), "agent_role": event.agent_role}

    def _fact(self, event: Any) -> dict[str, Any]:
        return {**self._place(event), "emission": event.emission_sequence}

    def _task(self, task: Any, event: Any) -> dict[str, Any]:
        self._learn(task)
        role = event.agent_role or _attribute(_attribute(task, "agent"), "role")
        return {**self._fact(event), "agent_role": role}

    def _learn(self, task: Any) -> None:
        name = _attribute(task, "name")
        if isinstance(name, str) and name:
            self._names[str(_attribute(task, "id"))] = name


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001  # a property of a crew's own
        return None


def _listed(crew: Any, name: str) -> list[Any]:
    found = _attribute(crew, name)
    return found if isinstance(found, list) else []


def _prepare(context: Any) -> None:
    """Prepare a crew that is about to begin inside another: in a flow, a tool, or a user's own class."""
    if context.crew is not None:
        FEED.prepare(context.crew)


FEED = Feed()
"""The one feed of a child's one run."""

register_hook(InterceptionPoint.EXECUTION_START, _prepare)
crewai_event_bus.on(LLMStreamChunkEvent)(FEED.on_chunk)
crewai_event_bus.on(TaskStartedEvent)(FEED.on_task_started)
crewai_event_bus.on(TaskCompletedEvent)(FEED.on_task_completed)
crewai_event_bus.on(ToolUsageStartedEvent)(FEED.on_tool_started)
crewai_event_bus.on(ToolUsageFinishedEvent)(FEED.on_tool_finished)
crewai_event_bus.on(ToolUsageErrorEvent)(FEED.on_tool_error)
crewai_event_bus.on(LLMCallCompletedEvent)(FEED.on_model_called)
crewai_event_bus.on(LLMCallFailedEvent)(FEED.on_model_failed)
