"""The rules for the journal's directory and file (the seed), checked before anything is read or written.

    directory   a real directory of this user, without group or world write
    journal     a regular file of this user, without any group or world bit
    lock        a regular file of this user; its mode is forced to 0600

A refusal names the path, the fact and what to do, and has changed nothing.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from crewai_sidecar.errors import JournalOverBound, JournalRefused, VolumeRefused
from crewai_sidecar.journal._files import Files

__all__ = ["check_directory", "check_private", "leftovers", "make_durable", "prepare_directory", "read_journal"]

_UNFIT = "Use a file system that keeps modes; this one is not fit for a journal"


def prepare_directory(path: Path, files: Files) -> None:
    """Check the journal's directory, or make it, 0700, where only its last component is missing.

    Raises VolumeRefused.
    """
    if not check_directory(path, files):
        _make(path, files)


def check_directory(path: Path, files: Files) -> bool:
    """Check the journal's directory; False where there is none.

    Raises VolumeRefused.
    """
    try:
        found = files.stat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise VolumeRefused(path, f"it cannot be looked at ({error.strerror})", "Give it to this user") from None
    if not stat.S_ISDIR(found.st_mode):
        raise VolumeRefused(path, f"it is {_kind(found.st_mode)}, not a directory", "Name a real directory")
    if found.st_uid != os.geteuid():
        raise VolumeRefused(
            path,
            f"it belongs to user {found.st_uid} and this process is user {os.geteuid()}",
            "Run as its owner, or name a sub-directory that does not exist yet",
        )
    if found.st_mode & 0o022:
        raise VolumeRefused(
            path,
            f"its mode {stat.S_IMODE(found.st_mode):04o} lets others write in it",
            f"chmod go-w {path}, or name a sub-directory that does not exist yet",
        )
    return True


def make_durable(path: Path, files: Files) -> None:
    """Make the name of a new journal's directory durable, where its parent may be opened.

    Raises VolumeRefused.
    """
    try:
        files.sync_directory(path.parent)
    except PermissionError:
        return  # a parent that may be searched and not read; the name is the file system's to keep then
    except OSError as error:
        raise VolumeRefused(
            path.parent, f"it cannot be made durable ({error.strerror})", "Find out what is wrong with the disk"
        ) from None


def check_private(path: Path, found: os.stat_result) -> None:
    """Check an open file: regular, this user's, no group or world bit.

    Raises JournalRefused.
    """
    if not stat.S_ISREG(found.st_mode):
        raise JournalRefused(path, f"it is {_kind(found.st_mode)}, not a regular file", "Name a regular file")
    if found.st_uid != os.geteuid():
        raise JournalRefused(
            path, f"it belongs to user {found.st_uid} and this process is user {os.geteuid()}", "Run as its owner"
        )
    if found.st_mode & 0o077:
        raise JournalRefused(
            path, f"its mode {stat.S_IMODE(found.st_mode):04o} gives others access", f"chmod 0600 {path}"
        )


def read_journal(path: Path, max_bytes: int, files: Files) -> tuple[bytes, os.stat_result] | None:
    """Read the whole journal, or None where there is none. Opens nothing that could block or be followed.

    Raises JournalRefused and JournalOverBound.
    """
    try:
        before = files.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalRefused(path, f"it cannot be looked at ({error.strerror})", "Give it to this user") from None
    check_private(path, before)
    try:
        descriptor = files.open(path, os.O_RDONLY)
    except OSError as error:
        raise JournalRefused(path, f"it cannot be opened ({error.strerror})", f"chmod 0600 {path}") from None
    try:
        found = files.status(descriptor, path)
        check_private(path, found)
        if (found.st_dev, found.st_ino) != (before.st_dev, before.st_ino):
            raise JournalRefused(path, "it was replaced while it was opened", "Find out who else writes here")
        if found.st_size > max_bytes:
            raise JournalOverBound(path, found.st_size, found.st_size)
        return files.read(descriptor, path, found.st_size, 0), found
    except OSError as error:
        raise JournalRefused(
            path, f"it cannot be read ({error.strerror})", "Restore it from a backup on a disk that works"
        ) from None
    finally:
        files.close(descriptor, path)


def leftovers(journal: Path, files: Files) -> list[Path]:
    """Temporary files that a killed process has left beside a journal. Directories of such a name are none.

    Raises VolumeRefused for a directory that cannot be listed.
    """
    pattern = re.compile(rf"\.{re.escape(journal.name)}\.[0-9a-f]+\.tmp")
    try:
        paths = [journal.with_name(name) for name in files.names(journal.parent) if pattern.fullmatch(name)]
        return [path for path in paths if not stat.S_ISDIR(files.stat(path).st_mode)]
    except OSError as error:
        raise VolumeRefused(
            journal.parent, f"it cannot be listed ({error.strerror})", f"chmod u+rwx {journal.parent}"
        ) from None


def _make(path: Path, files: Files) -> None:
    try:
        files.make_directory(path)
        found = files.stat(path)
    except OSError as error:
        parent = path.parent
        try:
            about = files.stat(parent.resolve())
            fact = f"; {parent} is {stat.S_IMODE(about.st_mode):04o} of user {about.st_uid}"
        except OSError:
            fact = f"; {parent} is not there"
        raise VolumeRefused(
            path,
            f"it cannot be made by user {os.geteuid()} ({error.strerror}{fact})",
            "Make it with mode 0700 and give it to this user",
        ) from None
    if found.st_mode & 0o022:
        raise VolumeRefused(
            path, f"it was made with mode 0700 and reads back {stat.S_IMODE(found.st_mode):04o}", _UNFIT
        )


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symlink"
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a regular file" if stat.S_ISREG(mode) else "a special file"
