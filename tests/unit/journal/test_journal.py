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

from crewai_sidecar.errors import JournalLocked, JournalRefused, NotStored
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
