"""The tables of journal/FORMAT.md, row by row, on a file system that stops or fails where a row says."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewai_sidecar.errors import JournalBroken, JournalFull, NotStored
from crewai_sidecar.journal import Change, Files, Journal, RealFiles, open_journal
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
            os.close(self.journal._lock._descriptor)  # type: ignore[attr-defined]


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


@pytest.mark.parametrize("step", [*STEPS, "remember the id in the lock"])
def test_a_crash_in_the_first_checkpoint_leaves_a_place_that_opens(tmp_path: Path, step: str) -> None:
    """With the journal or as a first start, whichever is there; never as a journal that is lost."""
    dry = House(tmp_path / "dry")
    dry.path.parent.parent.mkdir()
    dry.open()
    begin = len(dry.files.calls)
    assert dry.journal is not None
    assert dry.journal.start([change("a")]) is None
    calls = dry.files.calls[begin:]
    dry.journal.close()
    last = len(calls) - 1 - calls[::-1].index("sync")
    at = last if step.startswith("remember") else calls.index(STEPS[step][0])

    house = House(tmp_path)
    house.open()
    house.files.crash_after = len(house.files.calls) + at + 1
    journal = house.journal
    assert journal is not None
    with pytest.raises(Crash):
        journal._attempt([change("a")], frugal=True)  # type: ignore[attr-defined]
    house.release()
    found = house.keys()
    assert found in ([], ["a"])
    assert found == ["a"] or step not in {"fsync the directory", "remember the id in the lock"}


def _calls_of_one_commit(house: House) -> list[str]:
    before = len(house.files.calls)
    assert house.commit("dry") is None
    return house.files.calls[before:]


def test_a_crash_right_after_truncate_the_reserve(house: House) -> None:
    """The reserve becomes the file where there is no space for another; its row is that of a write."""
    house.start()
    for key in ("a", "b"):
        assert house.commit(key) is None
    house.files.fail("create", errno.ENOSPC)
    begin = len(house.files.calls)
    assert house.commit("a", room=0, urgent=True, text="end") is None
    after = house.files.calls[begin:].index("truncate")
    house.files.heal()
    assert house.commit("c") is None  # makes a reserve again
    house.files.fail("create", errno.ENOSPC)
    house.files.crash_after = len(house.files.calls) + after + 1
    journal = house.journal
    assert journal is not None
    with pytest.raises(Crash):
        journal._attempt([change("b", room=0, urgent=True, text="end")])  # type: ignore[attr-defined]
    assert house.files.calls[-1] == "truncate"
    journal._queue.put(None)  # type: ignore[attr-defined]
    house.release()
    assert house.keys() == ["a", "b", "c"]
    assert house.path.read_bytes().count(b'"t":"end"') == 1
    assert not list(house.path.parent.glob(".*.tmp"))


def test_a_reserve_that_is_too_small_after_all_is_kept_for_the_next_commit(house: House) -> None:
    """No space for what was allocated: a file system that copies on write may say that."""
    house.start()
    assert house.commit("a") is None
    house.files.fail("create", errno.ENOSPC)
    house.files.fail("write", errno.ENOSPC, times=1)
    assert isinstance(house.commit("a", room=0, urgent=True), JournalFull)
    assert len(list(house.path.parent.glob(".*.tmp"))) == 1
    assert house.commit("a", room=0, urgent=True) is None


def test_every_step_of_the_protocol_has_a_row() -> None:
    """In the crash table, or it only looks, or what it changes is no content and no name of the journal."""
    looks = {"stat", "status", "names", "read", "open"}
    others = {"make_directory", "lock", "chmod", "close", "remove"}
    assert {kind for kind, _ in STEPS.values()} | {"truncate"} | looks | others == set(OPERATIONS)
    assert set(OPERATIONS) == {name for name in vars(Files) if not name.startswith("_")}


def test_the_rows_of_this_file_are_the_rows_of_the_format() -> None:
    """The crash table in FORMAT.md names the same steps."""
    text = (Path(__file__).parents[3] / "service/crewai_sidecar/journal/FORMAT.md").read_text()
    table = text.split("## Crash table")[1].split("## Failure table")[0]
    rows = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    assert set(rows) - {"step", "---"} == {
        *STEPS,
        "truncate the reserve",
        "remember the id in the lock",
        "settle",
    }


@pytest.mark.parametrize("kind", ["create", "allocate", "write"])
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


@pytest.mark.parametrize("kind", ["read", "status", "open", "close"])
def test_a_failing_look_at_the_disk_is_refused_or_without_effect(house: House, kind: str) -> None:
    """Nobody waits for ever, and the thread goes on."""
    house.start()
    assert house.commit("a") is None
    house.files.fail(kind, errno.EIO, times=1)
    refused = house.commit("b")
    assert refused is None or isinstance(refused, JournalBroken)
    assert house.commit("c") is None
    assert house.journal is not None
    house.journal.close()
    house.journal = None
    assert house.keys() == (["a", "c"] if refused else ["a", "b", "c"])


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
    house.path.chmod(0o640)
    refusals = [house.commit(key, urgent=True) for key in ("b", "c")]
    assert [type(one) for one in refusals] == [JournalBroken, JournalBroken]
    assert house.path.read_bytes() == content
    assert house.path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("generation", [b'"generation":1,', b'"generation":9999,'])
def test_a_file_of_another_generation_is_a_strangers_even_in_the_same_inode(house: House, generation: bytes) -> None:
    """Written in place, older or newer."""
    house.start()
    assert house.commit("a") is None
    content = re.sub(rb'"generation":\d+,', generation, house.path.read_bytes())
    house.path.write_bytes(content)
    assert isinstance(house.commit("b"), JournalBroken)
    assert house.path.read_bytes() == content


def test_a_symlink_in_the_place_of_the_journal_is_a_strangers(house: House) -> None:
    """Though it leads to the very file."""
    house.start()
    assert house.commit("a") is None
    aside = house.path.rename(house.path.with_name("aside"))
    house.path.symlink_to(aside)
    assert isinstance(house.commit("b"), JournalBroken)
    assert house.path.is_symlink()


def test_modes_that_were_widened_while_it_runs_are_put_back(house: House) -> None:
    """The next start would refuse them."""
    house.start()
    house.path.parent.chmod(0o777)
    house.path.chmod(0o666)
    assert house.commit("a") is None
    assert house.path.parent.stat().st_mode & 0o777 == 0o755
    assert house.path.stat().st_mode & 0o777 == 0o600


def test_what_is_refused_holds_on_to_no_checkpoint(house: House) -> None:
    """An error that is kept, as the service keeps the last one, has no frames with the whole text in them."""
    house.start()
    house.files.fail("write", errno.EIO, times=1)
    broken = house.commit("a")
    house.files.fail("allocate", errno.ENOSPC, times=1)
    full = house.commit("b")
    house.path.unlink()
    estranged = [house.commit("c"), house.commit("d")]
    for error in (broken, full, *estranged):
        assert error is not None
        assert error.__traceback__ is None
        assert error.__context__ is None
    assert estranged[0] is not estranged[1]


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
    house.files.fail("create", errno.ENOSPC)  # no file but the reserve
    batch = [change("b"), change("a", room=0, urgent=True, text="end"), change("c")]
    outcome = {c.key: error for c, error in journal._commit(batch)}  # type: ignore[attr-defined]
    assert isinstance(outcome["b"], JournalFull)
    assert isinstance(outcome["c"], JournalFull)
    assert outcome["a"] is None


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

    class NoMemory(RealFiles):
        def allocate(self, descriptor: int, path: Path, size: int) -> bool:
            raise MemoryError

    house.files.real = NoMemory()
    assert isinstance(house.commit("a"), JournalBroken)
    house.files.real = RealFiles()
    assert house.commit("b") is None


def test_a_file_system_that_cannot_allocate_is_used_without_a_reserve(house: House) -> None:
    """Best effort there, as FORMAT.md says."""
    house.files.without_effect.add("allocate")
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
