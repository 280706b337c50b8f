"""AIP_CREWAI_REGISTRY: what loads, what is refused with which words, and a fresh crew for each run."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest

from crewai_sidecar.child.registry import Registry, RegistryError, load
from tests.crews import duck


@pytest.mark.parametrize("name", ["tests.crews.duck:crews", "tests.crews.duck:provide"])
def test_a_mapping_or_a_callable_that_returns_one_is_a_registry(name: str) -> None:
    """Both name the same crews."""
    assert [crew.crew_id for crew in load(name).describe()] == list(duck.crews)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('boom\\n  twice')", "RuntimeError: boom twice"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys; sys.exit(9)", "SystemExit: 9"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("other = {}", "has no attribute 'crews'"),
        ("crews = 5", "acme:crews is a int, not a mapping of crew ids"),
        ("def crews(): return [1]", "acme:crews is a list, not a mapping of crew ids"),
        ("def crews(one): return {}", "TypeError: crews() missing 1 required positional argument"),
        ("crews = {}", "acme:crews names no crew"),
        ("crews = {'': print}", "the crew id ''"),
        ("crews = {1: print}", "the crew id 1"),
        ("crews = {'x' * 257: print}", "not a text of 1 to 256 characters"),
        ("crews = {'\\ud800': print}", "not a text of 1 to 256 characters"),
        ("crews = {'a': 5}", "crew 'a' is a int, neither a factory nor an object with kickoff"),
    ],
)
def test_what_is_no_registry_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    """Whatever the module does when it is imported."""
    (tmp_path / "acme.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme", raising=False)
    with pytest.raises(RegistryError) as refused:
        load("acme:crews")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


class Owner:
    """Makes crews by a bound method."""

    def make(self) -> duck.Element:
        return duck.Element()


class Copied(duck.Element):
    """Knows how to copy itself."""

    def copy(self) -> Copied:
        made = Copied()
        made.used = -1
        return made


class Uncopyable(duck.Element):
    """Holds what cannot be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot pickle a lock")


@pytest.mark.parametrize(
    "entry",
    [duck.Element, lambda: duck.Element(), Owner().make, functools.partial(duck.Element), duck.Element()],
    ids=["class", "function", "bound method", "partial", "object"],
)
def test_every_run_has_a_crew_of_its_own(entry: Any) -> None:
    """Factories are called, classes made, objects copied: what one run does to its crew, no other sees."""
    registry = Registry({"a": entry})
    first = registry.build("a")
    first.kickoff({})
    second = registry.build("a")
    assert (first.used, second.used) == (1, 0)


def test_an_object_s_own_copy_comes_before_a_deep_one() -> None:
    """CrewAI's crews know better how to copy themselves."""
    assert Registry({"a": Copied()}).build("a").used == -1


def test_an_object_that_cannot_be_copied_is_used_itself() -> None:
    """A child runs one job, so it is used once all the same."""
    crew = Uncopyable()
    assert Registry({"a": crew}).build("a") is crew


def test_an_instance_that_makes_a_crew_is_asked_for_it() -> None:
    """As CrewAI's @CrewBase classes, and objects of them."""
    registry = Registry({"class": duck.CrewBase, "object": duck.CrewBase()})
    assert isinstance(registry.build("class"), duck.Answer)
    assert isinstance(registry.build("object"), duck.Answer)


def test_a_description_names_what_objects_can_do_and_nothing_of_factories() -> None:
    """What a factory makes is known in the run only."""
    entries = {
        "class": duck.Everything,
        "object": duck.Everything(),
        "async": duck.KnowsAsync(),
        "makes": duck.CrewBase(),
    }
    described = {crew.crew_id: crew.operations for crew in Registry(entries).describe()}
    assert described == {
        "class": None,
        "object": ["run", "batch_run", "replay", "train", "test", "knowledge_query", "memory_reset"],
        "async": ["knowledge_query"],
        "makes": None,
    }


def test_an_object_with_knowledge_is_warned_of() -> None:
    """Importing it calls a provider before any admission."""
    crew = duck.Answer()
    crew.knowledge_sources = ["a document"]  # type: ignore[attr-defined]
    (described,) = Registry({"a": crew}).describe()
    assert described.warning is not None
    assert "make it a factory" in described.warning
