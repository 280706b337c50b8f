"""The journal as its users see it: what goes in comes out, one process at a time, one checkpoint for all that waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crewai_sidecar.errors import JournalBroken, JournalLocked, JournalRefused, NotStored
from crewai_sidecar.journal import Change, accept_loss, memory_journal, open_journal
from crewai_sidecar.journal._checkpoint import Header, compose, parse

MAX_BYTES = 64 << 20

PLAIN = st.text(st.characters(codec="ascii", exclude_characters='"\\\x7f', min_codepoint=32))


class Settled:
    """Collects what became of changes, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[Change, NotStored | None]]] = []
        self._changed = threading.Condition()

    def __call__(self, batch: list[tuple[Change, NotStored | None]]) -> None:
        with self._changed:
            self.batches.append(batch)
            self._changed.notify_all()

    @property
    def all(self) -> list[tuple[Change, NotStored | None]]:
        return [one for batch in self.batches for one in batch]

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= count, 30)


def change(key: str, text: str = "") -> Change:
    return Change(key, (b'{"action_id":"', key.encode(), b'","text":"', text.encode(), b'"}'))


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True),
            PLAIN,
        ),
        unique_by=lambda pair: pair[0],
    ),
    st.integers(1, 2**40),
    st.dictionaries(st.sampled_from(["later", "newer"]), st.integers() | st.text(st.characters(codec="utf-8"))),
)
def test_a_checkpoint_is_read_back_as_it_was_written(
    pairs: list[tuple[str, str]], generation: int, extra: dict[str, int | str]
) -> None:
    """Header fields of a newer version among it."""
    header = Header("0f" * 16, generation, dict(extra))
    changes = [change(*pair) for pair in pairs]
    text = compose(header, [one.line for one in changes], len(changes))
    assert text.isascii()
    found, lines = parse(Path("runs.json"), text)
    assert found == header
    assert list(lines.items()) == [(one.key, b"".join(one.line)) for one in changes]


def test_any_single_changed_byte_of_a_checkpoint_is_noticed() -> None:
    """Every position, a low and a high bit."""
    text = compose(Header("0f" * 16, 7), [change("a", "x").line, change("b").line], 2)
    for position in range(len(text)):
        for bit in (1, 64):
            damaged = text[:position] + bytes([text[position] ^ bit]) + text[position + 1 :]
            with pytest.raises(JournalRefused, match=r"runs\.json"):
                parse(Path("runs.json"), damaged)
    for cut in range(len(text)):
        with pytest.raises(JournalRefused):
            parse(Path("runs.json"), text[:cut])


def test_changes_of_many_threads_are_settled_once_and_in_their_order(tmp_path: Path) -> None:
    """And share checkpoints."""
    settled = Settled()
    journal = open_journal(tmp_path / "state" / "runs.json", max_bytes=MAX_BYTES, settled=settled).journal
    assert journal.start([]) is None

    def send(thread: int) -> None:
        for number in range(40):
            journal.submit(change(f"t{thread}", str(number)))

    threads = [threading.Thread(target=send, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    assert all(error is None for _, error in settled.all)
    assert len(settled.all) == 320
    assert len(settled.batches) < 320
    for thread_number in range(8):
        texts = [int(one.line[3]) for one, _ in settled.all if one.key == f"t{thread_number}"]
        assert texts == list(range(40))
    again = open_journal(tmp_path / "state" / "runs.json", max_bytes=MAX_BYTES, settled=settled)
    assert sorted(again.lines) == [b'{"action_id":"t%d","text":"39"}' % n for n in range(8)]
    assert again.journal.identity == journal.identity
    again.journal.close()


def test_the_order_of_lines_is_the_order_of_first_admission(tmp_path: Path) -> None:
    """Across rewrites and restarts."""
    path = tmp_path / "state" / "runs.json"
    for round_number in range(3):
        settled = Settled()
        opened = open_journal(path, max_bytes=MAX_BYTES, settled=settled)
        opened.journal.start([])
        for key in ("b", "a", "c"):
            opened.journal.submit(change(key, str(round_number)))
        settled.wait(3)
        opened.journal.close()
    lines = open_journal(path, max_bytes=MAX_BYTES, settled=Settled())
    assert [line[14:15] for line in lines.lines] == [b"b", b"a", b"c"]
    lines.journal.close()


def test_the_fence_is_durable_when_start_returns(tmp_path: Path) -> None:
    """Before anybody may be served."""
    path = tmp_path / "state" / "runs.json"
    opened = open_journal(path, max_bytes=MAX_BYTES, settled=Settled())
    assert opened.journal.start([change("a", "fenced")]) is None
    assert b"fenced" in path.read_bytes()
    opened.journal.close()


def test_a_journal_has_one_owner_and_a_closed_one_can_be_opened_again(tmp_path: Path) -> None:
    """The lock is exclusive, within a process too."""
    path = tmp_path / "state" / "runs.json"
    first = open_journal(path, max_bytes=MAX_BYTES, settled=Settled())
    first.journal.start([])
    with pytest.raises(JournalLocked, match="another process"):
        open_journal(path, max_bytes=MAX_BYTES, settled=Settled())
    with pytest.raises(JournalLocked):
        accept_loss(path)
    first.journal.close()
    open_journal(path, max_bytes=MAX_BYTES, settled=Settled()).journal.close()


def test_the_lock_remembers_the_journal_and_a_foreign_one_is_refused(tmp_path: Path) -> None:
    """A journal without a remembered id is accepted, and its id is written."""
    one, other = tmp_path / "one" / "runs.json", tmp_path / "other" / "runs.json"
    for path in (one, other):
        opened = open_journal(path, max_bytes=MAX_BYTES, settled=Settled())
        opened.journal.start([])
        lock = path.with_name("runs.json.lock")
        assert lock.read_text().strip() == opened.journal.identity
        opened.journal.close()
    content = other.read_bytes()
    one.write_bytes(content)
    with pytest.raises(JournalRefused, match="its lock remembers"):
        open_journal(one, max_bytes=MAX_BYTES, settled=Settled())
    assert one.read_bytes() == content
    one.with_name("runs.json.lock").write_text("something else")
    opened = open_journal(one, max_bytes=MAX_BYTES, settled=Settled())
    opened.journal.start([])
    assert one.with_name("runs.json.lock").read_text().strip() == opened.journal.identity
    opened.journal.close()


def test_a_loss_can_be_accepted_only_where_there_is_one(tmp_path: Path) -> None:
    """Not over a journal that is there."""
    path = tmp_path / "state" / "runs.json"
    opened = open_journal(path, max_bytes=MAX_BYTES, settled=Settled())
    opened.journal.start([])
    opened.journal.close()
    with pytest.raises(JournalRefused, match="is there"):
        accept_loss(path)
    path.unlink()
    with pytest.raises(JournalRefused, match="lost"):
        open_journal(path, max_bytes=MAX_BYTES, settled=Settled())
    accept_loss(path)
    open_journal(path, max_bytes=MAX_BYTES, settled=Settled()).journal.close()


def test_a_loss_that_nobody_remembers_cannot_be_accepted(tmp_path: Path) -> None:
    """A mistyped path makes nothing and promises nothing."""
    for path in (tmp_path / "nowhere" / "runs.json", tmp_path / "runs.json"):
        with pytest.raises(JournalRefused):
            accept_loss(path)
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "state" / "runs.json"
    open_journal(path, max_bytes=MAX_BYTES, settled=Settled()).journal.close()
    with pytest.raises(JournalRefused, match="remembers no journal"):
        accept_loss(path)


def test_a_second_process_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """With the journal open in this one."""
    path = tmp_path / "state" / "runs.json"
    opened = open_journal(path, max_bytes=MAX_BYTES, settled=Settled())
    opened.journal.start([change("a")])
    before = {found.name: found.read_bytes() for found in path.parent.iterdir()}
    second = subprocess.run([sys.executable, "-c", WRITER, str(path)], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"{path}: another process owns this journal" in second.stderr
    assert {found.name: found.read_bytes() for found in path.parent.iterdir()} == before
    opened.journal.close()


def test_a_closed_journal_has_settled_everything_and_closing_it_again_does_nothing(tmp_path: Path) -> None:
    """Started or not; the descriptor of its lock may be another file's by then."""
    path = tmp_path / "state" / "runs.json"
    for start in (False, True):
        settled = Settled()
        journal = open_journal(path, max_bytes=MAX_BYTES, settled=settled).journal
        if start:
            journal.start([])
        journal.submit(change("a"))
        journal.close()
        assert [error for _, error in settled.all] == [None]
        with (tmp_path / "other").open("w") as other:
            journal.close()
            other.write("still open")
        assert not list(path.parent.glob(".*"))


def test_a_journal_that_was_opened_and_not_started_is_as_it_was(tmp_path: Path) -> None:
    """A start that is refused further up writes nothing."""
    path = tmp_path / "state" / "runs.json"
    opened = open_journal(path, max_bytes=MAX_BYTES, settled=Settled())
    opened.journal.start([change("a")])
    opened.journal.close()
    before = path.read_bytes()
    again = open_journal(path, max_bytes=MAX_BYTES, settled=Settled()).journal
    assert again.size == len(before)
    again.close()
    assert path.read_bytes() == before


def test_the_writer_outlives_whoever_listens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A listener that raises costs its own news only: what is submitted later is written."""
    path = tmp_path / "state" / "runs.json"
    heard = Settled()

    def listen(batch: list[tuple[Change, NotStored | None]]) -> None:
        heard(batch)
        raise RuntimeError("the loop is closed")

    journal = open_journal(path, max_bytes=MAX_BYTES, settled=listen).journal
    journal.start([])
    for number, key in enumerate("ab", start=1):
        journal.submit(change(key))
        heard.wait(number)
    journal.close()
    again = open_journal(path, max_bytes=MAX_BYTES, settled=Settled())
    assert len(again.lines) == 2
    again.journal.close()
    assert "could not be delivered" in caplog.text


def test_a_fault_of_the_writer_settles_what_waits_and_writes_nothing_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A change that is none: refused, as is everything after it, and nobody waits for ever."""
    path = tmp_path / "state" / "runs.json"
    settled = Settled()
    journal = open_journal(path, max_bytes=MAX_BYTES, settled=settled).journal
    journal.start([])
    before = path.read_bytes()
    journal.submit(Change("a", ("no bytes",)))  # type: ignore[arg-type]
    settled.wait(1)
    journal.submit(change("b"))
    settled.wait(2)
    assert [type(error) for _, error in settled.all] == [JournalBroken, JournalBroken]
    assert journal.trouble == "journal_broken"
    journal.close()
    assert path.read_bytes() == before
    assert "the journal's writer failed" in caplog.text


def test_a_header_of_any_length_is_recognised_as_ours(tmp_path: Path) -> None:
    """Fields of a newer version may be long."""
    path = tmp_path / "state" / "runs.json"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(compose(Header("0f" * 16, 7, {"later": "x" * 10_000}), [], 0))
    path.chmod(0o600)
    settled = Settled()
    journal = open_journal(path, max_bytes=MAX_BYTES, settled=settled).journal
    assert journal.start([]) is None
    journal.submit(change("a"))
    journal.close()
    assert [error for _, error in settled.all] == [None]
    assert b"x" * 10_000 in path.read_bytes().partition(b"\n")[0]


class Told:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.commits: list[tuple[float, int, int]] = []
        self.failures: list[str] = []

    def committed(self, seconds: float, changes: int, bytes_: int) -> None:
        self.commits.append((seconds, changes, bytes_))

    def failed(self, kind: str) -> None:
        self.failures.append(kind)


def test_the_observer_is_told_of_every_checkpoint(tmp_path: Path) -> None:
    """How long, how many, how large; and of refusals by their code."""
    path = tmp_path / "state" / "runs.json"
    told, settled = Told(), Settled()
    journal = open_journal(path, max_bytes=1000, settled=settled, observer=told).journal
    journal.start([change("a")])
    size = path.stat().st_size
    journal.submit(change("b", "x" * 2000))
    journal.close()
    assert [(changes, bytes_) for _, changes, bytes_ in told.commits] == [(1, size)]
    assert told.commits[0][0] > 0
    assert told.failures == ["journal_full"]


def test_a_memory_journal_settles_at_once() -> None:
    """For loopback development."""
    settled = Settled()
    journal = memory_journal(settled).journal
    assert journal.start([]) is None
    journal.submit(change("a"))
    assert [one.key for one, _ in settled.all] == ["a"]
    assert not journal.durable


WRITER = """
import sys, pathlib
from crewai_sidecar.journal import Change, open_journal
def settled(batch):
    for change, error in batch:
        assert error is None
        sys.stdout.write(change.key + "\\n")
    sys.stdout.flush()
opened = open_journal(pathlib.Path(sys.argv[1]), max_bytes=1 << 26, settled=settled)
opened.journal.start([])
first = len(opened.lines)
for number in range(first, first + 100_000):
    opened.journal.submit(Change(f"k{number}", (b'{"action_id":"k%d","pad":"' % number, b"x" * 500, b'"}')))
    if number % 5 == 0:
        import time; time.sleep(0.001)
"""


def test_sigkill_at_any_moment_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """A real process, real fsyncs, ten kills."""
    path = tmp_path / "state" / "runs.json"
    acknowledged: list[str] = []
    for round_number in range(10):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert process.stdout is not None
        acknowledged += [process.stdout.readline().strip() for _ in range(5 + 7 * round_number)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in process.stdout if line.endswith("\n")]
        process.wait()
        process.stdout.close()
        opened = open_journal(path, max_bytes=MAX_BYTES, settled=Settled())
        opened.journal.close()
        found = [line[14:].split(b'"')[0].decode() for line in opened.lines]
        assert len(set(found)) == len(found)
        assert set(acknowledged) <= set(found)
        assert not list(path.parent.glob(".*.tmp"))
