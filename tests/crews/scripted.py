"""Real CrewAI crews with a model that follows a script: no network, no key, and the same events as any other model."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.events.types.llm_events import LLMCallType
from crewai.llms.base_llm import llm_call_context
from crewai.rag.chromadb import config
from crewai.tools import BaseTool
from crewai_core.paths import db_storage_path
from pydantic import BaseModel, PrivateAttr


def act(tool: str, **arguments: Any) -> str:
    """Write a step that calls a tool, in the text protocol of CrewAI's agents."""
    return f"Thought: I use the tool.\nAction: {tool}\nAction Input: {json.dumps(arguments)}"


def final(text: str) -> str:
    """Write a step that ends a task."""
    return f"Thought: I now know the final answer\nFinal Answer: {text}"


class ScriptedLLM(BaseLLM):
    """Says one line of its script a call, word by word where it is asked to stream, and begins anew after the last."""

    script: list[str] = []  # noqa: RUF012  # a field of a model, which copies it
    delay: float = 0.0
    _next: int = PrivateAttr(default=0)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def call(
        self,
        messages: Any,
        tools: Any = None,
        callbacks: Any = None,
        available_functions: Any = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: Any = None,
    ) -> str:
        """Say the next line."""
        with self._lock:
            index = self._next
            self._next += 1
        text = self.script[index % len(self.script)]
        place = {"from_task": from_task, "from_agent": from_agent, "call_type": LLMCallType.LLM_CALL}
        with llm_call_context():
            self._emit_call_started_event(
                messages=messages, tools=tools, callbacks=callbacks, from_task=from_task, from_agent=from_agent
            )
            time.sleep(self.delay)
            if self._effective_stream():
                for word in text.split(" "):
                    self._emit_stream_chunk_event(chunk=f"{word} ", response_id=f"response-{index}", **place)
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            self._track_token_usage_internal(usage)
            self._emit_call_completed_event(
                response=text, messages=messages, usage=usage, response_id=f"response-{index}", **place
            )
        return text

    def supports_function_calling(self) -> bool:
        """Say no: the text protocol is used."""
        return False

    def get_context_window_size(self) -> int:
        """Be large enough never to be summarised."""
        return 128_000

    def get_input_tokens_count(self, *_: Any, **__: Any) -> int:
        """Count without a word in the log."""
        return 10


class EchoTool(BaseTool):
    """Says what it is told."""

    name: str = "echo"
    description: str = "Echo the text back."

    def _run(self, text: str) -> str:
        return f"echo of {text}"


class Verdict(BaseModel):
    """A structured answer."""

    score: int


def two_tasks(delay: float = 0.0, **options: Any) -> Crew:
    """Two agents, two tasks, one tool, three model calls."""
    research = ScriptedLLM(
        model="scripted/research", script=[act("echo", text="secret argument"), final("notes")], delay=delay
    )
    writing = ScriptedLLM(model="scripted/writing", script=[final("the text")], delay=delay)
    researcher = Agent(role="Researcher", goal="Research", backstory="b", llm=research, tools=[EchoTool()])
    writer = Agent(role="Writer", goal="Write", backstory="b", llm=writing)
    first = Task(name="research", description="Research {topic}", expected_output="notes", agent=researcher)
    second = Task(description="Write about {topic}", expected_output="text", agent=writer, context=[first])
    return Crew(name="pair", agents=[researcher, writer], tasks=[first, second], **options)


def streaming() -> Crew:
    """The same crew, whose kickoff gives CrewAI's own streaming output."""
    return two_tasks(stream=True)


def structured() -> Crew:
    """One task with a structured answer."""
    agent = Agent(
        role="Judge", goal="Judge", backstory="b", llm=ScriptedLLM(model="scripted/judge", script=['{"score": 7}'])
    )
    task = Task(name="judge", description="Judge", expected_output="json", agent=agent, output_pydantic=Verdict)
    return Crew(agents=[agent], tasks=[task])


def slow(**options: Any) -> Crew:
    """The same two tasks with a model that takes its time, for ever."""
    agent = Agent(
        role="Slow",
        goal="g",
        backstory="b",
        max_iter=100_000,
        llm=ScriptedLLM(model="scripted/slow", script=[act("echo", text="again")], delay=0.2),
        tools=[EchoTool()],
    )
    return Crew(agents=[agent], tasks=[Task(name="slow", description="d", expected_output="o", agent=agent)], **options)


class Awaits:
    """A crew whose kickoff is CrewAI's asynchronous one."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def kickoff_async(self, inputs: dict[str, Any]) -> Any:
        return self._crew.kickoff_async(inputs=inputs)


class PassesOn:
    """A crew of a user's own that passes a real crew's chunks on."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        crew = two_tasks(stream=True)
        stream: Any = crew.kickoff(inputs=inputs)
        yield from stream
        return stream.result


class Wrapped:
    """A crew of a user's own around a real one: CrewAI's bus tells what happens inside."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        return two_tasks().kickoff(inputs=inputs)


class Places:
    """A real crew that tells where its process keeps its files."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        two_tasks().kickoff(inputs=inputs)
        storage = Path(os.environ["CREWAI_STORAGE_DIR"])
        places = {
            "storage": str(storage),
            "chroma": config._default_settings().persist_directory,
            "temporary": tempfile.gettempdir(),
            "home": str(Path.home()),
            "cwd": str(Path.cwd()),
            "database": str(db_storage_path()),
        }
        files = [path.name for path in storage.rglob("*")]
        return {"raw": "", "json_dict": {"run": str(storage.parent), "places": places, "files": files}}


class Guarded:
    """A real crew in a process that counts every attempt to leave the machine."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        attempts: list[str] = []
        connect, look_up = socket.socket.connect, socket.getaddrinfo

        def guarded(one: socket.socket, address: Any) -> Any:
            if one.family != socket.AF_UNIX:
                attempts.append(str(address))
            return connect(one, address)

        def counted(*arguments: Any, **options: Any) -> Any:
            attempts.append(str(arguments[0]))
            return look_up(*arguments, **options)

        socket.socket.connect = guarded  # type: ignore[method-assign,assignment]
        socket.getaddrinfo = counted
        two_tasks().kickoff(inputs=inputs)
        return {"raw": "guarded", "json_dict": {"attempts": attempts}}


crews: dict[str, Any] = {
    "pair": two_tasks,
    "streaming": streaming,
    "structured": structured,
    "slow": slow,
    "slow_streaming": lambda: slow(stream=True),
    "slow_awaits": lambda: Awaits(slow()),
    "slow_awaits_stream": lambda: Awaits(slow(stream=True)),
    "awaits": lambda: Awaits(two_tasks()),
    "awaits_stream": lambda: Awaits(two_tasks(stream=True)),
    "passes_on": PassesOn,
    "wrapped": Wrapped,
    "guarded": Guarded,
    "places": Places,
}
