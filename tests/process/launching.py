"""A launcher for a test: started, used by plain coroutines, and closed with nothing left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from crewai_sidecar import linux
from crewai_sidecar.frames import Configure, Event, Exited, FrameError, Job, Result
from crewai_sidecar.runner.launcher import READY_SECONDS, Child, Launcher, Observer
from crewai_sidecar.runner.process_tree import marked
from crewai_sidecar.runner.server_process import PING_SECONDS

REPOSITORY = Path(__file__).parents[2]


@contextlib.asynccontextmanager
async def launched(
    directory: Path,
    registry: str = "tests.crews.every:crews",
    *,
    warm: int = 1,
    observer: Observer | None = None,
    start_directory: Path = REPOSITORY,
    inherit_fd: int | None = None,
    max_event_bytes: int = 262_144,
    max_output_bytes: int = 4_194_304,
    ready_seconds: float = READY_SECONDS,
    ping_seconds: float = PING_SECONDS,
) -> AsyncIterator[Launcher]:
    """Give a started launcher; afterwards no process and no file of it is left."""
    launcher, marker = Launcher(ready_seconds=ready_seconds, ping_seconds=ping_seconds), uuid.uuid4().hex
    root = directory / "runs"
    try:
        await launcher.start(
            Configure(
                registry=registry,
                start_directory=str(start_directory),
                max_event_bytes=max_event_bytes,
                max_output_bytes=max_output_bytes,
            ),
            run_root=root,
            warm=warm,
            marker=marker,
            inherit_fd=inherit_fd,
            observer=observer,
        )
        yield launcher
    finally:
        await launcher.close()
    assert marked(marker) == []
    assert not root.exists()


class Shared:
    """One launcher for many tests, in a loop of its own: starting one costs seconds, a child of it milliseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, launcher: Launcher) -> None:
        self._loop = loop
        self._launcher = launcher

    def run(self, scenario: Callable[[Launcher], Awaitable[None]]) -> None:
        """Run one test's scenario to its end."""

        async def whole() -> None:
            await scenario(self._launcher)

        asyncio.run_coroutine_threadsafe(whole(), self._loop).result()


@contextlib.contextmanager
def shared(
    directory: Path, make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop, **options: Any
) -> Iterator[Shared]:
    """Give a launcher of every test crew; afterwards no process and no file of it is left."""
    loop = make_loop()
    thread = threading.Thread(target=loop.run_forever, name="shared launcher")
    thread.start()

    def wait(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    try:
        context = launched(directory, **options)
        launcher = wait(context.__aenter__())
        try:
            yield Shared(loop, launcher)
        finally:
            wait(context.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def start(child: Child, crew_id: str, operation: str = "run", training: Path | None = None, **inputs: Any) -> None:
    """Send a job."""
    directory = None if training is None else str(training)
    child.send(Job(action_id="a", crew_id=crew_id, operation=operation, input=inputs, training_directory=directory))


async def read(child: Child) -> tuple[list[Event], Result | None]:
    """Take a child's frames to the end; what it says that is no frame ends it too."""
    events: list[Event] = []
    with contextlib.suppress(FrameError):
        async for message in child.frames():
            match message:
                case Event():
                    events.append(message)
                case Result():
                    return events, message
    return events, None


async def perform(
    launcher: Launcher, crew_id: str, operation: str = "run", training: Path | None = None, **inputs: Any
) -> tuple[list[Event], Result | None, Exited]:
    """Run one job to its end."""
    child = await launcher.take()
    assert child.error is None
    start(child, crew_id, operation, training, **inputs)
    events, result = await read(child)
    if result is None:
        child.kill()
    return events, result, await child.exited


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Wait for a condition outside this process; give what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to be"
        await asyncio.sleep(0.005)
    return found


def running(pid: int) -> bool:
    """Whether a process is there and not only a zombie."""
    process = linux.processes().get(pid)
    return process is not None and not process.zombie
