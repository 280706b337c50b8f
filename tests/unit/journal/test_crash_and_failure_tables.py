"""The tables of journal/FORMAT.md, row by row, on a file system that stops or fails where a row says."""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewai_sidecar.errors import JournalBroken, JournalFull, NotStored
from crewai_sidecar.journal import Change, Files, Journal, open_journal
from tests.doubles.fault_files import OPERATIONS, Crash, FaultFiles
from tests.process.sidecar import until

MAX_BYTES = 1 << 20


class House:
    """A journal on a file system of the test's own."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = directory / "state" / "runs.json"
        self.max_bytes = max_bytes
        self.files = FaultFiles()
        self.outcomes: dict[str, NotStored | None] = {}
        self._settled = threading.Condition()
        self.journal: Journal | None = None

    def settled(self, batch: list[tuple[Change, NotStored | None]]) -> None:
        with self._settled:
            for change, error in batch:
                self.outcomes[change.key] = error
            self._settled.notify_all()

    def open(self) -> list[bytes]:
        opened = open_journal(self.path, max_bytes=self.max_bytes, settled=self.settled, files=self.files)
        self.journal = opened.journal
        return opened.lines

    def start(self) -> None:
        self.open()
        assert self.journal is not None
        assert self.journal.start([]) is None

    def commit(self, key: str, *, room: int = 64, urgent: bool = False, text: str = "") -> NotStored | None:
        assert self.journal is not None
        self.outcomes.pop(key, None)
        self.journal.submit(change(key, room=room, urgent=urgent, text=text))
        with self._settled:
            assert self._settled.wait_for(lambda: key in self.outcomes, 10)
        return self.outcomes[key]

    def keys(self) -> list[str]:
        """What a start after a crash finds, with a disk that works."""
        other = open_journal(self.path, max_bytes=self.max_bytes, settled=lambda batch: None)
        other.journal.close()
        return [re.findall(rb'"action_id":"(\w+)"', line)[0].decode() for line in other.lines]

    def release(self) -> None:
        """Give the lock up as the kernel does when a process ends."""
        if self.journal is not None:
            self.journal._lock.release()  # type: ignore[attr-defined]


def change(key: str, *, room: int = 64, urgent: bool = False, text: str = "") -> Change:
    return Change(key, (b'{"action_id":"%s","t":"%s"}' % (key.encode(), text.encode()),), room=room, urgent=urgent)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.files.heal()
    if made.journal is not None and not made.files.dead:
        made.journal.close()


STEPS = {
    # step of the crash table: what the next start finds of the change "b"
    "create the temporary file": ("create", {False}),
    "allocate": ("allocate", {False}),
    "write": ("write", {False}),
    "truncate": ("truncate", {False}),
    "fsync the file": ("sync", {False}),
    "rename": ("rename", {True, False}),
    "fsync the directory": ("sync_directory", {True}),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_right_after_a_step_leaves_what_its_row_says(house: House, step: str) -> None:
    """The acknowledged change is always there; the one in flight is whole or not there, and never acknowledged."""
    kind, possible = STEPS[step]
    house.start()
    assert house.commit("a") is None
    begin = len(house.files.calls)
    dry = _calls_of_one_commit(house)
    house.files.crash_after = begin + len(dry) + 1 + dry.index(kind)
    journal = house.journal
    assert journal is not None
    with pytest.raises(Crash):
        journal._attempt([change("b")])  # type: ignore[attr-defined]
    assert "b" not in house.outcomes
    journal._queue.put(None)  # type: ignore[attr-defined]
    house.release()
    found = house.keys()
    assert found[:2] == ["a", "dry"]
    assert ("b" in found) in possible
    assert not list(house.path.parent.glob(".*.tmp"))


def _calls_of_one_commit(house: House) -> list[str]:
    before = len(house.files.calls)
    assert house.commit("dry") is None
    return house.files.calls[before:]


def test_every_step_of_the_protocol_has_a_row() -> None:
    """In the crash table, or it can be left out of it: closing and removing change nothing that matters."""
    assert {kind for kind, _ in STEPS.values()} | {"close", "remove"} == set(OPERATIONS)
    assert set(OPERATIONS) == {name for name in vars(Files) if not name.startswith("_")}


def test_the_rows_of_this_file_are_the_rows_of_the_format() -> None:
    """The crash table in FORMAT.md names the same steps."""
    text = (Path(__file__).parents[3] / "service/crewai_sidecar/journal/FORMAT.md").read_text()
    table = text.split("## Crash table")[1].split("## Failure table")[0]
    rows = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    assert set(rows) - {"step", "---"} == {*STEPS, "remember the id in the lock", "settle"}


@pytest.mark.parametrize("kind", ["create", "allocate", "write", "truncate"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_is_refused_and_poisons_nothing(house: House, kind: str, number: int) -> None:
    """The old journal is whole, and the next commit works as soon as there is space."""
    house.start()
    assert house.commit("a") is None
    house.files.fail(kind, number)
    assert isinstance(house.commit("b"), JournalFull)
    assert house.journal is not None
    troubles = [house.journal.trouble]
    house.files.heal()
    assert house.commit("c") is None
    troubles.append(house.journal.trouble)
    assert troubles == ["journal_full", None]
    house.journal.close()
    house.journal = None
    assert house.keys() == ["a", "c"]


@pytest.mark.parametrize("kind", ["write", "sync", "rename"])
def test_a_failing_disk_is_refused_and_the_file_is_thrown_away(house: House, kind: str) -> None:
    """A file whose fsync failed is never fsynced again; the next commit uses another one."""
    house.start()
    assert house.commit("a") is None
    house.files.fail(kind, errno.EIO, times=1)
    assert isinstance(house.commit("b"), JournalBroken)
    assert house.commit("c") is None
    assert house.journal is not None
    house.journal.close()
    house.journal = None
    assert house.keys() == ["a", "c"]


def test_a_failed_directory_fsync_is_not_acknowledged_and_the_next_commit_takes_it_back(house: House) -> None:
    """507, and then the journal is as if it had never been asked."""
    house.start()
    assert house.commit("a") is None
    house.files.fail("sync_directory", errno.EIO, times=1)
    assert isinstance(house.commit("b"), JournalBroken)
    assert house.commit("c") is None
    assert house.journal is not None
    house.journal.close()
    house.journal = None
    assert house.keys() == ["a", "c"]


def test_507_after_a_failed_fsync_of_the_directory_then_a_crash(house: House) -> None:
    """The change may reappear: the service fences it then, with no provider work started."""
    house.start()
    assert house.commit("a") is None
    house.files.fail("sync_directory", errno.EIO, times=1)
    assert isinstance(house.commit("b"), JournalBroken)
    house.files.dead = True
    assert house.journal is not None
    house.journal._queue.put(None)  # type: ignore[attr-defined]
    house.release()
    assert house.keys() == ["a", "b"]


def test_a_strangers_file_is_never_overwritten(house: House) -> None:
    """Another writer's journal in the place of ours: refused until a restart, whatever is asked."""
    house.start()
    assert house.commit("a") is None
    stranger = house.path.with_name("other")
    stranger.write_bytes(house.path.read_bytes())
    stranger.chmod(0o600)
    stranger.rename(house.path)
    content = house.path.read_bytes()
    for key in ("b", "c"):
        assert isinstance(house.commit(key, urgent=True), JournalBroken)
    assert house.path.read_bytes() == content


def test_a_removed_journal_is_not_made_again_over_the_loss(house: House) -> None:
    """Somebody took it away under us: say so instead of hiding it."""
    house.start()
    assert house.commit("a") is None
    house.path.unlink()
    assert isinstance(house.commit("b"), JournalBroken)
    assert not house.path.exists()


def test_the_byte_bound_refuses_admissions_and_lets_endings_use_the_room_they_kept(tmp_path: Path) -> None:
    """What an admission reserved is there for its ending."""
    house = House(tmp_path, max_bytes=4000)
    house.start()
    admitted = 0
    while house.commit(f"a{admitted}", room=400) is None:
        admitted += 1
    assert 3 < admitted < 10
    for number in range(admitted):
        assert house.commit(f"a{number}", room=0, urgent=True, text="e" * 350) is None
    assert house.journal is not None
    assert house.journal.size <= 4000
    house.journal.close()
    assert len(house.keys()) == admitted


def test_what_is_urgent_passes_a_batch_that_does_not_fit(house: House) -> None:
    """Endings out of the reserve, while the admissions beside them are refused."""
    house.start()
    assert house.commit("a") is None
    journal = house.journal
    assert journal is not None
    allocated = house.files.real.allocate
    house.files.failures["create"] = lambda count, path: errno.ENOSPC  # no file after the one that is ready
    batch = [change("b"), change("a", room=0, urgent=True, text="end"), change("c")]
    outcome = {c.key: error for c, error in journal._commit(batch)}  # type: ignore[attr-defined]
    assert isinstance(outcome["b"], JournalFull)
    assert isinstance(outcome["c"], JournalFull)
    assert outcome["a"] is None
    assert allocated is not None


def test_one_ending_that_is_too_large_spends_no_other_ones_room(tmp_path: Path) -> None:
    """It is refused, and held by its run; what waits beside it is written."""
    house = House(tmp_path, max_bytes=8000)
    house.start()
    for number in range(8):
        assert house.commit(f"a{number}", room=400) is None
    journal = house.journal
    assert journal is not None
    batch = [change("a0", room=0, urgent=True, text="x" * 6000), change("a1", room=400, urgent=True, text="started")]
    outcome = {c.key: error for c, error in journal._commit(batch)}  # type: ignore[attr-defined]
    assert isinstance(outcome["a0"], JournalFull)
    assert outcome["a1"] is None
    for number in range(1, 8):
        assert house.commit(f"a{number}", room=0, urgent=True, text="e" * 350) is None
    journal.close()


def test_a_journal_that_is_full_can_be_made_smaller(tmp_path: Path) -> None:
    """Archiving frees a volume that the journal itself has filled, without a spare byte on it."""
    house = House(tmp_path)
    house.start()
    assert house.commit("a", room=0, text="x" * 2000) is None
    assert house.commit("b", room=0, text="x" * 2000) is None
    house.files.fail("create", errno.ENOSPC)
    assert isinstance(house.commit("c"), JournalFull)
    assert house.commit("a", room=0, text="tombstone") is None
    house.files.heal()
    assert house.journal is not None
    house.journal.close()


def test_a_journal_in_trouble_finds_out_by_itself_that_it_is_over(house: House) -> None:
    """Nobody has to send an Action to learn that Actions are taken again."""
    house.start()
    house.files.fail("allocate", errno.ENOSPC)
    assert isinstance(house.commit("a"), JournalFull)
    assert house.journal is not None
    house.files.heal()
    until(lambda: house.journal is not None and house.journal.trouble is None, 10, "the end of the trouble")


def test_an_ending_that_fits_its_room_does_not_say_that_admissions_are_taken(house: House) -> None:
    """`trouble` is about what an admission would meet."""
    house.start()
    assert house.commit("a") is None
    house.files.fail("create", errno.ENOSPC)
    assert isinstance(house.commit("b"), JournalFull)
    assert house.commit("a", room=0, urgent=True, text="end") is None
    assert house.journal is not None
    assert house.journal.trouble == "journal_full"


def test_a_fault_in_the_writer_itself_refuses_a_batch_and_the_thread_goes_on(house: House) -> None:
    """Out of memory, say: a commit that hangs would be worse."""
    house.start()

    def no_memory(*_: object) -> bool:
        raise MemoryError

    good = house.files.real.allocate
    house.files.real.allocate = no_memory  # type: ignore[method-assign,assignment]
    assert isinstance(house.commit("a"), JournalBroken)
    house.files.real.allocate = good  # type: ignore[method-assign]
    assert house.commit("b") is None


def test_a_file_system_that_cannot_allocate_is_used_without_a_reserve(house: House) -> None:
    """Best effort there, as FORMAT.md says."""
    house.files.real.allocate = lambda *_: False  # type: ignore[method-assign]
    house.start()
    assert house.commit("a") is None
    assert house.commit("a", room=0, urgent=True) is None


def test_a_start_that_the_disk_does_not_take_serves_what_it_has(house: House) -> None:
    """And takes changes as soon as there is space."""
    house.start()
    assert house.commit("a") is None
    assert house.journal is not None
    house.journal.close()
    lines = house.open()
    assert len(lines) == 1
    house.files.fail("allocate", errno.ENOSPC)
    assert house.journal is not None
    assert isinstance(house.journal.start([change("a", room=0, urgent=True, text="fence")]), JournalFull)
    house.files.heal()
    assert house.commit("a", room=0, urgent=True, text="fence") is None
    assert b"fence" in house.path.read_bytes()
