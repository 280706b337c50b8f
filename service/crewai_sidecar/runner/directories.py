"""The directory of all runs: made private and empty at the start, and rid of whatever a crew has made of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

from crewai_sidecar.errors import VolumeRefused

__all__ = ["below", "prepare", "remove"]


def prepare(root: Path) -> Path:
    """Make the root a private and empty directory of this user; return its absolute path.

    Raises VolumeRefused for one that is somebody else's, or a link.
    """
    root = root.absolute()
    try:
        _make(root)
        for left in root.iterdir():
            remove(left)
    except OSError as error:
        raise VolumeRefused(root, error.strerror or str(error), "Mend it or set AIP_CREWAI_RUN_DIR") from None
    return root


def below(root: Path, name: str) -> Path:
    """Make a directory in the root, and the root again where something has removed it. It may exist.

    Raises OSError when it cannot be made, or the root is somebody else's by now.
    """
    directory = root / name
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        try:
            _make(root)
        except VolumeRefused as error:
            raise PermissionError(str(error)) from None
        directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _make(root: Path) -> None:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise VolumeRefused(root, "it is not a directory of this user", "Remove it or set AIP_CREWAI_RUN_DIR")
    root.chmod(0o700)


def remove(path: Path) -> None:
    """Remove a directory and all below it, also what a crew has made unreadable for its own user. Best effort."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        for directory, names, _ in os.walk(path):
            for name in names:
                below = Path(directory, name)
                if not below.is_symlink():  # what it points to is not the run's
                    with contextlib.suppress(OSError):
                        below.chmod(0o700)  # before the walk goes there
        shutil.rmtree(path, ignore_errors=True)
