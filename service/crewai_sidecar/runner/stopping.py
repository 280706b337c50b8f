"""Ending a child: asked, then SIGTERM, then SIGKILL, each with a bound.

"Stopped" is said of local work only, when the child is reaped and nothing of its tree is left: never of the provider.
"""

from __future__ import annotations

import asyncio

from crewai_sidecar.frames import Exited, Stop
from crewai_sidecar.runner.launcher import Child

__all__ = ["LAST_SECONDS", "STEP_SECONDS", "is_stopped", "let_go", "stop"]

STEP_SECONDS = 2.0
"""Time for each of the first two steps. A crew that honours neither is gone soon after the third."""

LAST_SECONDS = 0.9
"""Time after SIGKILL; with it the ending is written at most 5 s after the order."""


async def stop(child: Child, reason: str) -> Exited | None:
    """Stop a child in three steps; None when it is not gone after the last."""
    child.send(Stop(reason=reason))
    if await _exited(child, STEP_SECONDS):
        return child.exited.result()
    child.terminate()
    if await _exited(child, STEP_SECONDS):
        return child.exited.result()
    child.kill()
    return child.exited.result() if await _exited(child, LAST_SECONDS) else None


async def let_go(child: Child, patience: float = 0.0) -> Exited | None:
    """Let a child leave by itself for `patience` seconds, then end it; None if it is not gone a while later."""
    if not await _exited(child, patience):
        child.kill()
        if not await _exited(child, STEP_SECONDS):
            return None
    return child.exited.result()


def is_stopped(gone: Exited | None) -> bool:
    """Whether local work has stopped: the child is reaped and no stranger of its tree is left."""
    return gone is not None and gone.strangers == 0


async def _exited(child: Child, seconds: float) -> bool:
    done, _ = await asyncio.wait([child.exited], timeout=seconds)
    return bool(done)
