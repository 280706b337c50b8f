"""A real small file system that is full (needs root, for the mount)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.sidecar import Sidecar, until

pytestmark = pytest.mark.root

MEGABYTE = 1 << 20


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MiB, where the journal lives alone."""
    place = tmp_path / "volume"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0755", "tmpfs", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(volume: Path) -> Path:
    """Take every block that is free."""
    filler = volume / "filler"
    with filler.open("ab") as file:
        for size in (65_536, 4096, 1):
            while True:
                try:
                    os.write(file.fileno(), b"x" * size)
                except OSError:
                    break
    return filler


def test_a_full_disk_is_507_without_a_provider_call_and_recovers_without_a_restart(
    volume: Path, make_sidecar: Callable[..., Sidecar]
) -> None:
    """Reads go on, readiness stays, health says why; one freed file later admission is open."""
    import httpx

    sidecar = make_sidecar(state_file=str(volume / "state" / "runs.json")).start()
    assert sidecar.submit("crew", {"mark": "before"}, action_id="act_before").status_code == 200
    filler = fill(volume)
    refused = sidecar.submit("crew", {"mark": "full"}, action_id="act_full")
    assert (refused.status_code, refused.json()["code"]) == (507, "journal_full")
    assert sidecar.happened("full") == 0
    assert sidecar.request("GET", "/jobs/act_full").status_code == 404
    assert sidecar.request("GET", "/health").json()["admission"] == "journal_full"
    assert httpx.get(sidecar.management_url + "/readyz").status_code == 200
    assert sidecar.submit("crew", {"mark": "before"}, action_id="act_before").status_code == 200
    filler.unlink()
    assert sidecar.submit("crew", {"mark": "full"}, action_id="act_full").status_code == 200
    assert sidecar.request("GET", "/health").json()["admission"] == "open"
    assert (sidecar.happened("before"), sidecar.happened("full")) == (1, 1)


def test_an_ending_finds_the_room_that_was_kept_for_it(volume: Path, make_sidecar: Callable[..., Sidecar]) -> None:
    """The disk fills while a run is active; its ending is durable all the same."""
    sidecar = make_sidecar(state_file=str(volume / "state" / "runs.json")).start()
    action = sidecar.begin("crew", {"mark": "running", "seconds": 1.5})
    sidecar.wait_for_effect("running")
    fill(volume)
    record = sidecar.ended(action)
    assert record["status"] == "completed"
    sidecar.restart()
    assert sidecar.record(action)["status"] == "completed"


def test_an_ending_that_does_not_fit_is_held_and_never_becomes_another_ending(
    volume: Path, make_sidecar: Callable[..., Sidecar]
) -> None:
    """A long output on a full disk: the record stays running, then ends completed."""
    sidecar = make_sidecar(state_file=str(volume / "state" / "runs.json")).start()
    action = sidecar.begin("large", {"mark": "large", "bytes": 400_000})
    sidecar.wait_for_effect("large")
    other = sidecar.begin("large", {"mark": "held", "bytes": 300_000, "seconds": 0})
    sidecar.ended(action)
    sidecar.ended(other)
    held = sidecar.begin("crew", {"mark": "waits", "seconds": 1, "answer": "y" * 200_000})
    sidecar.wait_for_effect("waits")
    filler = fill(volume)
    until(lambda: sidecar.request("GET", "/health").json()["admission"] == "journal_full", 15, "the held ending")
    assert sidecar.record(held)["status"] == "running"
    filler.unlink()
    record = sidecar.ended(held)
    assert record["status"] == "completed"
    assert len(record["output"]["raw"]) == 200_000


def test_a_start_on_a_full_disk_serves_what_is_known(volume: Path, make_sidecar: Callable[..., Sidecar]) -> None:
    """Recovery must not lose its view because a disk is full."""
    sidecar = make_sidecar(state_file=str(volume / "state" / "runs.json")).start()
    sidecar.submit("crew", {"mark": "done"}, action_id="act_done")
    action = sidecar.begin("crew", {"mark": "running", "seconds": 60})
    sidecar.wait_for_effect("running")
    filler = fill(volume)
    sidecar.restart()
    assert sidecar.record("act_done")["status"] == "completed"
    assert sidecar.record(action)["uncertain_outcome"] is True
    fill(volume)
    assert sidecar.submit("crew", {"mark": "new"}).status_code == 507
    filler.unlink()
    assert sidecar.submit("crew", {"mark": "new"}).status_code == 200
    sidecar.restart()
    assert sidecar.record(action)["uncertain_outcome"] is True
