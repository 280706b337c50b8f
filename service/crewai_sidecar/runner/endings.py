"""How a run ended, as one value: the rows of the table of endings in deploy/guide/contract.md."""

from __future__ import annotations

import re
from dataclasses import dataclass

from crewai_sidecar import jsontext
from crewai_sidecar.frames import Exited, Result
from crewai_sidecar.model import Cause, Ending, Status
from crewai_sidecar.runner.stopping import is_stopped

__all__ = ["Order", "by_order", "by_result", "unbuilt", "worker_lost"]


@dataclass(frozen=True, slots=True)
class Order:
    """An order to stop, with the cancel's reason and its own Action ID where there are such. The first one counts."""

    cause: Cause
    reason: str | None = None
    by: str | None = None


def by_result(result: Result, gone: Exited | None) -> Ending:
    """The crew answered, or raised: `provider_started` is the child's word for whether its method was called."""
    if result.output is None:
        return Ending(
            status=Status.FAILED,
            cause=Cause.EXCEPTION,
            provider_started=result.provider_started,
            error_type=_class_name(result.error_type),
            worker_stopped=is_stopped(gone),
        )
    return Ending(
        status=Status.COMPLETED,
        output=jsontext.encode(result.output),
        output_truncated=result.output_truncated,
        output_bytes=result.output_bytes,
        worker_stopped=is_stopped(gone),
    )


def by_order(order: Order, *, started: bool, late: bool, worker_stopped: bool | None) -> Ending:
    """Something ordered the run to stop before it had a result. `late`: one came all the same, and was not kept."""
    timed_out = order.cause is Cause.TIMEOUT
    return Ending(
        status=Status.FAILED if timed_out else Status.CANCELLED,
        cause=order.cause,
        provider_started=started,
        error_type="TimeoutError" if timed_out else None,
        worker_stopped=worker_stopped,
        finished_late=late,
        cancel_reason=order.reason,
        cancelled_by=order.by,
    )


def worker_lost(*, started: bool, gone: Exited | None) -> Ending:
    """The child is gone without a result."""
    return Ending(
        status=Status.FAILED,
        cause=Cause.WORKER_LOST,
        provider_started=started,
        error_type="WorkerLost",
        worker_stopped=is_stopped(gone),
    )


def unbuilt(error: str, gone: Exited | None) -> Ending:
    """The child could not import the registry, or ended before it was ready: nothing of the provider's has run."""
    name = error.partition(":")[0]
    if name == "WorkerLost":
        return worker_lost(started=False, gone=gone)
    return Ending(
        status=Status.FAILED,
        cause=Cause.EXCEPTION,
        provider_started=False,
        error_type=name if name.isidentifier() and name.isascii() else "RegistryRefused",
        worker_stopped=is_stopped(gone),
    )


def _class_name(name: str | None) -> str:
    """The name of an exception's class, fit for a record: a terminal event must stay within the least event bound."""
    return re.sub(r"\W", "_", name or "Exception", flags=re.ASCII)[:128] or "Exception"
