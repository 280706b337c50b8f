"""Where CrewAI keeps its files: what it froze at import is pointed at the run's own directory."""

from __future__ import annotations

import sys

__all__ = ["rebind"]


def rebind(storage: str) -> None:
    """Move Chroma's directory; SQLite's and LanceDB's are read from CREWAI_STORAGE_DIR by each crew (facts 1).

    `crewai.rag.chromadb.config` has a copy of the constant, made when it was imported. A module that has not been
    imported yet reads the environment when it is.
    """
    for name in ("crewai.rag.chromadb.constants", "crewai.rag.chromadb.config"):
        module = sys.modules.get(name)
        if module is not None:
            module.DEFAULT_STORAGE_PATH = storage  # type: ignore[attr-defined]  # a name of the module, not of its type
