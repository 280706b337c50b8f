"""Pages that name tests, codes and numbers say what the code says."""

from __future__ import annotations

import ast
import itertools
import re
import unicodedata
from pathlib import Path
from typing import Any, Literal

from crewai_sidecar import errors, identity, jsontext
from crewai_sidecar.api import problems

ROOT = Path(__file__).parents[2]


def rows(page: Path) -> list[list[str]]:
    """The cells of every table row of a page."""
    return [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        for line in page.read_text().splitlines()
        if line.startswith("|")
    ]


def names_of_tests() -> set[str]:
    """The names of all tests."""
    return {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_known_fault_names_a_test_that_exists() -> None:
    """W1 to W29 in tests/README.md."""
    faults = {row[0]: row for row in rows(ROOT / "tests/README.md") if re.fullmatch(r"W\d+[a-z]?", row[0])}
    assert {f"W{number}" for number in range(1, 30)} <= set(faults)
    known = names_of_tests()
    for fault, row in faults.items():
        named = re.findall(r"`(test_\w+)`", row[2])
        assert named or fault == "W23", fault
        assert set(named) <= known, (fault, set(named) - known)


def test_no_two_tests_of_the_same_kind_share_a_name() -> None:
    """A name in a table leads to one test."""
    seen: dict[str, Path] = {}
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "tests/README.md").read_text()))
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in named:
                assert node.name not in seen, (node.name, path, seen[node.name])
                seen[node.name] = path


def test_the_page_of_errors_has_every_code_with_its_number_and_no_other() -> None:
    """deploy/guide/errors.md against the table of answers."""
    page = {row[0].strip("`"): int(row[1]) for row in rows(ROOT / "deploy/guide/errors.md") if row[0].startswith("`")}
    assert page == {kind.code: status for kind, (status, _) in problems.PROBLEMS.items()}


def test_the_tree_in_the_docstring_of_errors_is_the_tree() -> None:
    """Every class above RequestRefused's children is drawn where it hangs."""
    drawn = re.findall(r"^[ │├└─]*([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, errors.SidecarError)
        and not (issubclass(value, errors.RequestRefused) and value is not errors.RequestRefused)
    }
    assert {name for name in drawn if name != "Every" and name != "A"} == classes


def test_every_error_has_a_code_of_its_own() -> None:
    """Clients tell them apart by it."""
    codes = [
        value.code
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.SidecarError)
    ]
    assert len(codes) == len(set(codes))


def test_the_table_of_spellings_says_what_the_hash_does() -> None:
    """deploy/guide/contract.md: which requests are the same, row by row."""
    page = rows(ROOT / "deploy/guide/contract.md")
    begin = next(index for index, row in enumerate(page) if row[:3] == ["First request", "Second request", "Same?"])
    compared = 0
    for first, second, same, _ in itertools.takewhile(lambda row: len(row) == 4, page[begin + 2 :]):
        equal = hash_of(first) == hash_of(second)
        assert equal == (same == "yes"), (first, second)
        compared += 1
    assert compared >= 15


def hash_of(cell: str) -> str:
    """The request hash of what a cell of the table describes."""
    text = " ".join(re.findall(r"`([^`]*)`", cell))
    if cell.startswith("key"):
        raw = f" {text}\t" if "blanks" in cell else text
        return spelt({}, key=raw)
    if cell.endswith("absent"):
        return spelt({})
    if text.startswith("{"):
        form: Literal["NFC", "NFD"] = "NFD" if cell.endswith("decomposed") else "NFC"
        return spelt({"input": jsontext.decode(unicodedata.normalize(form, text).encode())})
    return spelt(jsontext.decode(b"{%s}" % text.encode()))


def spelt(fields: dict[str, Any], key: str = "k") -> str:
    """Hash a body of these fields, with the service's own defaults."""
    return identity.request_hash(
        identity.canonical(
            action_id="act_1",
            crew_id="c",
            operation=fields.get("operation", "run"),
            input_object=fields.get("input", {}),
            timeout_ms=fields.get("timeout_ms"),
            key=identity.idempotency_key([key.encode()]),
        )
    )
