"""Children for runs: a fork server that is kept alive, a warm pool in front of it, and nothing left behind.

A child is forked before it is needed, imports the registry, and waits. `take` hands it over and the next one is forked
in the background. When the fork server dies, the children that it had are lost, what is left of them is swept, another
is started with a growing delay, and whoever takes a child meanwhile waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

import msgspec

from crewai_sidecar import frames, linux
from crewai_sidecar.errors import RegistryRefused, StartRefused, WorkerLost
from crewai_sidecar.runner import directories, process_tree
from crewai_sidecar.runner.children import Child
from crewai_sidecar.runner.server_process import PING_SECONDS, ForkRefused, ServerProcess, environment

__all__ = ["Child", "Launcher", "Observer"]

Observer = Callable[[frames.Forked | frames.Exited], None]
"""Told of every fork and every exit."""

READY_SECONDS = 60.0
"""Time that a child has to import the registry."""

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0
_SETTLED_SECONDS = 30.0
"""A fork server that lived so long has earned an immediate successor."""

_SWEEP_SECONDS = 5.0
_REAP_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Launcher:
    """The one source of children. Its `state` is starting, ready, restarting or closed."""

    def __init__(self, *, ready_seconds: float = READY_SECONDS, ping_seconds: float = PING_SECONDS) -> None:
        self._ready_seconds, self._ping_seconds = ready_seconds, ping_seconds
        self.state = "starting"
        self._crews: dict[str, frames.Crew] = {}
        self._server: ServerProcess | None = None
        self._up = asyncio.Event()
        self._wanted = asyncio.Event()
        self._warm: deque[Child] = deque()
        self._waiters: deque[asyncio.Future[Child]] = deque()
        self._spawning: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0
        self._deaths = 0
        self._unused = 0
        self._started_at = 0.0
        self._inherit: int | None = None
        self._observer: Observer | None = None
        self._spared: list[int] = []
        self._reaper: asyncio.Task[None] | None = None

    @property
    def crews(self) -> Mapping[str, frames.Crew]:
        """The registry as the first child described it."""
        return self._crews

    async def start(
        self,
        configure: frames.Configure,
        *,
        run_root: Path,
        warm: int,
        marker: str,
        inherit_fd: int | None = None,
        observer: Observer | None = None,
        process_one: bool = False,
    ) -> None:
        """Start the fork server and the first child, which describes the registry.

        `run_root` is this service's alone and holds nothing else; `marker` is what its processes are known by;
        `inherit_fd` is the second lock. As `process_one` every orphan of the container is reaped: nothing else in this
        process may start and wait for processes then.

        Raises RegistryRefused when the registry does not load, VolumeRefused for a `run_root` of somebody else,
        StartRefused when there can be no child at all.
        """
        self._loop = asyncio.get_running_loop()
        self._warm_children, self._inherit, self._observer = warm, inherit_fd, observer
        self._root = await asyncio.to_thread(directories.prepare, run_root)
        self._environment, handed = environment(os.environ, self._root / "server", marker)
        self._configure = msgspec.structs.replace(configure, environment={**handed, **configure.environment})
        process_tree.set_subreaper()
        self._spared = [
            pid for pid, process in linux.processes().items() if process.parent == os.getpid()
        ]  # what this process had started before is none of ours
        if process_one:
            self._reaper = self._loop.create_task(self._reap(), name="reap")
        try:
            await self._start_server()
            first = await self._first_child()
        except WorkerLost as error:
            raise StartRefused(f"The fork server cannot run: {error}. Mend its Python environment") from None
        self._crews = {crew.crew_id: crew for crew in first.crews or ()}
        for crew in self._crews.values():
            if crew.warning:
                _log.warning(crew.warning)
        self.state = "ready"
        self._offer(first)
        self._fill()

    async def take(self) -> Child:
        """Return a child that waits for a job, or that has an `error`. Waits while there is no fork server.

        Raises WorkerLost when the launcher is closed.
        """
        while self._warm:
            child = self._warm.popleft()
            if not child.exited.done():
                self._unused = 0
                self._fill()
                return child
        if self.state == "closed":
            raise WorkerLost("the launcher is closed")
        waiter: asyncio.Future[Child] = self._loop.create_future()
        self._waiters.append(waiter)
        self._wanted.set()
        self._fill()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
            if not self._waiters:
                self._wanted.clear()

    async def close(self) -> None:
        """End every child and the fork server, and remove what they had on disk. Safe to call twice."""
        if self.state == "closed":
            return
        started = self.state != "starting" or self._server is not None
        self.state = "closed"
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(WorkerLost("the launcher is closed"))
        pending = [*self._spawning, *(task for task in self._tasks if task.get_name() == "restart")]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if self._reaper is not None:
            self._reaper.cancel()
        if self._server is not None:
            await self._server.close()
            await self._bury(self._server)
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if started:
            await asyncio.to_thread(directories.remove, self._root)

    # -- the fork server ------------------------------------------------------------------------------------------

    async def _start_server(self) -> None:
        try:
            place = directories.below(self._root, "server")
            for name in ("home", "tmp", "storage"):
                directories.below(place, name)
        except OSError as error:
            raise WorkerLost(str(error)) from None
        server = ServerProcess(
            forked=self._observe, exited=self._exited, lost=self._lost, ping_seconds=self._ping_seconds
        )
        self._server = server
        self._started_at = self._loop.time()
        await server.start(self._configure, self._environment, self._inherit)
        self._up.set()

    def _lost(self) -> None:
        """The fork server has died under us, or been closed by us."""
        self._up.clear()
        self._warm.clear()  # nobody is to be given a child that has gone
        if self.state != "closed":
            self.state = "restarting"
            self._begin_restart()

    def _begin_restart(self) -> None:
        if self.state != "closed":
            self._task(self._restart(), "restart", self._restarted)

    def _restarted(self, task: asyncio.Task[None]) -> None:
        """Begin again after what nobody has foreseen: without a fork server there would be no run any more."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the fork server could not be restarted; it is tried again", exc_info=error)
            self._loop.call_later(_LONGEST_DELAY, self._begin_restart)

    async def _restart(self) -> None:
        while True:
            if self._server is not None:
                _log.error("the fork server has died; its children are lost and another is started")
                await self._bury(self._server)
                self._server = None
            if self._loop.time() - self._started_at > _SETTLED_SECONDS:
                self._deaths = 0
            await asyncio.sleep(_delay(self._deaths))
            self._deaths += 1
            try:
                await self._start_server()
            except WorkerLost as error:
                _log.error("the fork server did not start again: %s", error)
                continue
            if self.state != "closed":
                self.state = "ready"
            self._fill()
            return

    async def _bury(self, server: ServerProcess) -> None:
        """Sweep what a dead fork server left, then say of each of its children that it has gone."""
        left = await asyncio.to_thread(process_tree.sweep, self._spared, _SWEEP_SECONDS)
        for pid, child in list(server.children.items()):
            self._exited(child, frames.Exited(pid=pid, code=-9, strangers=left))
        server.children.clear()

    # -- children -------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Fork as many children as are wanted and not on their way yet."""
        if self.state != "ready":
            return
        wanted = self._warm_children + len(self._waiters) - len(self._warm) - len(self._spawning)
        for _ in range(wanted):
            task = self._loop.create_task(self._spawn(), name="spawn")
            self._spawning.add(task)
            task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        """Look again at what is wanted: whoever came while this one was ending was told that it is on its way."""
        self._spawning.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._fill()
        else:
            _log.error("a child could not be provided; it is tried again", exc_info=error)
            self._loop.call_later(_LONGEST_DELAY, self._fill)

    async def _spawn(self) -> None:
        """Provide one child, however often that has to be tried."""
        failures = 0
        while True:
            await self._up.wait()
            try:
                child = await self._fork()
            except ForkRefused as error:
                _log.warning("no child could be forked: %s", error)
                await asyncio.sleep(_delay(failures))
                failures += 1
                continue
            except WorkerLost:
                await asyncio.sleep(0)  # it is being restarted
                continue
            if child.error is None or self._waiters:
                self._offer(child)
                return
            _log.warning("a child was not ready: %s", child.error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), _delay(failures))
            failures += 1

    async def _fork(self, *, describe: bool = False) -> Child:
        """Fork a child and wait until it is ready, or is not going to be.

        Raises ForkRefused and WorkerLost as `ServerProcess.fork`; ForkRefused also where the service has no directory
        or no descriptors for it, WorkerLost also when it goes with the fork server.
        """
        server = self._server
        if server is None or not server.alive:
            raise WorkerLost("the fork server has gone")
        self._number += 1
        directory = self._root / f"run-{self._number}"
        try:
            directories.below(self._root, directory.name)
            child = Child(self._number, directory)
        except OSError as error:
            self._remove_later(directory)
            raise ForkRefused(str(error)) from None
        try:
            await server.fork(child, describe=describe)
        except BaseException:
            if child.pid < 0:
                child.close()
                self._remove_later(directory)
            raise
        try:
            await child.until_ready(self._ready_seconds)
        except BaseException:
            child.kill()
            raise
        if child.error is not None and not server.alive:
            raise WorkerLost("the fork server has gone")
        return child

    async def _first_child(self) -> Child:
        while True:
            try:
                first = await self._fork(describe=True)
            except ForkRefused as error:
                raise StartRefused(
                    f"No child can be forked: {error}. Raise the limits of processes and files, and see that "
                    f"{self._root} can be written"
                ) from None
            if first.error is None:
                return first
            if first.late:
                raise RegistryRefused(
                    f"{self._configure.registry} did not load within {self._ready_seconds:g} s; "
                    "what takes long belongs in a factory"
                )
            raise RegistryRefused(f"{self._configure.registry} does not load: {first.error}")

    def _offer(self, child: Child) -> None:
        """Give a child to the first who waits, or keep it warm."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(child)
                return
        if self.state == "closed" or child.error is not None:
            child.kill()
            return
        self._warm.append(child)

    def _observe(self, message: frames.Forked | frames.Exited) -> None:
        if self._observer is not None:
            try:
                self._observer(message)
            except Exception:  # noqa: BLE001  # what looks on must not be the end of a run
                _log.exception("a fork or an exit was not taken note of")

    def _exited(self, child: Child, exited: frames.Exited) -> None:
        child.finish(exited)
        self._observe(exited)
        self._remove_later(child.directory)
        if child.has_job:
            _log.info(
                "run output",
                extra={"child": child.number, "bytes": child.output.bytes, "lines": child.output.lines}
                | {"dropped": child.output.dropped, "code": exited.code},
            )
        if exited.strangers:
            _log.error("processes of child %d are left: %d", child.number, exited.strangers)
        if child in self._warm:
            self._warm.remove(child)
            _log.warning("a child ended unused, with code %d", exited.code)
            self._loop.call_later(_delay(self._unused), self._fill)
            self._unused += 1

    async def _reap(self) -> None:
        while True:
            server = self._server
            process_tree.reap_strangers(server.pid if server is not None and server.alive else None)
            await asyncio.sleep(_REAP_SECONDS)

    def _remove_later(self, directory: Path) -> None:
        self._task(asyncio.to_thread(directories.remove, directory), "remove")

    def _task(
        self,
        coroutine: Coroutine[None, None, None],
        name: str,
        ended: Callable[[asyncio.Task[None]], None] | None = None,
    ) -> None:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if ended is not None:
            task.add_done_callback(ended)


def _delay(failures: int) -> float:
    return min(_LONGEST_DELAY, _FIRST_DELAY * (1 << min(failures, 16)))
