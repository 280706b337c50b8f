"""The README's table of settings, made from settings.py: names, defaults, bounds and the docstring of each field.

Run as a command it writes the table into the README.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from crewai_sidecar import settings

__all__ = ["BEGIN", "END", "README", "table"]

README = Path(__file__).parents[2] / "README.md"
BEGIN = "<!-- settings: written by `make docs` from settings.py -->\n"
END = "<!-- end of settings -->\n"


def table() -> str:
    """Write the table."""
    meanings = _docstrings()
    rows = [
        f"| `{settings.PREFIX}{name.upper()}` | {_default(field)} | {_bounds(field)} | {meanings[name]} |\n"
        for name, field in settings.Settings.model_fields.items()
    ]
    return "| Variable | Default | Bounds | Meaning |\n| --- | --- | --- | --- |\n" + "".join(rows)


def _docstrings() -> dict[str, str]:
    """The string below each field; the language keeps none of them at run time."""
    tree = ast.parse(inspect.getsource(settings))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings")
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    match field.default:
        case None | () | "":
            return ""
        case bool():
            return f"`{str(field.default).lower()}`"
        case tuple():
            return f"`{','.join(map(str, field.default))}`"
        case _:
            return f"`{field.default}`"


def _bounds(field: FieldInfo) -> str:
    def bound(name: str) -> Any:
        return next((getattr(one, name) for one in field.metadata if hasattr(one, name)), None)

    low, high = bound("ge"), bound("le")
    return "" if low is None or high is None else f"{low:,} to {high:,}"


if __name__ == "__main__":
    before, _, rest = README.read_text("utf-8").partition(BEGIN)
    README.write_text(before + BEGIN + table() + END + rest.partition(END)[2], "utf-8")
