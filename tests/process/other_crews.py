"""A registry without the crews of duck_crews."""

from __future__ import annotations

from typing import Any


class Replayer:
    def replay(self, task_id: str, inputs: dict[str, Any] | None = None) -> str:
        return task_id


crews = {"replayer": Replayer()}
