"""Duck-typed crews for process tests. An effect is a line in a file that the input names."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def effect(inputs: dict[str, Any], mark: str | None = None) -> None:
    """Act on the world: one line, appended at once."""
    with Path(inputs["effects"]).open("a") as file:
        file.write(f"{mark or inputs.get('mark', 'effect')}\n")


class Crew:
    """Acts, waits if asked to, answers."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        effect(inputs)
        time.sleep(inputs.get("seconds", 0))
        if "fail" in inputs:
            raise ValueError("a text that nobody may see: s3cret")
        return inputs.get("answer", "done")


class Ending:
    """Acts, then ends its process or thread in the way the input names."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        effect(inputs)
        match inputs["how"]:
            case "sys.exit":
                sys.exit(3)
            case "keyboard":
                raise KeyboardInterrupt
            case "os._exit":
                os._exit(0)
            case "segfault":
                ctypes.string_at(0)
            case "generator":
                raise GeneratorExit
            case "close_fds":
                os.closerange(3, 256)


class Stubborn:
    """Acts and then will not stop."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        effect(inputs)
        while True:
            try:
                time.sleep(1000)
            except BaseException:  # noqa: BLE001, S112  # the fault that this crew stands for
                continue


class Leaver:
    """Leaves a process behind that has left its group and holds every file open, then answers or waits."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        code = "import os,time; os.setsid(); print(os.getpid(), flush=True); time.sleep(1000)"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, close_fds=False, text=True)
        assert process.stdout is not None
        pid = process.stdout.readline().strip()
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        effect(inputs, f"stranger {pid}")
        time.sleep(inputs.get("seconds", 0))
        return "left"


class Chunk:
    def __init__(self, content: str) -> None:
        self.content = content


class Streaming:
    """Streams chunks, in the shape of CrewAI's streaming output."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        return _Stream(inputs)


class _Stream:
    def __init__(self, inputs: dict[str, Any]) -> None:
        self._inputs = inputs

    def __iter__(self) -> Iterator[Chunk]:
        effect(self._inputs)
        for number in range(self._inputs["chunks"]):
            yield Chunk(self._inputs.get("text") or f"word-{number} ")
            time.sleep(self._inputs.get("pause", 0))

    @property
    def result(self) -> str:
        return "streamed"


class Noisy:
    """Writes a flood to standard output."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        for _ in range(inputs["megabytes"]):
            sys.stdout.write("x" * (1 << 20))
            sys.stdout.flush()
        return "written"


class Large:
    """Returns an output of the asked size."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        effect(inputs)
        return "x" * inputs["bytes"]


class Odd:
    """Returns what strict JSON has no form for."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        return {"raw": "lone \ud800 end", "nan": float("nan"), "bytes": b"\xff\x00", "set": {1}}


class Everything:
    """Has every operation."""

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        if inputs.get("fail"):
            raise ValueError("no")
        effect(inputs)
        return "ran"

    def replay(self, task_id: str, inputs: dict[str, Any] | None = None) -> Any:
        return f"replayed {task_id}"

    def train(self, n_iterations: int, filename: str, inputs: dict[str, Any] | None = None) -> None:
        Path(filename).write_text(str(n_iterations))

    def test(self, n_iterations: int, eval_llm: str, inputs: dict[str, Any] | None = None) -> None:
        pass

    def query_knowledge(self, query: list[str], results_limit: int = 3, score_threshold: float = 0.35) -> list[Any]:
        return [{"content": text, "limit": results_limit, "threshold": score_threshold} for text in query]

    def reset_memories(self, command_type: str) -> None:
        pass


def unbuilt() -> Any:
    raise RuntimeError("the factory has no key: s3cret")


crews = {
    "crew": Crew,
    "ending": Ending,
    "stubborn": Stubborn,
    "leaver": Leaver,
    "streaming": Streaming,
    "noisy": Noisy,
    "large": Large,
    "odd": Odd,
    "everything": Everything(),
    "unbuilt": unbuilt,
}
