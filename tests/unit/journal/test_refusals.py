"""A start that is refused says path, fact and remedy in one line, and leaves every byte, mode and name as it was."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from crewai_sidecar.errors import JournalLocked, JournalOverBound, JournalRefused, VolumeRefused
from crewai_sidecar.journal import Change, open_journal
from tests.doubles.fault_files import FaultFiles

MAX_BYTES = 1 << 20

Snapshot = dict[str, tuple[int, int, int, bytes]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with two records, closed in order."""
    path = tmp_path / "state" / "runs.json"
    journal = open_journal(path, max_bytes=MAX_BYTES, settled=lambda batch: None).journal
    journal.start([Change(key, (b'{"action_id":"%s"}' % key.encode(),)) for key in ("a", "b")])
    journal.close()
    return path


def snapshot(root: Path) -> Snapshot:
    """Every name below a directory with mode, inode, owner and content."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK) else b""
        found[str(path)] = (status.st_mode, status.st_ino, status.st_uid, content)
    return found


def refused(path: Path, kind: type[VolumeRefused], *words: str, files: FaultFiles | None = None) -> None:
    """Open a journal and hold the refusal against its promise."""
    root = path.parent.parent
    before = snapshot(root)
    with pytest.raises(kind) as raised:
        open_journal(path, max_bytes=MAX_BYTES, settled=lambda batch: None, files=files)
    assert raised.type is kind
    text = str(raised.value)
    assert "\n" not in text
    assert text.startswith(str(raised.value.path))
    assert raised.value.fact
    assert raised.value.remedy
    for word in words:
        assert word in text
    assert snapshot(root) == before


def _cut_at_a_line(text: bytes) -> bytes:
    return b"".join(text.splitlines(keepends=True)[:-1])


def _twice(text: bytes) -> bytes:
    """A record twice, with counts and checksum that are right for it."""
    from crewai_sidecar.journal._checkpoint import compose, parse

    header, lines = parse(Path("runs.json"), text)
    return compose(header, [(lines["a"],), (lines["a"],)], 2)


def _without_id(text: bytes) -> bytes:
    from crewai_sidecar.journal._checkpoint import compose, parse

    header, _ = parse(Path("runs.json"), text)
    return compose(header, [(b'{"crew_id":"c"}',)], 1)


CONTENTS: dict[str, tuple[Callable[[bytes], bytes], list[str]]] = {
    "empty": (lambda _: b"", ["empty"]),
    "cut in a line": (lambda text: text[:-10], ["cut", "byte"]),
    "cut at a line": (_cut_at_a_line, ["no end line", "byte"]),
    "trailing NULs": (lambda text: text + b"\0" * 512, ["after its end", "byte"]),
    "only NULs": (lambda _: b"\0" * 4096, ["line 1"]),
    "one flipped bit": (lambda text: text.replace(b'"b"', b'"c"'), ["checksum"]),
    "a record too few": (lambda text: text.replace(b'{"action_id":"a"}\n', b""), ["records"]),
    "a record twice": (_twice, ["line 3", "earlier line"]),
    "a line without an Action ID": (_without_id, ["line 2", "action_id"]),
    "another shape": (lambda _: b'{"runs":{}}\n', ["line 1", "header"]),
    "no JSON": (lambda _: b"runs\n", ["line 1"]),
    "a newer version": (lambda text: text.replace(b'"version":1', b'"version":2'), ["version 2", "version 1"]),
    "an array": (lambda _: b'[{"action_id":"a","input_hash":"h","status":"running"}]', ["array", "import"]),
    "an indented array": (lambda _: b'[\n  {"action_id": "a"}\n]\n', ["array", "import"]),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_journal_that_is_no_journal_of_ours(path: Path, name: str) -> None:
    """Never start empty over it."""
    change, words = CONTENTS[name]
    path.write_bytes(change(path.read_bytes()))
    refused(path, JournalRefused, *words)


def test_a_journal_over_its_bound(path: Path) -> None:
    """With the least bound that would open it."""
    path.write_bytes(b"x" * (MAX_BYTES + 1))
    refused(path, JournalOverBound, f"{MAX_BYTES + 1:,}")


def test_a_lost_journal(path: Path) -> None:
    """The lock remembers it; temporary files are left too."""
    path.unlink()
    path.with_name(".runs.json.00.tmp").write_text("left")
    refused(path, JournalRefused, "lost", "backup", f"accept-loss {path}")


def test_a_foreign_journal(path: Path) -> None:
    """Its id is not the one that the lock remembers."""
    text = path.with_name("runs.json.lock").read_text()
    path.with_name("runs.json.lock").write_text(text[::-1].strip() + "\n")
    refused(path, JournalRefused, "remembers", text.strip())


@pytest.mark.parametrize("mode", [0o610, 0o640, 0o604, 0o660])
def test_a_journal_with_a_group_or_world_bit(path: Path, mode: int) -> None:
    """Any of them."""
    path.chmod(mode)
    refused(path, JournalRefused, f"{mode:04o}", "chmod 0600")


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o2770, 0o777])
def test_a_directory_that_others_can_write(path: Path, mode: int) -> None:
    """Whatever the other bits."""
    path.parent.chmod(mode)
    refused(path, VolumeRefused, f"{mode:04o}", "chmod go-w")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("runs.json", "symlink"),
        ("runs.json", "directory"),
        ("runs.json", "fifo"),
        ("runs.json.lock", "symlink"),
        ("runs.json.lock", "directory"),
        ("runs.json.lock", "fifo"),
        ("", "symlink"),
        ("", "fifo"),
    ],
)
def test_something_else_in_place_of_a_path(path: Path, name: str, kind: str) -> None:
    """Journal, lock, or the directory itself; nothing is followed, waited for or replaced."""
    place = path.with_name(name) if name else path.parent
    aside = place.rename(path.parent.parent / "aside")
    match kind:
        case "symlink":
            place.symlink_to(aside)
        case "directory":
            place.mkdir(mode=0o700)
        case _:
            os.mkfifo(place, 0o600)
    refused(path, JournalRefused if name else VolumeRefused, str(place))


@pytest.mark.parametrize(
    ("number", "kind", "word"),
    [
        (errno.EWOULDBLOCK, JournalLocked, "another process"),
        (errno.ENOLCK, JournalRefused, "ENOLCK"),
        (errno.EOPNOTSUPP, JournalRefused, "cannot lock"),
    ],
)
def test_a_lock_that_is_not_given(path: Path, number: int, kind: type[JournalRefused], word: str) -> None:
    """Held by somebody, no locks left, and no locks at all are three different refusals."""
    files = FaultFiles()
    files.fail("lock", number)
    refused(path, kind, word, files=files)


def test_a_file_system_on_which_chmod_has_no_effect(path: Path) -> None:
    """It is named as what is not fit, because the mode is read back."""
    path.with_name("runs.json.lock").chmod(0o666)
    files = FaultFiles()
    files.without_effect.add("chmod")
    refused(path, JournalRefused, "reads back 0666", "not fit", files=files)


def test_a_file_system_that_refuses_chmod(path: Path) -> None:
    """The same."""
    files = FaultFiles()
    files.fail("chmod", errno.EPERM)
    refused(path, JournalRefused, "cannot be set to 0600", "not fit", files=files)


@pytest.mark.parametrize(
    ("operation", "name", "kind"),
    [
        ("stat", "state", VolumeRefused),
        ("open", "runs.json.lock", JournalRefused),
        ("status", "runs.json.lock", JournalRefused),
        ("read", "runs.json.lock", JournalRefused),
        ("stat", "runs.json", JournalRefused),
        ("open", "runs.json", JournalRefused),
        ("status", "runs.json", JournalRefused),
        ("read", "runs.json", JournalRefused),
        ("names", "state", VolumeRefused),
    ],
)
def test_a_disk_that_fails_while_it_is_looked_at(
    path: Path, operation: str, name: str, kind: type[VolumeRefused]
) -> None:
    """A line, not a traceback; and the lock is free again."""
    files = FaultFiles()
    files.fail(operation, errno.EIO, name=name)
    refused(path, kind, "Input/output error", files=files)
    open_journal(path, max_bytes=MAX_BYTES, settled=lambda batch: None).journal.close()


@pytest.mark.parametrize(("operation", "name"), [("make_directory", "state"), ("sync_directory", "")])
def test_a_new_directory_that_cannot_be_made_or_made_durable(tmp_path: Path, operation: str, name: str) -> None:
    """A first start ends before it promises anything."""
    files = FaultFiles()
    files.fail(operation, errno.EIO, name=name)
    with pytest.raises(VolumeRefused, match="Input/output error"):
        open_journal(tmp_path / "state" / "runs.json", max_bytes=MAX_BYTES, settled=lambda batch: None, files=files)
    assert not (tmp_path / "state" / "runs.json").exists()


def test_leftovers_are_removed_and_one_that_cannot_be_stops_nothing(path: Path) -> None:
    """Files and symlinks of the pattern only; a directory of such a name, and every target, stays."""
    target = path.parent / "precious"
    target.write_text("kept")
    for number in range(50):
        path.with_name(f".runs.json.{number:016x}.tmp").write_text("junk")
    path.with_name(".runs.json.feedbeef.tmp").symlink_to(target)
    path.with_name(".runs.json.00ff.tmp").mkdir()
    kept = [".runs.json.xyz.tmp", ".other.json.00.tmp", "runs.json.00.tmp", ".runs.json.00.tmp.bak"]
    for name in kept:
        path.with_name(name).write_text("kept")
    files = FaultFiles()
    files.fail("remove", errno.EPERM, name="00000000000000aa.tmp")
    path.with_name(".runs.json.00000000000000aa.tmp").write_text("stays")
    open_journal(path, max_bytes=MAX_BYTES, settled=lambda batch: None, files=files).journal.close()
    assert {found.name for found in path.parent.iterdir()} == {
        "runs.json",
        "runs.json.lock",
        "precious",
        ".runs.json.00ff.tmp",
        ".runs.json.00000000000000aa.tmp",
        *kept,
    }
    assert target.read_text() == "kept"
