"""The double of the service, one for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doubles.fake_service import FakeService


@pytest.fixture
def service() -> Iterator[FakeService]:
    """A fake service that listens."""
    with FakeService() as fake:
        yield fake
