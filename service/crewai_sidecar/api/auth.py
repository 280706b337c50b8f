"""The bearer token: where it comes from, what it must be, and how a request is compared with it.

A token file may be a symlink and may be readable by others, as Kubernetes mounts a Secret (a link into a dated
directory, mode 0644 by default, 0440 under an fsGroup): what reads the volume has the token anyhow. It must not be
writable by group or others: whoever can write it decides who gets in. It is read again when it changes, looked at once
a second at most, and the former token stays valid for five minutes, so that both sides of a rotation need not be
changed at the same moment.
"""

from __future__ import annotations

import hmac
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from crewai_sidecar.clock import Clock, SystemClock
from crewai_sidecar.errors import SettingRefused
from crewai_sidecar.settings import PREFIX, Settings

__all__ = ["GRACE_SECONDS", "MAX_TOKEN_BYTES", "Token", "read_token"]

MAX_TOKEN_BYTES = 16_384
"""Bytes of a token file."""

GRACE_SECONDS = 300.0
"""Time that a former token stays valid."""

LOOK_SECONDS = 1.0
"""Time between two looks at the file."""

_log = logging.getLogger(__name__)

Sign = tuple[int, int, int, int]
"""Device, inode, time of change and size: what differs when a file was written or a link was swapped."""


class Token:
    """Decides whether a request may come in."""

    def __init__(
        self, current: bytes | None, file: Path | None = None, sign: Sign | None = None, clock: Clock | None = None
    ) -> None:
        self._current = current
        self._file = file
        self._sign = sign
        self._clock = clock or SystemClock()
        self._former: list[tuple[bytes, float]] = []
        self._looked = self._clock.monotonic()
        self._complaint: str | None = None

    def accepts(self, values: list[bytes]) -> bool:
        """Compare a request's raw Authorization header values, in constant time, with `Bearer ` and the token."""
        if self._current is None:
            return True
        now = self._clock.monotonic()
        if self._file is not None and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look(self._file, now)
        given = values[0] if len(values) == 1 else b""
        matches = [hmac.compare_digest(given, b"Bearer " + token) for token in self._valid(now)]
        return any(matches)

    def _valid(self, now: float) -> Iterable[bytes]:
        self._former = [(token, until) for token, until in self._former if now < until]
        return [self._current or b"", *(token for token, _ in self._former)]

    def _look(self, file: Path, now: float) -> None:
        """Take a changed file's token. One that cannot be used is logged once, and the known token stays."""
        try:
            sign = _sign(file.stat())
            if sign == self._sign:
                return
            self._sign = sign
            token, self._sign = _read_file(file)
        except (OSError, SettingRefused) as error:
            if str(error) != self._complaint:
                _log.warning("the token file cannot be used; the known token stays valid", extra={"reason": str(error)})
            self._complaint = str(error)
            return
        self._complaint = None
        if token != self._current:
            self._former.append((self._current or b"", now + GRACE_SECONDS))
            self._current = token
            _log.info("the token has changed", extra={"former_valid_seconds": GRACE_SECONDS})


def read_token(settings: Settings, clock: Clock | None = None) -> Token:
    """Read the token that the settings name; without one, every request may come in (loopback development).

    Raises SettingRefused, which names the variable.
    """
    if settings.bearer_token is not None:
        return Token(_checked(settings.bearer_token.encode("utf-8", "replace"), "BEARER_TOKEN"), clock=clock)
    if settings.bearer_token_file is not None:
        try:
            token, sign = _read_file(settings.bearer_token_file)
        except OSError as error:
            raise SettingRefused(
                PREFIX + "BEARER_TOKEN_FILE",
                f"{settings.bearer_token_file} cannot be read: {error.strerror or error}",
            ) from None
        return Token(token, settings.bearer_token_file, sign, clock)
    return Token(None)


def _read_file(path: Path) -> tuple[bytes, Sign]:
    """Read a token file through its links. Raises OSError, and SettingRefused for what is in it or around it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not hold the start up
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise SettingRefused(PREFIX + "BEARER_TOKEN_FILE", f"{path} is not a regular file")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise SettingRefused(
                PREFIX + "BEARER_TOKEN_FILE",
                f"{path} can be written by group or others (mode {stat.S_IMODE(status.st_mode):04o}); chmod go-w",
            )
        text = file.read(MAX_TOKEN_BYTES + 1)
    return _checked(text, "BEARER_TOKEN_FILE"), _sign(status)


def _sign(status: os.stat_result) -> Sign:
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size


def _checked(text: bytes, variable: str) -> bytes:
    if len(text) > MAX_TOKEN_BYTES:
        raise SettingRefused(PREFIX + variable, f"has more than {MAX_TOKEN_BYTES:,} bytes")
    token = text.strip()
    if not token:
        raise SettingRefused(PREFIX + variable, "is empty")
    if any(not 0x21 <= byte <= 0x7E for byte in token):
        raise SettingRefused(
            PREFIX + variable, "has white space, control characters or characters beyond ASCII in the token"
        )
    return token
