"""Registries that are none."""

from typing import Any

not_a_mapping = [1, 2]
empty_id = {"": object}


def raises() -> Any:
    raise RuntimeError("no")
