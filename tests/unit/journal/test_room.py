"""Room that was kept is there: in the byte bound, on a full disk, and whoever else is in the same batch."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewai_sidecar.errors import JournalFull, NotStored
from crewai_sidecar.journal import Change, Files, RealFiles, open_journal
from tests.doubles.fault_files import SmallFiles
from tests.process.sidecar import until

ROOM = 4096
PLAIN = 800


class House:
    """A journal of which batches are formed by hand: what `submit` is given waits until the test commits it."""

    def __init__(self, directory: Path, files: Files, max_bytes: int = 1 << 20) -> None:
        self.path = directory / "runs.json"
        self._settled = threading.Condition()
        self._outcomes: dict[Change, NotStored | None] = {}
        self._go = threading.Semaphore(0)
        self.journal = open_journal(self.path, max_bytes=max_bytes, settled=self._hear, files=files).journal
        assert self.journal.start([]) is None

    def _hear(self, batch: list[tuple[Change, NotStored | None]]) -> None:
        with self._settled:
            self._outcomes.update(batch)
            self._settled.notify_all()

    def commit(self, *batch: Change) -> list[NotStored | None]:
        """Commit changes as one batch: the writer has them all before it begins."""
        gate = Change("gate", (b'{"action_id":"gate"}',), urgent=True)
        self._outcomes.clear()
        entered, leave = threading.Event(), threading.Event()
        hear = self._hear

        def hold(settled: list[tuple[Change, NotStored | None]]) -> None:
            entered.set()
            assert leave.wait(10)
            hear(settled)

        self.journal._settled = hold  # type: ignore[attr-defined]
        self.journal.submit(gate)
        assert entered.wait(10)
        self.journal._settled = hear  # type: ignore[attr-defined]
        for change in batch:
            self.journal.submit(change)
        leave.set()
        with self._settled:
            assert self._settled.wait_for(lambda: set(batch) <= set(self._outcomes), 20)
        return [self._outcomes[change] for change in batch]

    def lines(self) -> dict[str, bytes]:
        """What is on the disk, by key."""
        lines = self.path.read_bytes().splitlines()[1:-1]
        return {line.split(b'"')[3].decode(): line for line in lines}


def running(key: str, size: int = PLAIN) -> Change:
    return Change(key, _line(key, size), room=ROOM)


def started(key: str, size: int = PLAIN) -> Change:
    return Change(key, _line(key, size), room=ROOM, urgent=True)


def ended(key: str, size: int) -> Change:
    return Change(key, _line(key, size), urgent=True)


def archived(key: str) -> Change:
    return Change(key, _line(key, 10))


def _line(key: str, size: int) -> tuple[bytes, ...]:
    return (b'{"action_id":"%s","t":"' % key.encode(), b"x" * size, b'"}')


@pytest.fixture
def small(tmp_path: Path) -> SmallFiles:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    return SmallFiles(directory)


@pytest.fixture
def house(tmp_path: Path, small: SmallFiles) -> Iterator[House]:
    made = House(tmp_path / "state", small)
    yield made
    made.journal.close()


def fill(house: House, small: SmallFiles, count: int) -> list[str]:
    """Admit Actions, then take all space that is free."""
    keys = [f"a{number}" for number in range(count)]
    for key in keys:
        assert house.commit(running(key)) == [None]
    small.fill()
    return keys


def test_every_ending_of_a_full_disk_may_use_all_of_its_room(house: House, small: SmallFiles) -> None:
    """Not half of it: an ending makes the journal larger and the file that follows it too."""
    keys = fill(house, small, 30)
    assert house.commit(running("new")) != [None]
    for key in keys:
        assert house.commit(ended(key, PLAIN + ROOM - 100)) == [None]
    assert len(house.lines()[keys[-1]]) > ROOM


def test_started_takes_from_the_room_and_the_endings_still_fit(house: House, small: SmallFiles) -> None:
    """Both are what the room is kept for."""
    keys = fill(house, small, 20)
    for key in keys:
        assert house.commit(started(key, PLAIN + 200)) == [None]
    for key in keys:
        assert house.commit(ended(key, PLAIN + ROOM - 400)) == [None]


def test_chunks_may_not_use_what_is_kept_for_endings(house: House, small: SmallFiles) -> None:
    """A talkative crew on a full disk takes no ending's place."""
    keys = fill(house, small, 5)
    refused = house.commit(running(keys[0], PLAIN + ROOM))
    assert isinstance(refused[0], JournalFull)
    assert len(house.lines()[keys[0]]) < PLAIN + 100
    for key in keys:
        assert house.commit(ended(key, PLAIN + ROOM - 100)) == [None]


def test_archiving_makes_room_on_a_full_disk(house: House, small: SmallFiles) -> None:
    """It is the operator's way out, so it must not need what it is to give."""
    keys = fill(house, small, 20)
    for key in keys[:15]:
        assert house.commit(ended(key, PLAIN)) == [None]
    small.fill()
    for key in keys[:15]:
        assert house.commit(archived(key)) == [None]
    assert house.commit(running("new")) == [None]
    for key in (*keys[15:], "new"):
        assert house.commit(ended(key, PLAIN + ROOM - 100)) == [None]


def test_archiving_makes_room_under_the_byte_bound(tmp_path: Path) -> None:
    """And `trouble` says so within the time of a probe, though nobody asks for anything."""
    house = House(tmp_path / "state", RealFiles(), max_bytes=22_000)
    for key in "abcde":
        assert house.commit(running(key, 10)) == [None]
    assert isinstance(house.commit(running("new", 10))[0], JournalFull)
    assert isinstance(house.commit(ended("a", 6000))[0], JournalFull)  # more than its own room: not another's
    assert house.commit(ended("b", ROOM - 200)) == [None]
    assert house.journal.trouble == "journal_full"
    assert house.commit(archived("b")) == [None]
    until(lambda: house.journal.trouble is None, 10, "the end of the trouble")
    assert house.commit(running("new", 10)) == [None]
    house.journal.close()


def test_a_probe_asks_for_what_an_admission_would_need(house: House, small: SmallFiles) -> None:
    """A full disk is not said to be over because a checkpoint without any change would fit."""
    fill(house, small, 5)
    assert small.capacity is not None
    small.capacity += small.used // 4  # enough for the journal, not for one more room
    assert isinstance(house.commit(running("new"))[0], JournalFull)
    house.journal._probe()  # type: ignore[attr-defined]
    assert house.journal.trouble == "journal_full"
    small.capacity = None
    until(lambda: house.journal.trouble is None, 10, "the end of the trouble")


def test_an_older_line_never_follows_a_newer_one_to_the_disk(house: House, small: SmallFiles) -> None:
    """When a batch is split, a key's last line that was taken is what is there."""
    keys = fill(house, small, 3)
    outcome = house.commit(running(keys[0], PLAIN + 10), ended(keys[0], PLAIN + 50), running("new"))
    assert outcome[:2] == [None, None]
    assert isinstance(outcome[2], JournalFull)
    assert len(house.lines()[keys[0]]) == sum(map(len, _line(keys[0], PLAIN + 50)))
    outcome = house.commit(running(keys[1], PLAIN * 9), archived(keys[1]), running("new"))
    assert outcome[:2] == [None, None]
    assert len(house.lines()[keys[1]]) == sum(map(len, _line(keys[1], 10)))


def test_what_comes_after_an_urgent_change_of_its_key_does_not_take_it_along(house: House, small: SmallFiles) -> None:
    """`started` is written, the chunk behind it is not."""
    keys = fill(house, small, 3)
    outcome = house.commit(started(keys[0], PLAIN + 100), running(keys[0], PLAIN * 9))
    assert outcome[0] is None
    assert isinstance(outcome[1], JournalFull)
    assert len(house.lines()[keys[0]]) == sum(map(len, _line(keys[0], PLAIN + 100)))


def test_a_large_ending_holds_up_no_small_one(house: House, small: SmallFiles) -> None:
    """They may be tried again at the same moment, for ever."""
    keys = fill(house, small, 6)
    batch = [ended(keys[0], 1 << 18), *(ended(key, PLAIN + 300) for key in keys[1:])]
    outcome = house.commit(*batch)
    assert isinstance(outcome[0], JournalFull)
    assert outcome[1:] == [None] * 5
    assert house.journal.trouble == "journal_full"
    small.capacity = None
    assert house.commit(batch[0]) == [None]
    assert house.journal.trouble is None


def test_a_failed_fsync_costs_no_room(house: House, small: SmallFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reserve is not the file that failed."""
    keys = fill(house, small, 5)
    small.capacity = None

    def broken(self: RealFiles, descriptor: int, path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "sync", broken)
        assert house.commit(running("new"))[0] is not None
    small.fill()
    for key in keys:
        assert house.commit(ended(key, PLAIN + ROOM - 100)) == [None]


@pytest.mark.root
def test_a_real_full_disk_refuses_admissions_takes_every_ending_and_recovers(tmp_path: Path) -> None:
    """A tmpfs of 1 MiB that a neighbour fills; one removed file later admission is open again."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0755", "tmpfs", str(tmp_path)], check=True)
    try:
        house = House(tmp_path / "state", RealFiles())
        keys = [f"a{number}" for number in range(25)]
        for key in keys:
            assert house.commit(running(key)) == [None]
        filler = tmp_path / "filler"
        with filler.open("ab", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        assert os.statvfs(tmp_path).f_bavail == 0
        assert isinstance(house.commit(running("new"))[0], JournalFull)
        for key in keys:
            assert house.commit(ended(key, PLAIN + ROOM - 100)) == [None]
        assert isinstance(house.commit(running("new", 1 << 16))[0], JournalFull)
        filler.unlink()
        assert house.commit(running("new", 1 << 16)) == [None]
        house.journal.close()
        again = open_journal(house.path, max_bytes=1 << 20, settled=lambda batch: None)
        assert len(again.lines) == 27
        again.journal.close()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
