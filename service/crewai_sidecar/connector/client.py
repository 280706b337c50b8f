"""The routes of the contract, one method each, and `follow`, which outlives its connections."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from crewai_sidecar.connector import sse
from crewai_sidecar.connector.errors import BrokenContract, ConnectorError, Refused, Unreachable
from crewai_sidecar.connector.transport import TokenSource, Transport, read_json
from crewai_sidecar.connector.values import Accepted, Action, Event, EventsPage, Health, JobsPage, RecordView
from crewai_sidecar.model import Status

__all__ = ["Patience", "Sidecar", "token_from_file"]

T = TypeVar("T")

HEARTBEAT_SECONDS = 15.0
"""The service sends a comment at least this often; three missed ones mean that the connection is dead."""

LONGEST_OPERATION_SECONDS = 3600.0
"""A blocking start without a timeout of its own is answered after this at the latest."""


class Patience(msgspec.Struct, frozen=True):
    """How long `follow` tries to come back: so many attempts in a row without a new event, with growing pauses."""

    attempts: int = 20
    first_pause: float = 0.2
    longest_pause: float = 5.0

    def pause(self, attempt: int) -> float:
        """Seconds to wait before an attempt, counted from 1."""
        return float(min(self.longest_pause, self.first_pause * 2 ** min(attempt - 1, 16)))


def token_from_file(path: Path) -> TokenSource:
    """Make a source that reads the token's file before each request, so that a rotation needs no restart.

    The source raises OSError where the file cannot be read or has no token in it, and ValueError where it is not UTF-8.
    """

    def read() -> str:
        token = path.read_text("utf-8").strip()
        if not token:
            raise OSError(errno.ENODATA, "the file is empty", str(path))
        return token

    return read


class Sidecar:
    """One sidecar, at one address. Thread-safe as httpx's client is; close it, or use it as a context manager.

    Every method raises Refused, Unreachable and BrokenContract. The constructor raises ValueError for an address that
    a token must not be sent to.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | TokenSource | None = None,
        patience: Patience = Patience(),  # noqa: B008  # frozen
        pause: Callable[[float], None] = time.sleep,
        transport: httpx.BaseTransport | None = None,
        verify: Any = True,
    ) -> None:
        source = (lambda: token) if isinstance(token, str) else token
        self._http = Transport(base_url, source, transport, verify)
        self._patience = patience
        self._pause = pause

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def health(self) -> Health:
        """Ask how the service is. A service that is going down answers too: see `Health.status`."""
        try:
            _, answer = self._http.call("GET", "/health")
        except Refused as refused:
            if not isinstance(refused.problem.get("status"), str):  # a problem body has a number there
                raise
            answer = refused.problem
        return _read({**answer, "answer": answer}, Health)

    def submit(self, action: Action) -> dict[str, Any]:
        """Start an Action and wait for its output.

        A repeat of an Action that has ended is answered from the journal. Refused has `run_failed`, `run_cancelled` or
        `wait_timeout` where the Action did not complete; a wait that ended does not end the Action.
        """
        longest = LONGEST_OPERATION_SECONDS if action.timeout_ms is None else action.timeout_ms / 1000
        _, output = self._http.call(
            "POST", "/jobs", body=action.body(), headers=_start_headers(action), read_seconds=longest + 60
        )
        return output

    def submit_async(self, action: Action) -> Accepted:
        """Start an Action and return as soon as it is on disk."""
        headers = {**_start_headers(action), "Prefer": "respond-async"}
        response, answer = self._http.call("POST", "/jobs", body=action.body(), headers=headers)
        return Accepted(location=response.headers.get("location", _job(action.action_id)), answer=answer)

    def stream(self, action: Action) -> Generator[Event, None, None]:
        """Start an Action and give out its events as they happen, from the first to the ending.

        The request is sent when the first event is asked for. A connection that breaks off raises Unreachable: go on
        with `follow`, from the number of events that came. Close the generator where it is left before the ending: that
        closes the connection.
        """
        with self._http.open(
            "POST",
            "/jobs/stream",
            body=action.body(),
            headers={**_start_headers(action), "Accept": "text/event-stream"},
            read_seconds=HEARTBEAT_SECONDS * 3,
        ) as response:
            ended = False
            with contextlib.closing(self._events(response, 0)) as events:
                for event in events:
                    yield event
                    ended = event.terminal
        if not ended:
            raise Unreachable(f"{self._http.origin} closed the stream before the ending", may_have_arrived=True)

    def status(self, action_id: str, *, crew_id: str | None = None) -> RecordView:
        """Read a record."""
        _, answer = self._http.call("GET", _job(action_id), query={"crew_id": crew_id})
        return _view(answer)

    def events(self, action_id: str, cursor: int = 0, *, crew_id: str | None = None) -> EventsPage:
        """Read a record's events so far, from a cursor."""
        _, answer = self._http.call("GET", _job(action_id, "/events"), query={"cursor": cursor, "crew_id": crew_id})
        return _read(answer, EventsPage)

    def follow(self, action_id: str, cursor: int = 0, *, crew_id: str | None = None) -> Generator[Event, None, None]:
        """Give out a record's events from a cursor to its ending, over as many connections as it takes.

        Each event comes once, in order. Raises Unreachable after `Patience.attempts` in a row without a new event.
        """
        attempt = 0
        while True:
            came = False
            try:
                with contextlib.closing(self._listen(action_id, cursor, crew_id)) as events:
                    for event in events:
                        came, cursor = True, cursor + 1
                        yield event
                        if event.terminal:
                            return
                if not came and self._nothing_left(action_id, cursor, crew_id):
                    return
                lost: ConnectorError = Unreachable(
                    f"{self._http.origin} closes the stream before the ending", may_have_arrived=True
                )
            except Unreachable as error:
                lost = error
            except Refused as error:
                if not error.unavailable:
                    raise
                lost = error
            attempt = 1 if came else attempt + 1
            if attempt > self._patience.attempts:
                raise lost
            self._pause(self._patience.pause(attempt))

    def cancel(self, action_id: str, crew_id: str, *, reason: str | None = None) -> RecordView:
        """Order a running Action to stop and wait until its ending is on disk. The view says which ending it is."""
        body = {"crew_id": crew_id, "action_id": action_id}
        _, answer = self._http.call(
            "POST", _job(action_id, "/cancel"), body=body if reason is None else {**body, "reason": reason}
        )
        return _view(answer)

    def list_jobs(
        self,
        *,
        status: str | None = None,
        crew_id: str | None = None,
        to_be_reconciled: bool | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> JobsPage:
        """Read one page of the records."""
        query = {
            "status": status,
            "crew_id": crew_id,
            "to_be_reconciled": to_be_reconciled,
            "limit": limit,
            "after": after,
        }
        _, answer = self._http.call("GET", "/jobs", query=query)
        jobs, following = answer.get("jobs"), answer.get("next")
        if not isinstance(jobs, list) or not isinstance(following, str | None):
            raise BrokenContract(f"{self._http.origin}/jobs answered without a page of jobs")
        return JobsPage(jobs=[_view(job) for job in jobs], next=following)

    def archive(self, action_id: str) -> None:
        """Archive a record that has ended. Its Action ID stays spent."""
        self._http.call("DELETE", _job(action_id), headers={"X-AIP-Archive-Confirmation": action_id})

    def drain(self) -> None:
        """Tell the service to take no new Action; it goes on with those that it has."""
        self._http.call("POST", "/drain")

    def _listen(self, action_id: str, cursor: int, crew_id: str | None) -> Generator[Event, None, None]:
        with self._http.open(
            "GET",
            _job(action_id, "/events"),
            headers={"Accept": "text/event-stream"},
            query={"cursor": cursor, "crew_id": crew_id},
            read_seconds=HEARTBEAT_SECONDS * 3,
        ) as response:
            yield from self._events(response, cursor)

    def _events(self, response: httpx.Response, cursor: int) -> Generator[Event, None, None]:
        """Read a stream of events up to the ending; the sequence must begin at the cursor and have no gap."""
        parser = sse.Parser()
        with contextlib.closing(self._http.pieces(response)) as pieces:
            for piece in pieces:
                try:
                    messages = parser.feed(piece)
                except (sse.FrameTooLarge, UnicodeDecodeError) as error:
                    raise BrokenContract(f"{self._http.origin} sends a stream that cannot be read: {error}") from error
                for message in messages:
                    event = _event(message.data)
                    if event.sequence != cursor:
                        raise BrokenContract(f"event {cursor} was to come and {event.sequence} came")
                    cursor += 1
                    yield event
                    if event.terminal:
                        return

    def _nothing_left(self, action_id: str, cursor: int, crew_id: str | None) -> bool:
        """Tell a cursor behind the ending from a stream that ended too early: both have no event."""
        page = self.events(action_id, cursor, crew_id=crew_id)
        return page.status is not Status.RUNNING and not page.events


def _job(action_id: str, rest: str = "") -> str:
    return f"/jobs/{quote(action_id, safe='')}{rest}"


def _start_headers(action: Action) -> dict[str, str]:
    return {"Idempotency-Key": action.idempotency_key, "X-AIP-Action-ID": action.action_id}


def _view(answer: Any) -> RecordView:
    if not isinstance(answer, dict):
        raise BrokenContract("a record is not a JSON object")
    return _read({**answer, "answer": answer}, RecordView)


def _event(text: str) -> Event:
    try:
        return _read(read_json(text), Event)
    except ValueError as error:
        raise BrokenContract(f"an event is not JSON: {error}") from error


def _read(value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BrokenContract(f"an answer is not one of the contract: {error}") from error
