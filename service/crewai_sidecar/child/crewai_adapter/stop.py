"""Stopping by asking: at the next model call, tool call or step, between two chunks, or at the next await.

The first of the three steps of stopping. What does not come to such a point is stopped from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from crewai.hooks import HookAborted, InterceptionPoint, register_hook

__all__ = ["STOPPER", "Stopped", "Stopper"]


class Stopped(Exception):
    """Raised in a run that was asked to stop, at the first point of our own."""


class Stopper:
    """The order to stop: given by the thread that reads the socket, looked at wherever a run can end."""

    def __init__(self) -> None:
        self.ordered = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def order(self) -> None:
        """Ask the run to stop, and cancel the asyncio task that it is in."""
        self.ordered = True
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(task.cancel)

    def check(self) -> None:
        """Raise Stopped if the run was asked to stop."""
        if self.ordered:
            raise Stopped

    @contextlib.contextmanager
    def cancelling(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> Iterator[None]:
        """Cancel this task when the order comes, or now if it has come already."""
        self._loop, self._task = loop, task
        try:
            if self.ordered:
                task.cancel()
            yield
        finally:
            self._loop = self._task = None


STOPPER = Stopper()
"""The one order of a child's one run. CrewAI's hooks are global, and so is this."""


def _guard(_context: Any) -> None:
    """End CrewAI's current operation. HookAborted is the one exception that its hooks let through."""
    if STOPPER.ordered:
        raise HookAborted("stopped", source="crewai-sidecar")


for _point in (
    InterceptionPoint.EXECUTION_START,
    InterceptionPoint.PRE_STEP,
    InterceptionPoint.PRE_MODEL_CALL,
    InterceptionPoint.PRE_TOOL_CALL,
):
    register_hook(_point, _guard)
