"""Sidecars for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.sidecar import Sidecar, family, until_gone


@pytest.fixture
def make_sidecar(tmp_path: Path) -> Iterator[Callable[..., Sidecar]]:
    """Make sidecars that are ended with the test, and prove that nothing of them is left."""
    made: list[Sidecar] = []

    def make(name: str = "one", **settings: str) -> Sidecar:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        sidecar = Sidecar(directory, **settings)
        made.append(sidecar)
        return sidecar

    yield make
    for sidecar in made:
        if sidecar.process is not None:
            everything = family(sidecar.pid)
            sidecar.kill()
            until_gone(everything)


@pytest.fixture
def sidecar(make_sidecar: Callable[..., Sidecar]) -> Sidecar:
    """A running sidecar of this test's own."""
    return make_sidecar().start()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A running sidecar that the tests of a module share; each uses Action IDs of its own."""
    sidecar = Sidecar(tmp_path_factory.mktemp("shared"), max_concurrency="8").start()
    yield sidecar
    sidecar.kill()
