"""The launcher with real processes: what a run may do to its child, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crewai_sidecar.errors import RegistryRefused, StartRefused
from crewai_sidecar.frames import Exited, Forked, FrameError, Result, Stop
from crewai_sidecar.linux import descendants
from crewai_sidecar.runner.launcher import Child, Launcher
from crewai_sidecar.runner.process_tree import claim, marked
from tests.process.launching import REPOSITORY, Shared, launched, perform, read, running, shared, start, until

STEP = 2.0


@pytest.fixture(scope="module")
def crews(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A launcher of every test crew."""
    with shared(tmp_path_factory.mktemp("launcher")) as launcher:
        yield launcher


class FaultyLoop(asyncio.SelectorEventLoop):
    """A loop that watches no further descriptor as long as it has a fault."""

    fault: Exception | None = None

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]  # passes all on
        if self.fault is not None:
            raise self.fault
        super().add_reader(fd, callback, *args)


def faulty_loop() -> FaultyLoop:
    """Give the loop that runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FaultyLoop)
    return loop


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A launcher without warm children, on a loop that can be given a fault, whose fork server is often pinged."""
    with shared(tmp_path_factory.mktemp("bare"), FaultyLoop, warm=0, ping_seconds=4.0) as launcher:
        yield launcher


def test_a_child_runs_one_job_and_its_directory_goes_with_it(tmp_path: Path) -> None:
    """The result, then the exit, end a run; fork and exit are observed, and the run's files are removed."""
    seen: list[Forked | Exited] = []

    async def scenario() -> None:
        async with launched(tmp_path, observer=seen.append) as launcher:
            child = await launcher.take()
            assert child.directory.stat().st_mode & 0o777 == 0o700
            start(child, "duck.answer", topic="cats")
            _, result = await read(child)
            assert result is not None
            assert result.output is not None
            assert result.output["raw"] == "hello cats"
            assert await child.exited == Exited(pid=child.pid, code=0, strangers=0)
            await until(lambda: not child.directory.exists())
            assert {type(one) for one in seen if one.pid == child.pid} == {Forked, Exited}

    asyncio.run(scenario())


def test_the_first_child_describes_the_registry(tmp_path: Path) -> None:
    """Ids of all crews; what a crew object can do; nothing of a factory."""

    async def scenario() -> None:
        async with launched(tmp_path, "tests.crews.duck:provide") as launcher:
            assert launcher.state == "ready"
            assert launcher.crews["answer"].operations is None
            assert launcher.crews["object"].operations == ["run", "batch_run"]
            assert len(launcher.crews["everything_object"].operations or ()) == 7

    asyncio.run(scenario())


def test_a_registry_that_does_not_load_stops_the_start_with_one_line(tmp_path: Path) -> None:
    """The line names AIP_CREWAI_REGISTRY, the registry, and what went wrong."""
    (tmp_path / "acme.py").write_text("raise RuntimeError('boom\\nand more')")

    async def scenario() -> None:
        async with launched(tmp_path, "acme:crews", start_directory=tmp_path):
            pytest.fail("it started")

    with pytest.raises(RegistryRefused) as refused:
        asyncio.run(scenario())
    assert str(refused.value) == "AIP_CREWAI_REGISTRY: acme:crews does not load: RuntimeError: boom and more"


def test_an_environment_in_which_no_fork_server_can_run_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said last is in the line, and so is what to do."""
    (tmp_path / "crewai.py").write_text("raise ImportError('half installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def scenario(start_directory: Path) -> None:
        async with launched(tmp_path, start_directory=start_directory):
            pytest.fail("it started")

    with pytest.raises(StartRefused, match="the fork server ends: ImportError: half installed"):
        asyncio.run(scenario(REPOSITORY))
    with pytest.raises(StartRefused, match="No such file or directory"):
        asyncio.run(scenario(tmp_path / "missing"))


def test_a_registry_that_ends_the_process_stops_the_start_too(tmp_path: Path) -> None:
    """There is nothing that it could have said, so its exit code is."""
    (tmp_path / "acme.py").write_text("import os; os._exit(9)")

    async def scenario() -> None:
        async with launched(tmp_path, "acme:crews", start_directory=tmp_path):
            pytest.fail("it started")

    with pytest.raises(RegistryRefused, match="ended before it was ready, with code 9"):
        asyncio.run(scenario())


def test_a_registry_that_breaks_later_fails_the_run_that_takes_the_child(tmp_path: Path) -> None:
    """The child is delivered with its error; when the registry is whole again, so are the children."""
    registry = tmp_path / "acme.py"
    whole = "class Crew:\n    def kickoff(self, inputs):\n        return 'whole'\ncrews = {'a': Crew}"
    registry.write_text(whole)

    async def scenario() -> None:
        async with launched(tmp_path, "acme:crews", start_directory=tmp_path, warm=0) as launcher:
            first = await launcher.take()
            registry.write_text("raise ValueError('half a deployment')")
            broken = await launcher.take()
            assert broken.error == "ValueError: half a deployment"
            assert (await broken.exited).code == 3
            registry.write_text(whole + "\n# again")
            first.kill()
            _, result, _ = await perform(launcher, "a")
            assert result is not None
            assert result.output is not None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("crew", "error_type"),
    [
        ("duck.exits", "SystemExit"),
        ("duck.interrupts", "KeyboardInterrupt"),
        ("duck.closes", "GeneratorExit"),
        ("duck.raises", "ValueError"),
        ("hostile.eats_memory", "MemoryError"),
    ],
)
def test_whatever_a_crew_raises_is_the_result_of_that_run(crews: Shared, crew: str, error_type: str) -> None:
    """sys.exit, KeyboardInterrupt and a memory limit are failures of one run; only the class is said."""

    async def scenario(launcher: Launcher) -> None:
        _, result, exited = await perform(launcher, crew)
        assert result is not None
        assert (result.error_type, result.provider_started, result.output) == (error_type, True, None)
        assert exited.code == 0
        other = await launcher.take()
        assert other.error is None
        assert not other.exited.done()

    crews.run(scenario)


@pytest.mark.parametrize(
    ("crew", "code"), [("segfaults", -signal.SIGSEGV), ("exits", 0), ("kills_itself", -signal.SIGKILL)]
)
def test_a_child_that_dies_takes_nothing_with_it(crews: Shared, crew: str, code: int) -> None:
    """A segfault, os._exit and a signal end one child: its neighbour answers, and the fork server forks on."""

    async def scenario(launcher: Launcher) -> None:
        dying, neighbour = await launcher.take(), await launcher.take()
        start(dying, f"hostile.{crew}")
        events, result = await read(dying)
        assert (events, result) == ([], None)
        assert (await dying.exited).code == code
        start(neighbour, "hostile.looks_around")
        assert (await read(neighbour))[1] is not None
        assert (await launcher.take()).error is None

    crews.run(scenario)


@pytest.mark.parametrize(
    "crew",
    [
        "sleeps",
        "holds_the_interpreter",
        "computes_in_c",
        "loops",
        "swallows",
        "ignores_sigterm",
        "shell_that_ignores",
        "daemonises",
    ],
)
def test_three_steps_end_every_hostile_crew(crews: Shared, tmp_path: Path, crew: str) -> None:
    """Ask; after 2 s SIGTERM to the group; after 2 more SIGKILL: child and all below it are gone, and that is said."""

    async def scenario(launcher: Launcher) -> None:
        child = await launcher.take()
        start(child, f"hostile.{crew}", marks=str(tmp_path))
        await until((tmp_path / "begun").exists)
        if crew in ("shell_that_ignores", "daemonises"):
            await until(lambda: descendants(child.pid))
        family = [child.pid, *descendants(child.pid)]
        begun = time.monotonic()
        exited = await _stop(child)
        assert exited.strangers == 0
        assert [pid for pid in family if running(pid)] == []
        assert time.monotonic() - begun < 2 * STEP + 1
        if crew == "daemonises":
            assert not running(int((tmp_path / "daemon").read_text()))

    crews.run(scenario)


async def _stop(child: Child) -> Exited:
    child.send(Stop())
    for step in (child.terminate, child.kill):
        done, _ = await asyncio.wait([child.exited], timeout=STEP)
        if done:
            break
        step()
    return await asyncio.wait_for(child.exited, STEP)


@pytest.mark.parametrize(
    ("crew", "error_type"),
    [
        ("slow", "HookAborted"),
        ("slow_streaming", "HookAborted"),
        ("slow_awaits", "CancelledError"),
        ("slow_awaits_stream", "CancelledError"),
    ],
)
def test_a_real_crew_stops_at_its_next_step_when_it_is_asked(crews: Shared, crew: str, error_type: str) -> None:
    """The first of the three steps is enough for a crew that goes on calling its model, however it is started."""

    async def scenario(launcher: Launcher) -> None:
        child = await launcher.take()
        start(child, f"scripted.{crew}", topic="x")
        await anext(child.frames())
        child.send(Stop())
        begun = time.monotonic()
        _, result = await read(child)
        assert result is not None
        assert (result.error_type, result.provider_started) == (error_type, True)
        assert time.monotonic() - begun < STEP

    crews.run(scenario)


@pytest.mark.parametrize(("crew", "error_type"), [("waits", "CancelledError"), ("endless", "Stopped")])
def test_an_await_is_cancelled_and_a_stream_closed_when_the_run_is_asked_to_stop(
    crews: Shared, tmp_path: Path, crew: str, error_type: str
) -> None:
    """Duck-typed crews stop by asking too, where there is a point at which they can."""

    async def scenario(launcher: Launcher) -> None:
        child = await launcher.take()
        start(child, f"duck.{crew}", marks=str(tmp_path))
        await until((tmp_path / "begun").exists)
        child.send(Stop())
        _, result = await asyncio.wait_for(read(child), STEP)
        assert result is not None
        assert result.error_type == error_type

    crews.run(scenario)


def test_a_daemon_that_holds_socket_and_pipes_delays_nothing_and_is_killed(crews: Shared, tmp_path: Path) -> None:
    """The exit message ends a run, not end-of-file; by then the grandchild is gone."""

    async def scenario(launcher: Launcher) -> None:
        begun = time.monotonic()
        _, result, exited = await perform(launcher, "hostile.daemon", marks=str(tmp_path))
        assert result is not None
        assert exited.strangers == 0
        assert not running(int((tmp_path / "daemon").read_text()))
        assert time.monotonic() - begun < STEP

    crews.run(scenario)


def test_a_copy_that_a_crew_forked_says_nothing_to_the_service(crews: Shared) -> None:
    """Where both come back from the crew, the run has the result of the process that was given the job."""

    async def scenario(launcher: Launcher) -> None:
        child = await launcher.take()
        start(child, "hostile.forks")
        results = [message async for message in child.frames()]
        assert [message.output["raw"] for message in results if isinstance(message, Result) and message.output] == [
            "parent"
        ]
        assert len(results) == 1

    crews.run(scenario)


def test_a_flood_of_output_is_read_and_counted_and_ends_nothing(crews: Shared) -> None:
    """A hundred megabytes of lines: all counted, little kept, and the loop is never held for long."""

    async def scenario(launcher: Launcher) -> None:
        child = await launcher.take()
        start(child, "duck.prints", megabytes=100)
        reading = asyncio.create_task(read(child))
        worst = 0.0
        while not reading.done():
            at = time.monotonic()
            await asyncio.sleep(0.001)
            worst = max(worst, time.monotonic() - at)
        assert reading.result()[1] is not None
        await child.exited
        assert (child.output.bytes, child.output.lines) == (100 << 20, 100 << 10)
        assert child.output.dropped > 90 << 20
        assert worst < 0.5

    crews.run(scenario)


def test_a_child_that_writes_no_frame_harms_nobody(crews: Shared) -> None:
    """Nonsense on the socket is refused; the run is killed as any other."""

    async def scenario(launcher: Launcher) -> None:
        _, result, exited = await perform(launcher, "hostile.writes_nonsense")
        assert result is None
        assert exited.code == -signal.SIGKILL
        _, result, _ = await perform(launcher, "hostile.looks_around")
        assert result is not None

    crews.run(scenario)


def test_a_consumer_that_is_behind_stalls_the_child_and_nothing_else(crews: Shared) -> None:
    """Unread frames stay in the kernel: the child waits, the service's memory does not grow, a neighbour runs."""

    async def scenario(launcher: Launcher) -> None:
        flooding = await launcher.take()
        start(flooding, "duck.endless")
        await anext(flooding.frames())
        await _idle(flooding.pid)
        _, result, _ = await perform(launcher, "duck.answer")
        assert result is not None
        flooding.send(Stop())
        _, result = await read(flooding)
        assert result is not None
        assert result.error_type == "Stopped"

    crews.run(scenario)


def test_a_child_has_surroundings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories, input, signals and environment are the run's; the token, the journal's path and the sockets not."""
    monkeypatch.setenv("AIP_CREWAI_BEARER_TOKEN", "secret")
    monkeypatch.setenv("AIP_CREWAI_BEARER_TOKEN_FILE", "/secret")
    monkeypatch.setenv("AIP_CREWAI_STATE_FILE", "/secret/runs.json")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("OWN", "value")

    async def scenario() -> None:
        lock = claim(tmp_path / "runs.json.workers", uuid.uuid4().hex).descriptor
        async with launched(tmp_path, inherit_fd=lock) as launcher:
            os.close(lock)
            child = await launcher.take()
            start(child, "hostile.looks_around")
            _, result = await read(child)
            assert result is not None
            assert result.output is not None
            seen: dict[str, Any] = result.output["json_dict"]
            environment = seen["environment"]
            assert seen["cwd"] == str(child.directory / "cwd")
            assert environment["HOME"] == str(child.directory / "home")
            assert environment["TMPDIR"] == str(child.directory / "tmp")
            assert environment["CREWAI_STORAGE_DIR"] == str(child.directory / "storage")
            assert (environment["OMP_NUM_THREADS"], environment["RAYON_NUM_THREADS"]) == ("3", "1")
            assert environment["OWN"] == "value"
            assert environment["CREWAI_DISABLE_TELEMETRY"] == "true"
            assert not [name for name in environment if "TOKEN" in name and name.startswith("AIP")]
            assert "AIP_CREWAI_STATE_FILE" not in environment
            assert "OTEL_SDK_DISABLED" not in environment
            assert (seen["stdin"], seen["group"]) == ("null", True)
            assert seen["sigterm"] == str(signal.SIG_DFL)
            assert len([one for one in seen["descriptors"] if one.startswith("socket:")]) == 1
            assert str(tmp_path / "runs.json.workers") in seen["descriptors"]
            assert seen["inheritable"] == []

    asyncio.run(scenario())


def test_a_directory_that_a_crew_made_unreadable_is_removed_all_the_same(crews: Shared) -> None:
    """What a run did to its files does not stay on the disk."""

    async def scenario(launcher: Launcher) -> None:
        child = await launcher.take()
        start(child, "hostile.spoils_its_directory")
        await read(child)
        await child.exited
        await until(lambda: not child.directory.exists())

    crews.run(scenario)


def test_a_dead_fork_server_is_replaced_and_its_descendants_are_gone(tmp_path: Path) -> None:
    """Its children are lost, a daemon of theirs is killed, and who takes a child meanwhile waits for the next one."""

    async def scenario() -> None:
        async with launched(tmp_path) as launcher:
            child = await launcher.take()
            start(child, "hostile.daemonises", marks=str(tmp_path))
            daemon = int(await until(lambda: _text(tmp_path / "daemon")))
            server = _parent(child.pid)
            os.kill(server, signal.SIGKILL)
            exited = await child.exited
            assert (exited.code, exited.strangers) == (-9, 0)
            assert [pid for pid in (child.pid, daemon, server) if running(pid)] == []
            assert launcher.state == "restarting"
            _, result, _ = await perform(launcher, "hostile.looks_around")
            assert result is not None
            assert launcher.state == "ready"

    asyncio.run(scenario())


def test_a_run_directory_that_was_removed_is_made_again(bare: Shared) -> None:
    """What a crew, or a cleaner of temporary files, takes away ends no run after its own."""

    async def scenario(launcher: Launcher) -> None:
        child = await launcher.take()
        await _end(child)
        root = child.directory.parent
        shutil.rmtree(root)
        child = await launcher.take()
        assert child.directory.parent == root
        assert [path.stat().st_mode & 0o777 for path in (root, child.directory)] == [0o700, 0o700]
        start(child, "duck.answer")
        assert (await read(child))[1] is not None
        await child.exited

    bare.run(scenario)


def test_a_fork_server_that_cannot_be_started_again_is_tried_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While there is no place for its files nobody is lost who waits for a child."""

    async def scenario() -> None:
        async with launched(tmp_path, warm=0) as launcher:
            child = await launcher.take()
            server = _parent(child.pid)
            shutil.rmtree(tmp_path / "runs")
            (tmp_path / "runs").write_text("in the way")
            os.kill(server, signal.SIGKILL)
            waiting = asyncio.create_task(launcher.take())
            await until(lambda: caplog.text.count("did not start again") > 1)
            (tmp_path / "runs").unlink()
            child = await waiting
            start(child, "duck.answer")
            assert (await read(child))[1] is not None

    asyncio.run(scenario())


def test_a_service_without_descriptors_forks_when_it_has_them_again(
    bare: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    """Who waits for a child waits for it, and is not forgotten."""

    async def scenario(launcher: Launcher) -> None:
        await _end(await launcher.take())  # the first one of all, which described the registry, may still be there
        lowest_free = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest_free)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
        taken: list[int] = []
        try:
            with contextlib.suppress(OSError):  # what is closed meanwhile by another thread is taken as well
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            waiting = asyncio.create_task(launcher.take())
            await until(lambda: "no child could be forked: [Errno 24]" in caplog.text)
            assert not waiting.done()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for descriptor in taken:
                os.close(descriptor)
        child = await waiting
        assert child.error is None
        await _end(child)

    bare.run(scenario)


def test_a_fork_server_that_is_stopped_is_replaced(tmp_path: Path) -> None:
    """It answers no ping, so it is killed, its children are lost, and the next one serves."""

    async def scenario() -> None:
        async with launched(tmp_path, warm=0, ping_seconds=0.5) as launcher:
            child = await launcher.take()
            server = _parent(child.pid)
            os.kill(server, signal.SIGSTOP)
            waiting = asyncio.create_task(launcher.take())
            assert (await child.exited).code == -9
            assert not running(server)
            assert (await waiting).error is None

    asyncio.run(scenario())


def test_a_fork_server_that_has_nothing_to_do_is_left_alone(bare: Shared) -> None:
    """It answers its pings: after some of them the same one forks."""

    async def scenario(launcher: Launcher) -> None:
        first = await launcher.take()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(first.exited), 4)  # twice as long as it may be silent
        second = await launcher.take()
        assert _parent(first.pid) == _parent(second.pid)
        await _end(first)
        await _end(second)

    bare.run(scenario)


def test_a_stopped_fork_server_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """It is killed after 2 s, and what it had is swept."""

    async def scenario() -> None:
        async with launched(tmp_path, warm=0) as launcher:
            child = await launcher.take()
            server = _parent(child.pid)
            os.kill(server, signal.SIGSTOP)
            begun = time.monotonic()
            await launcher.close()
            assert time.monotonic() - begun < 4
            assert [pid for pid in (child.pid, server) if running(pid)] == []

    asyncio.run(scenario())


def test_a_child_that_hangs_in_the_registry_s_import_is_given_up(tmp_path: Path) -> None:
    """It is killed, the run that would have had it learns why, and the next one has another."""
    (tmp_path / "acme.py").write_text(
        "import pathlib, time\n"
        "class Crew:\n    def kickoff(self, inputs):\n        return 'done'\n"
        f"if pathlib.Path({str(tmp_path / 'hang')!r}).exists():\n    time.sleep(1000)\n"
        "crews = {'a': Crew}\n"
    )

    async def scenario() -> None:
        async with launched(tmp_path, "acme:crews", start_directory=tmp_path, warm=0, ready_seconds=2) as launcher:
            await _end(await launcher.take())
            (tmp_path / "hang").touch()
            child = await launcher.take()
            assert child.error == "WorkerLost: it was not ready within 2 s"
            assert (await child.exited).code == -signal.SIGKILL
            (tmp_path / "hang").unlink()
            assert (await launcher.take()).error is None

    asyncio.run(scenario())
    (tmp_path / "hang").touch()
    with pytest.raises(RegistryRefused) as refused:
        asyncio.run(scenario())
    assert str(refused.value) == (
        "AIP_CREWAI_REGISTRY: acme:crews did not load within 2 s; what takes long belongs in a factory"
    )


def test_what_nobody_has_foreseen_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fault while a child, or a fork server, is started is logged, and who waits for a child has one afterwards."""

    async def scenario() -> None:
        loop = faulty_loop()
        async with launched(tmp_path, warm=0) as launcher:
            child = await launcher.take()
            loop.fault = RuntimeError("a fault")
            waiting = asyncio.create_task(launcher.take())
            await until(lambda: "a child could not be provided" in caplog.text)
            os.kill(_parent(child.pid), signal.SIGKILL)
            await until(lambda: "the fork server could not be restarted" in caplog.text)
            loop.fault = None
            child = await waiting
            start(child, "duck.answer")
            assert (await read(child))[1] is not None

    with asyncio.Runner(loop_factory=FaultyLoop) as runner:
        runner.run(scenario())


def test_a_run_whose_frames_cannot_be_read_ends_alone(bare: Shared) -> None:
    """What the kernel refuses to one run is that run's end, and nobody else's."""

    async def scenario(launcher: Launcher) -> None:
        loop = faulty_loop()
        child, neighbour = await launcher.take(), await launcher.take()
        start(child, "hostile.sleeps")
        loop.fault = OSError(errno.ENOSPC, "too many watches")
        with pytest.raises(FrameError, match="too many watches"):
            await anext(child.frames())
        loop.fault = None
        await _end(child)
        start(neighbour, "duck.answer")
        assert (await read(neighbour))[1] is not None
        await neighbour.exited

    bare.run(scenario)


def test_whoever_comes_while_a_child_is_handed_over_gets_one_too(bare: Shared) -> None:
    """Two in a row by the same task, without a warm child: the second waits for a fork of its own, not for ever."""

    async def scenario(launcher: Launcher) -> None:
        for _ in range(10):
            async with asyncio.timeout(20):
                first, second = await launcher.take(), await launcher.take()
            await _end(first)
            await _end(second)

    bare.run(scenario)


def test_an_observer_that_fails_disturbs_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for ever because a metric could not be written; the fault is logged."""

    def observe(_: Forked | Exited) -> None:
        raise RuntimeError("no place for a note")

    async def scenario() -> None:
        async with launched(tmp_path, observer=observe, warm=0) as launcher:
            _, result, exited = await perform(launcher, "duck.answer")
            assert result is not None
            assert exited.code == 0

    asyncio.run(scenario())
    assert "no place for a note" in caplog.text


def test_a_warm_child_that_dies_unused_is_replaced(tmp_path: Path) -> None:
    """Nobody is given a dead child, and the pool fills up again."""
    forks: list[int] = []

    def observe(message: Forked | Exited) -> None:
        if isinstance(message, Forked):
            forks.append(message.pid)

    async def scenario() -> None:
        async with launched(tmp_path, observer=observe, warm=1) as launcher:
            await until(lambda: forks)
            os.kill(forks[0], signal.SIGKILL)
            await until(lambda: len(forks) > 1)
            _, result, _ = await perform(launcher, "duck.answer")
            assert result is not None

    asyncio.run(scenario())


def test_a_take_that_is_given_up_leaves_its_child_to_the_next(crews: Shared) -> None:
    """Cancelling a take loses no child and starts no run."""

    async def scenario(launcher: Launcher) -> None:
        await launcher.take()
        given_up = asyncio.create_task(launcher.take())
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        _, result, _ = await perform(launcher, "duck.answer")
        assert result is not None

    crews.run(scenario)


SERVICE = """
import asyncio, sys
from pathlib import Path
from crewai_sidecar.frames import Configure, Job
from crewai_sidecar.runner.launcher import Launcher

async def main():
    launcher = Launcher()
    await launcher.start(
        Configure(registry="tests.crews.hostile:crews", start_directory=sys.argv[1]),
        run_root=Path(sys.argv[2], "runs"), warm=1, marker=sys.argv[3],
    )
    child = await launcher.take()
    child.send(Job(action_id="a", crew_id="daemonises", operation="run", input={"marks": sys.argv[2]}))
    await child.exited

asyncio.run(main())
"""


def test_nothing_outlives_a_killed_service(tmp_path: Path) -> None:
    """SIGKILL of the service: fork server, children and a daemon without any environment are gone within 2 s."""
    marker = uuid.uuid4().hex

    async def scenario() -> None:
        service = subprocess.Popen(  # noqa: ASYNC220  # the loop has nothing else to do
            [sys.executable, "-c", SERVICE, str(REPOSITORY), str(tmp_path), marker], cwd=REPOSITORY
        )
        try:
            daemon = int(await until(lambda: _text(tmp_path / "daemon"), 20))
            family = descendants(service.pid)
            assert daemon in family
            assert len(marked(marker)) >= 3
        finally:
            service.kill()
            service.wait()
        await until(lambda: not [pid for pid in family if running(pid)], 2)
        assert marked(marker) == []

    asyncio.run(scenario())


def test_a_launcher_that_never_started_can_be_closed(tmp_path: Path) -> None:
    """Closing is safe at any time, and twice."""

    async def scenario() -> None:
        launcher = Launcher()
        await launcher.close()
        await launcher.close()

    asyncio.run(scenario())


async def _end(child: Child) -> None:
    child.kill()
    await child.exited


async def _idle(pid: int) -> None:
    """Wait until a process computes no more."""
    used, before = _ticks(pid), -1
    while used != before:  # the state of another process can only be looked at
        await asyncio.sleep(0.1)
        used, before = _ticks(pid), used


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
