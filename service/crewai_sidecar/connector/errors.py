"""What a call to the sidecar can end in besides its result.

    ConnectorError
    ├── Unreachable       no answer, or one that broke off
    ├── Refused           the sidecar answered, and not with a success
    └── BrokenContract    the answer is not one of the contract: another service, a proxy, or a fault

None of them says what a provider did. For a start or a cancel that ended in Unreachable with `may_have_arrived`, ask
for the record of the Action before anything else.
"""

from __future__ import annotations

from typing import Any

import httpx

__all__ = ["BrokenContract", "ConnectorError", "Refused", "Unreachable", "from_httpx"]


class ConnectorError(Exception):
    """Root of the tree. The text is one line, fit to be shown."""


class Unreachable(ConnectorError):
    """Raised where no whole answer came.

    `may_have_arrived` is false only where no connection was made, so that the request cannot have been read.
    """

    def __init__(self, text: str, *, may_have_arrived: bool) -> None:
        super().__init__(text)
        self.may_have_arrived = may_have_arrived


class BrokenContract(ConnectorError):
    """Raised for an answer that the contract does not have: not JSON, a gap in the events, an unbounded body."""


class Refused(ConnectorError):
    """Raised for every answer that is not a success.

    `status` is the HTTP number, `code` the stable name of the reason (null where a proxy answered), `detail` the
    sentence for a person, `problem` the whole RFC 9457 object, `retry_after` the seconds that the service asked for.
    """

    def __init__(
        self,
        status: int,
        code: str | None,
        detail: str,
        problem: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{detail} ({status} {code or 'without a code'})")
        self.status = status
        self.code = code
        self.detail = detail
        self.problem = problem or {}
        self.retry_after = retry_after

    @property
    def unavailable(self) -> bool:
        """Whether the service, not the request, is the reason: going down, full, or lost by a proxy before it."""
        return self.status == 503 or (self.code is None and self.status in {502, 504})


_NOTHING_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,  # a header that HTTP has no form for is found before the first byte
)


def from_httpx(error: httpx.HTTPError | httpx.InvalidURL | httpx.StreamError, url: str) -> ConnectorError:
    """Turn what httpx raises into this tree: the one place where httpx's exceptions are known."""
    name = type(error).__name__
    if isinstance(error, httpx.InvalidURL):
        return Unreachable(f"{url} is not an address: {error}", may_have_arrived=False)
    if isinstance(error, httpx.TimeoutException):
        text = f"no answer from {url} in time ({name})"
        return Unreachable(text, may_have_arrived=not isinstance(error, _NOTHING_SENT))
    if isinstance(error, httpx.TransportError):
        text = f"no connection to {url}: {str(error) or name}"
        return Unreachable(text, may_have_arrived=not isinstance(error, _NOTHING_SENT))
    return BrokenContract(f"{url} gave an answer that cannot be read ({name}: {error})")
