"""The client of the sidecar's HTTP contract, for connectors and for the command line.

    with Sidecar("http://127.0.0.1:8090", token=token_from_file(path)) as sidecar:
        action = Action(crew_id="demo", action_id="act_1", idempotency_key="order-17", input={"topic": "tides"})
        for event in sidecar.stream(action):
            print(event.event, event.data)

It needs httpx and msgspec and carries nothing of the service: no web framework, no crewai, no journal.

What it does by itself: `follow` connects again and goes on after the last event that it gave out, since reading twice
changes nothing. What it never does by itself: send a start, a cancel or an archive a second time. To send the same
Action again (same fields, same key) is always safe, the sidecar answers it from its journal; to send it under a new
Action ID is new work and may repeat an effect. Both are the caller's decision.
"""

from crewai_sidecar.connector.client import Patience, Sidecar, token_from_file
from crewai_sidecar.connector.errors import BrokenContract, ConnectorError, Refused, Unreachable
from crewai_sidecar.connector.values import Accepted, Action, Event, EventsPage, Health, JobsPage, RecordView

__all__ = [
    "Accepted",
    "Action",
    "BrokenContract",
    "ConnectorError",
    "Event",
    "EventsPage",
    "Health",
    "JobsPage",
    "Patience",
    "RecordView",
    "Refused",
    "Sidecar",
    "Unreachable",
    "token_from_file",
]
