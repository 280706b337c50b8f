"""What a crash leaves behind, and what the next start says of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.process.sidecar import Sidecar, alive, family, until


def test_a_started_action_is_failed_and_uncertain_after_a_crash(sidecar: Sidecar) -> None:
    """And stays so: after a second crash, and for every repeat; nothing runs again."""
    action = sidecar.begin("crew", {"mark": "paid", "seconds": 60})
    sidecar.wait_for_effect("paid")
    shown = sidecar.events(action)
    everything = family(sidecar.pid)
    sidecar.kill()
    until(lambda: not alive(everything), 3, "the end of every process of the killed sidecar")
    for _ in range(2):
        sidecar.start()
        record = sidecar.record(action)
        assert (record["status"], record["cause"]) == ("failed", "restart")
        assert record["uncertain_outcome"] is True
        assert record["provider_started"] is True
        assert record["to_be_reconciled"] is True
        assert record.get("error_type") is None
        events = sidecar.events(action)
        assert events[: len(shown)] == shown
        assert events[-1]["event"] == "failed"
        assert events[-1]["data"]["uncertain_outcome"] is True
        repeat = sidecar.submit("crew", {"mark": "paid", "seconds": 60}, action_id=action)
        assert repeat.status_code == 502
        sidecar.kill()
    assert sidecar.happened("paid") == 1


def test_an_accepted_action_is_uncertain_by_the_seed_but_not_to_be_reconciled(
    make_sidecar: Callable[..., Sidecar],
) -> None:
    """Its provider had provably not started."""
    sidecar = make_sidecar(max_concurrency="1").start()
    running = sidecar.begin("crew", {"mark": "running", "seconds": 60})
    sidecar.wait_for_effect("running")
    queued = sidecar.begin("crew", {"mark": "queued"})
    sidecar.restart()
    record = sidecar.record(queued)
    assert (record["status"], record["cause"]) == ("failed", "restart")
    assert record["uncertain_outcome"] is True
    assert record["provider_started"] is False
    assert record["to_be_reconciled"] is False
    assert sidecar.record(running)["to_be_reconciled"] is True
    assert sidecar.happened("queued") == 0


def test_a_repeat_is_answered_from_the_journal_when_crew_and_operation_are_gone(sidecar: Sidecar) -> None:
    """Durable records stay reachable whatever policy and registry say now (W21)."""
    first = sidecar.submit("everything", {"query": ["q"]}, action_id="act_1", operation="run")
    assert first.status_code == 200
    sidecar.stop()
    sidecar.settings["AIP_CREWAI_ALLOWED_OPERATIONS"] = "replay"
    sidecar.settings["AIP_CREWAI_REGISTRY"] = "other_crews:crews"
    sidecar.start()
    repeat = sidecar.submit("everything", {"query": ["q"]}, action_id="act_1", operation="run")
    assert (repeat.status_code, repeat.json()) == (200, first.json())
    assert sidecar.submit("everything", {"query": ["q"]}, operation="run").status_code == 403


def test_the_journal_has_neither_the_input_nor_the_key(sidecar: Sidecar) -> None:
    """What it has instead: the request hash and a salted digest of the key (the seed)."""
    sidecar.submit("crew", {"mark": "m", "secret_input": "not-in-the-journal"}, action_id="act_1", key="not-the-key")
    text = sidecar.state_file.read_text()
    assert "not-in-the-journal" not in text
    assert "not-the-key" not in text
    (line,) = [json.loads(line) for line in text.splitlines() if "act_1" in line]
    assert len(line["request_hash"]) == 64
    assert len(line["key_digest"]) == 64
    assert line["accepted_at"] <= line["started_at"] <= line["ended_at"]


def test_the_journal_is_private_while_it_runs_and_afterwards(sidecar: Sidecar) -> None:
    """0600 in 0700, the lock too, and no temporary file is left."""
    sidecar.submit("crew")
    state = sidecar.state_file.parent
    assert state.stat().st_mode & 0o777 == 0o700
    for path in state.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path
    sidecar.stop()
    assert not [path.name for path in state.iterdir() if path.name.endswith(".tmp")]


def test_a_trace_context_is_kept_with_the_record(sidecar: Sidecar) -> None:
    """And an invalid one is ignored."""
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Idempotency-Key": "k"}
    body = {"crew_id": "crew", "action_id": "act_traced", "input": sidecar.with_effects(None)}
    assert sidecar.request("POST", "/jobs", json=body, headers=headers).status_code == 200
    record = sidecar.record("act_traced")
    assert record["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert record["span_id"] == "b7ad6b7169203331"
    headers["traceparent"] = "00-nonsense"
    body["action_id"] = "act_untraced"
    assert sidecar.request("POST", "/jobs", json=body, headers=headers).status_code == 200
    assert sidecar.record("act_untraced")["trace_id"] is None


def test_what_a_killed_sidecar_left_running_is_ended_by_the_next_start(sidecar: Sidecar) -> None:
    """Also a stranger that cleared nothing of its environment: the marker names the journal."""
    action = sidecar.begin("leaver", {"seconds": 60})
    strangers: set[int] = set()

    def seen() -> bool:
        strangers.update(int(line.split()[1]) for line in sidecar.effects.read_text().splitlines())
        return bool(strangers)

    until(seen, 20, "the stranger")
    everything = family(sidecar.pid)
    for pid in sorted(everything - strangers, reverse=True):
        with_suppress_kill(pid)
    sidecar.kill()
    sidecar.start()
    assert not alive(strangers)
    assert sidecar.record(action)["uncertain_outcome"] is True


def with_suppress_kill(pid: int) -> None:
    """SIGKILL, where the process is still there: the kernel takes some of them along."""
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return


def test_unknown_fields_of_a_record_survive_the_service(sidecar: Sidecar) -> None:
    """A newer version's word is carried along, not dropped by an older one."""
    sidecar.submit("crew", {"mark": "a"}, action_id="act_1")
    sidecar.stop()
    record = [line for line in sidecar.state_file.read_text().splitlines() if "act_1" in line]
    assert len(record) == 1
    rewrite(sidecar.state_file, record[0], record[0].replace('"crew_id"', '"later":{"kept":true},"crew_id"', 1))
    sidecar.start()
    sidecar.submit("crew", {"mark": "b"}, action_id="act_2")
    assert '"later":{"kept":true}' in sidecar.state_file.read_text()


def rewrite(path: Path, old: str, new: str) -> None:
    """Change one line of a journal as another version would: with a right end line."""
    import zlib

    lines = path.read_text().splitlines()
    lines[lines.index(old)] = new
    body = "".join(line + "\n" for line in lines[:-1])
    end: dict[str, Any] = json.loads(lines[-1])
    end["crc32"] = f"{zlib.crc32(body.encode()):08x}"
    path.write_text(body + json.dumps(end, separators=(",", ":")) + "\n")


def test_on_loopback_a_sidecar_may_run_without_a_token_and_without_a_journal(
    make_sidecar: Callable[..., Sidecar],
) -> None:
    """The two development modes; health does not call such a journal durable, so no connector takes it for one."""
    sidecar = make_sidecar(state_file="", bearer_token="", allow_ephemeral="1", allow_unauthenticated="true").start()
    health = httpx.get(sidecar.url + "/health").json()
    assert (health["status"], health["durable_journal"]) == ("ready", False)
    assert sidecar.submit("crew", {"mark": "m"}, action_id="act_1").status_code == 200
    assert sidecar.submit("crew", {"mark": "m"}, action_id="act_1").status_code == 200
    assert sidecar.happened("m") == 1
    sidecar.restart()
    assert sidecar.request("GET", "/jobs/act_1").status_code == 404
    assert not sidecar.state_file.exists()
