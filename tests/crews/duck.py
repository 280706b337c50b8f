"""Crews that only look like CrewAI's: every shape of crew, of output and of stream that a registry may bring."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel


class Answer:
    """Answers with a text."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        return f"hello {inputs.get('topic', 'world')}"


class Returns:
    """Answers with whatever it was made with."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        return self.value


class Raises:
    """Raises what it was made with."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        raise self.error


class Nameless(type):
    """A metaclass whose classes do not say what they are called."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]  # the very thing
        raise RuntimeError("no name")


class Unnamed(Exception, metaclass=Nameless):
    """An exception that does not say what it is called."""


class Awaited:
    """Has only kickoff_async."""

    async def kickoff_async(self, inputs: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return "awaited"


class Native:
    """Has only akickoff."""

    async def akickoff(self, inputs: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return "native"


class Waits:
    """Waits for ever, in an await that can be cancelled."""

    async def kickoff_async(self, inputs: dict[str, Any]) -> Any:
        if "marks" in inputs:
            Path(inputs["marks"], "begun").touch()  # noqa: ASYNC240  # the loop has nothing else to do
        await asyncio.sleep(1000)


class Model(BaseModel):
    """An output of a user's own."""

    n: int
    nested: BaseModel | None = None


class Weird:
    """Has raw, and parts that no JSON can carry."""

    raw = "half \ud83d of a pair"
    token_usage: ClassVar[dict[str, Any]] = {"total_tokens": math.nan}
    tasks_output: ClassVar[list[Any]] = [{"raw": b"\xff\xfe", "messages": ["a prompt"]}, {1: math.inf}]
    json_dict: ClassVar[dict[str, Any]] = {"set": {1}}
    pydantic = Model(n=1, nested=Model(n=2))


def circular() -> dict[str, Any]:
    """A value that holds itself."""
    value: dict[str, Any] = {"raw": "round"}
    value["self"] = value
    return value


@dataclass
class Chunk:
    """A chunk of a stream, with fields beside its text."""

    content: str
    tool_call: dict[str, Any] | None = None
    index: int = 0
    _secret: str = "private"
    client: object = field(default_factory=object)


class Stream:
    """A streaming output that can be iterated once; `result` is there at the end only."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self.done = False

    def __iter__(self) -> Iterator[Chunk]:
        for index, text in enumerate(self.texts):
            yield Chunk(text, {"tool_name": "search", "score": math.nan}, index)
        self.done = True

    @property
    def result(self) -> str:
        if not self.done:
            raise RuntimeError("Streaming has not completed yet")
        return "".join(self.texts)


class AsyncStream(Stream):
    """The same, asynchronously."""

    __iter__ = None  # type: ignore[assignment]  # not iterable in any other way

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        for index, text in enumerate(self.texts):
            await asyncio.sleep(0)
            yield Chunk(text, index=index)
        self.done = True


class Streams:
    """Answers with a stream."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        return Stream(inputs.get("texts", ["one ", "two"]))


class StreamsAsync:
    """Answers with an asynchronous stream, after an await."""

    async def kickoff_async(self, inputs: dict[str, Any]) -> Any:
        return AsyncStream(inputs.get("texts", ["one ", "two"]))


class Generates:
    """Answers with a generator, whose return value is its result."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        yield Chunk("a")
        yield "b"
        yield {"content": "c", "index": 2}
        return "generated"


class Endless:
    """Streams until it is told to stop."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        if "marks" in inputs:
            Path(inputs["marks"], "begun").touch()
        while True:
            yield "again "


class Element:
    """One element of a batch: fails where its input says so, and counts what was done with this object before."""

    def __init__(self) -> None:
        self.used = 0

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        self.used += 1
        if inputs.get("fail") == "exit":
            raise SystemExit(4)
        if inputs.get("fail"):
            raise ValueError("a text that nobody may see")
        return {"raw": str(inputs.get("n")), "used": self.used}


class Everything:
    """Has a method for each operation and answers with the arguments it was called with."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        return {"inputs": inputs}

    def replay(self, task_id: str, inputs: dict[str, Any] | None = None) -> Any:
        return {"task_id": task_id, "inputs": inputs}

    def train(self, n_iterations: int, filename: str, inputs: dict[str, Any] | None = None) -> None:
        with open(filename, "w") as artifact:  # noqa: PTH123  # as CrewAI does it
            artifact.write(f"{n_iterations} {inputs}")

    def test(self, n_iterations: int, eval_llm: str, inputs: dict[str, Any] | None = None) -> None:
        assert (n_iterations, eval_llm, inputs) == (2, "judge", None)

    def query_knowledge(self, query: list[str], results_limit: int, score_threshold: float) -> Any:
        return [{"content": query[0], "limit": results_limit, "threshold": score_threshold}]

    def reset_memories(self, command_type: str) -> None:
        assert command_type == "all"


class KnowsAsync:
    """Has only aquery_knowledge."""

    async def aquery_knowledge(self, query: list[str], results_limit: int, score_threshold: float) -> Any:
        return None


class CrewBase:
    """An object that is no crew but makes one, as CrewAI's @CrewBase does."""

    def crew(self) -> Answer:
        return Answer()


class Prints:
    """Prints a hundred megabytes, or as many as it is told."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        line = "x" * 1023 + "\n"
        for _ in range(inputs.get("megabytes", 100)):
            print(line * 1024, end="")  # noqa: T201  # the very thing
        return "printed"


def fails() -> Any:
    """A factory that does not build."""
    raise LookupError("no such model: s3cret")


def awaited_factory() -> Any:
    """A coroutine function as a factory."""

    async def make() -> Answer:
        return Answer()

    return make()


crews: dict[str, Any] = {
    "answer": Answer,
    "object": Element(),
    "fresh": Element,
    "awaited": Awaited,
    "native": Native,
    "waits": Waits,
    "none": lambda: Returns(None),
    "dict": lambda: Returns({"score": 1, "nan": math.nan}),
    "raw_dict": lambda: Returns({"raw": "as it is", "more": [1]}),
    "raw_number": lambda: Returns({"raw": 5, "token_usage": None}),
    "list": lambda: Returns([1, "two"]),
    "model": lambda: Returns(Model(n=1, nested=Model(n=2))),
    "weird": lambda: Returns(Weird()),
    "circular": lambda: Returns(circular()),
    "big": lambda: Returns({"raw": "\u00e9" * 3_000_000, "tasks_output": [{"raw": "dropped"}]}),
    "huge_integer": lambda: Returns({"raw": "n", "n": 1 << 100_000}),
    "exits": lambda: Raises(SystemExit(7)),
    "interrupts": lambda: Raises(KeyboardInterrupt()),
    "closes": lambda: Raises(GeneratorExit()),
    "raises": lambda: Raises(ValueError("a text that nobody may see: s3cret")),
    "unnamed": lambda: Raises(Unnamed()),
    "long_name": lambda: Raises(type("\U00010330" * 300, (Exception,), {})()),
    "odd_name": lambda: Raises(type('a <b>."c"\n', (Exception,), {})()),
    "fails": fails,
    "awaited_factory": awaited_factory,
    "streams": Streams,
    "streams_async": StreamsAsync,
    "generates": Generates,
    "endless": Endless,
    "everything": Everything,
    "everything_object": Everything(),
    "knows_async": KnowsAsync,
    "crew_base": CrewBase,
    "crew_base_object": CrewBase(),
    "prints": Prints,
}


def provide() -> dict[str, Any]:
    """Give the registry when called."""
    return crews
