"""No file of this repository names a package host: where packages come from is a setting of the machine.

Run as a command it lists the offending lines and ends with 1. The names are put together here, so that this file does
not have them either.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["offences"]

ROOT = Path(__file__).parents[2]

HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("crates", "io"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("proxy", "golang", "org"),
        ("maven", "org"),
        ("maven", "apache", "org"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
    )
)


def files() -> list[Path]:
    """Every file that is tracked, or would be."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    return [path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file()]


def offences(paths: list[Path]) -> list[str]:
    """The lines of these files that name a host; in a lock any address is one too many."""
    found = []
    for path in paths:
        for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), 1):
            if any(host in line for host in HOSTS) or (path.suffix == ".lock" and "://" in line):
                found.append(f"{path}:{number}: {line.strip()[:100]}")
    return found


if __name__ == "__main__":
    lines = offences(files())
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.exit(bool(lines))
