"""The registry: AIP_CREWAI_REGISTRY's module:attribute, what it names, and a fresh crew for each run.

A value is a factory (a function, a bound method, a class) or a crew object, which is anything with at least one of
CrewAI's methods. A mapping of ids to values, or a callable that returns one, is a registry.
"""

from __future__ import annotations

import copy
import importlib
import operator
from collections.abc import Mapping
from typing import Any

from crewai_sidecar.child.plain import class_name, clean_text
from crewai_sidecar.frames import Crew

__all__ = ["METHODS", "Registry", "RegistryError", "describe_error", "load", "operations_of"]

_KICKOFF = ("kickoff", "kickoff_async", "akickoff")

METHODS: dict[str, tuple[str, ...]] = {
    "run": _KICKOFF,
    "batch_run": _KICKOFF,
    "replay": ("replay",),
    "train": ("train",),
    "test": ("test",),
    "knowledge_query": ("query_knowledge", "aquery_knowledge"),
    "memory_reset": ("reset_memories",),
}
"""Which methods of a crew serve an operation; the first that there is is used."""

_MAX_ID = 256


class RegistryError(Exception):
    """Raised for a registry that does not load or holds something else. The text is one line."""


def load(name: str) -> Registry:
    """Import `module:attribute` and check what it names.

    Raises RegistryError, whatever the module does when it is imported.
    """
    module_name, _, attribute = name.partition(":")
    try:
        found = operator.attrgetter(attribute)(importlib.import_module(module_name))
        entries = found if isinstance(found, Mapping) or not callable(found) else found()
        pairs = list(entries.items()) if isinstance(entries, Mapping) else None
    except BaseException as error:  # noqa: BLE001  # also sys.exit in a module is a registry that does not load
        raise RegistryError(describe_error(error)) from None
    if pairs is None:
        raise RegistryError(f"TypeError: {name} is a {class_name(entries)}, not a mapping of crew ids")
    return Registry(dict(_checked(name, pairs)))


def _checked(name: str, pairs: list[tuple[Any, Any]]) -> list[tuple[str, Any]]:
    if not pairs:
        raise RegistryError(f"ValueError: {name} names no crew")
    for crew_id, value in pairs:
        if not _is_id(crew_id):
            raise RegistryError(
                f"ValueError: {name} has the crew id {crew_id!r:.80}, which is not a text of 1 to {_MAX_ID} characters"
            )
        if not callable(value) and not _is_crew(value) and _method(value, "crew") is None:
            raise RegistryError(
                f"TypeError: crew {crew_id!r} is a {class_name(value)}, neither a factory nor an object with kickoff"
            )
    return pairs


class Registry:
    """Crew ids and where their crews come from."""

    def __init__(self, entries: dict[str, Any]) -> None:
        self._entries = entries

    def build(self, crew_id: str) -> Any:
        """Return a crew that nobody has used yet; it may be awaitable where the factory is a coroutine function.

        Raises KeyError for an unknown id, and whatever the factory raises.
        """
        entry = self._entries[crew_id]
        return _crew_of(entry() if _is_factory(entry) else _copied(entry))

    def describe(self) -> list[Crew]:
        """Say of each crew what is known without building it."""
        return [
            Crew(crew_id=crew_id)
            if _is_factory(entry) or not _is_crew(entry)
            else Crew(crew_id=crew_id, operations=operations_of(entry), warning=_warning(crew_id, entry))
            for crew_id, entry in self._entries.items()
        ]


def operations_of(crew: Any) -> list[str]:
    """Name the operations that a crew object has a method for."""
    return [operation for operation, names in METHODS.items() if any(_method(crew, name) for name in names)]


def describe_error(error: BaseException) -> str:
    """Name an exception in one line of at most 500 characters."""
    try:
        text = clean_text(" ".join(str(error).split()))
    except Exception:  # noqa: BLE001  # a text that cannot be had is no reason to say nothing
        text = ""
    return f"{class_name(error)}: {text}"[:500] if text else class_name(error)


def _is_id(value: Any) -> bool:
    if not isinstance(value, str) or not 1 <= len(value) <= _MAX_ID:
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _method(value: Any, name: str) -> Any:
    """Return what may be called under a name, or None; what an attribute raises does not matter here."""
    try:
        found = getattr(value, name, None)
    except Exception:  # noqa: BLE001  # a property of a crew's own
        return None
    return found if callable(found) else None


def _is_crew(value: Any) -> bool:
    return not isinstance(value, type) and bool(operations_of(value))


def _is_factory(value: Any) -> bool:
    return isinstance(value, type) or (callable(value) and not _is_crew(value))


def _crew_of(made: Any) -> Any:
    """Take the crew out of an instance of CrewAI's @CrewBase, which is no crew itself but makes one."""
    make = None if _is_crew(made) else _method(made, "crew")
    return made if make is None else make()


def _copied(crew: Any) -> Any:
    """Copy a crew object: by its own `copy`, else deeply, else not at all."""
    own = _method(crew, "copy")
    if own is not None and _is_crew(crew):
        return own()
    try:
        return copy.deepcopy(crew)
    except Exception:  # noqa: BLE001  # locks, sockets, clients: such a crew is used as it is, once, in this process
        return crew


def _warning(crew_id: str, crew: Any) -> str | None:
    if getattr(crew, "knowledge_sources", None) or getattr(crew, "knowledge", None):
        return (
            f"crew {crew_id} is an object with knowledge: importing the registry embeds it, before any admission; "
            "make it a factory"
        )
    return None
