"""A small honest double of the sidecar's HTTP contract, on a real socket, for the connector and the command line.

It keeps records, answers repeats from them, and can cut its streams and refuse requests on demand. It runs no crew: a
started Action ends at once with the events of `script`.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

SCRIPT = (
    ("started", {"status": "running", "operation": "run"}),
    ("tool_started", {"tool_name": "almanac"}),
    ("chunk", {"content": "two words", "agent_role": "Writer"}),
    ("completed", {"raw": "the output", "token_usage": {}, "tasks_output": []}),
)


class FakeService:
    """The double. `requests` has what came: method, path with query, headers in lower case, body."""

    def __init__(self) -> None:
        self.script: tuple[tuple[str, dict[str, Any]], ...] = SCRIPT
        self.cuts: list[int] = []
        """For each stream in turn: the number of events after which its connection is closed."""
        self.refusals: list[tuple[int, dict[str, Any]]] = []
        """For each request in turn: an answer to give instead."""
        self.lose_start: str | None = None
        """Close a start's connection without an answer, "before" or "after" its admission."""
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.records: dict[str, dict[str, Any]] = {}
        self.health: tuple[int, dict[str, Any]] = (
            200,
            {"status": "ready", "durable_journal": True, "crews": ["demo"], "operations": ["run"], "new_field": 1},
        )
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def admit(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the Action's record, a new one where there is none."""
        return self.records.setdefault(body["action_id"], self._record(body))

    def _record(self, body: dict[str, Any]) -> dict[str, Any]:
        events = [{"event": name, "sequence": n, "data": data} for n, (name, data) in enumerate(self.script)]
        last, data = self.script[-1]
        view = {
            "action_id": body["action_id"],
            "crew_id": body["crew_id"],
            "operation": body["operation"],
            "status": last if last in {"completed", "failed", "cancelled"} else "running",
            "event_count": len(events),
            "output": data if last == "completed" else None,
            **{name: value for name, value in data.items() if last == "failed" and name != "status"},
        }
        return {"view": view, "events": events}

    def _handler(fake) -> type[BaseHTTPRequestHandler]:  # noqa: N805  # `self` is the handler inside
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def handle_one(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                fake.requests.append((self.command, self.path, headers, body))
                if fake.refusals:
                    status, problem = fake.refusals.pop(0)
                    self.answer(status, problem)
                    return
                url = urlsplit(self.path)
                self.route([unquote(part) for part in url.path.split("/")[1:]], parse_qs(url.query), headers, body)

            do_GET = do_POST = do_DELETE = handle_one  # noqa: N815  # the names that http.server calls

            def route(self, parts: list[str], query: dict[str, list[str]], headers: dict[str, str], body: Any) -> None:
                match self.command, parts:
                    case "GET", ["health"]:
                        self.answer(*fake.health)
                    case "POST", ["drain"]:
                        self.answer(200, {"draining": True})
                    case "POST", ["jobs"] | ["jobs", "stream"]:
                        self.start(body, headers, streamed=len(parts) == 2)
                    case "GET", ["jobs"]:
                        ids = sorted(fake.records)
                        after = query.get("after", [""])[0]
                        rest = [one for one in ids if one > after]
                        page = rest[: int(query.get("limit", ["100"])[0])]
                        views = [fake.records[one]["view"] for one in page]
                        self.answer(200, {"jobs": views, "next": page[-1] if len(rest) > len(page) else None})
                    case _, ["jobs", action_id, *rest]:
                        self.job(action_id, rest, query, headers)

            def job(
                self, action_id: str, rest: list[str], query: dict[str, list[str]], headers: dict[str, str]
            ) -> None:
                record = fake.records.get(action_id)
                if record is None:
                    self.answer(404, {"code": "action_unknown", "detail": "No record has this Action ID."})
                elif self.command == "DELETE":
                    del fake.records[action_id]
                    self.answer(200, {"archived": True, "action_id": action_id})
                elif rest == ["events"]:
                    cursor = int(query.get("cursor", ["0"])[0])
                    if "text/event-stream" in headers.get("accept", ""):
                        self.stream(record, cursor)
                    else:
                        view, events = record["view"], record["events"][cursor:]
                        page = {"cursor": cursor, "next_cursor": view["event_count"], "events": events}
                        self.answer(200, {"action_id": action_id, "status": view["status"], **page})
                else:
                    self.answer(200, record["view"])

            def start(self, body: dict[str, Any], headers: dict[str, str], *, streamed: bool) -> None:
                if fake.lose_start == "before":
                    self.close_connection = True
                    return
                record = fake.admit(body)
                if fake.lose_start == "after":
                    self.close_connection = True
                elif streamed:
                    self.stream(record, 0)
                elif headers.get("prefer") == "respond-async":
                    self.answer(202, record["view"], {"Location": f"/jobs/{body['action_id']}"})
                elif record["view"]["status"] == "completed":
                    self.answer(200, record["view"]["output"])
                else:
                    self.answer(502, {"code": "run_failed", "detail": "The Action failed."})

            def stream(self, record: dict[str, Any], cursor: int) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                cut = fake.cuts.pop(0) if fake.cuts else None
                for count, event in enumerate(record["events"][cursor:]):
                    if count == cut:
                        break
                    head = f"id: {event['sequence']}\nevent: {event['event']}\n"
                    frame = f"{head}data: {json.dumps(event)}\n\n: still here\n\n"
                    self.wfile.write(f"{len(frame):x}\r\n{frame}\r\n".encode())
                if cut is None:
                    self.wfile.write(b"0\r\n\r\n")
                self.close_connection = True

            def answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
                text = json.dumps(value).encode()
                self.send_response(status)
                for name, content in {**(headers or {}), "Content-Length": str(len(text))}.items():
                    self.send_header(name, content)
                self.end_headers()
                self.wfile.write(text)

        return Handler
