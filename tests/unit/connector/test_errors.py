"""Every failure of httpx becomes one of the connector's own."""

from __future__ import annotations

import inspect

import httpx
import pytest

from crewai_sidecar.connector import BrokenContract, ConnectorError, Refused, Unreachable
from crewai_sidecar.connector.errors import from_httpx


def everything_that_httpx_raises() -> list[type[Exception]]:
    kinds = [kind for _, kind in inspect.getmembers(httpx, inspect.isclass) if issubclass(kind, Exception)]
    return [kind for kind in kinds if not issubclass(kind, httpx.CookieConflict)]  # raised by a cookie jar's look-up


def made(kind: type[Exception]) -> Exception:
    if kind is httpx.HTTPStatusError:
        request = httpx.Request("GET", "http://127.0.0.1")
        return httpx.HTTPStatusError("x", request=request, response=httpx.Response(500, request=request))
    try:
        return kind("x")
    except TypeError:
        return kind()


@pytest.mark.parametrize("kind", everything_that_httpx_raises(), ids=lambda kind: kind.__name__)
def test_every_httpx_exception_has_a_place_in_the_tree(kind: type[Exception]) -> None:
    """The map is total: a new kind of httpx failure cannot pass through it as something else."""
    assert issubclass(kind, httpx.HTTPError | httpx.InvalidURL | httpx.StreamError)
    error = from_httpx(made(kind), "http://127.0.0.1")  # type: ignore[arg-type]  # just asserted
    assert isinstance(error, ConnectorError)
    assert "http://127.0.0.1" in str(error)


@pytest.mark.parametrize(
    ("kind", "may_have_arrived"),
    [
        (httpx.ConnectError, False),
        (httpx.ConnectTimeout, False),
        (httpx.LocalProtocolError, False),
        (httpx.ReadTimeout, True),
        (httpx.ReadError, True),
        (httpx.WriteError, True),
        (httpx.RemoteProtocolError, True),
    ],
)
def test_only_a_connection_that_was_never_made_proves_that_nothing_arrived(
    kind: type[httpx.TransportError], may_have_arrived: bool
) -> None:
    """A caller may take `may_have_arrived: false` as a fact, so everything later than the connection says true."""
    error = from_httpx(kind("x"), "http://127.0.0.1")
    assert isinstance(error, Unreachable)
    assert error.may_have_arrived is may_have_arrived


def test_an_answer_that_cannot_be_decoded_is_a_broken_contract() -> None:
    """A wrong content encoding is no lost connection: trying again would not help."""
    assert isinstance(from_httpx(httpx.DecodingError("x"), "http://127.0.0.1"), BrokenContract)


@pytest.mark.parametrize(
    ("status", "code", "unavailable"),
    [(503, "draining", True), (503, None, True), (502, None, True), (502, "run_failed", False), (409, "x", False)],
)
def test_a_service_that_is_away_is_told_from_an_action_that_failed(
    status: int, code: str | None, unavailable: bool
) -> None:
    """502 with a code is the Action's own failure, without one it is a proxy's."""
    assert Refused(status, code, "why").unavailable is unavailable
