"""One table from errors to answers: total, and the same as the guide's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewai_sidecar.api.problems import PROBLEMS, problem
from crewai_sidecar.errors import NotStored, RequestRefused, SidecarError, WorkerLost

GUIDE = Path(__file__).parents[2] / "deploy" / "guide" / "errors.md"


def leaves(kind: type[SidecarError]) -> Iterator[type[SidecarError]]:
    for below in kind.__subclasses__():
        yield below
        yield from leaves(below)


def test_every_refusal_has_a_row() -> None:
    """Those of the request, and those of the disk."""
    assert {*leaves(RequestRefused), *leaves(NotStored)} <= PROBLEMS.keys()


def test_every_code_is_one_row_s() -> None:
    """A code is what clients go by."""
    codes = [kind.code for kind in PROBLEMS]
    assert len(set(codes)) == len(codes)


def test_the_guide_has_the_same_codes_and_numbers() -> None:
    """deploy/guide/errors.md."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (\d+) \|", GUIDE.read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted((kind.code, str(status)) for kind, (status, _) in PROBLEMS.items())


@pytest.mark.parametrize("kind", list(PROBLEMS))
def test_a_problem_body_is_rfc_9457_with_a_code(kind: type[SidecarError]) -> None:
    """Title by class, detail by whoever raised it."""
    status, title = PROBLEMS[kind]
    answer = problem(kind("What is the matter: \ud800."), action_id="act_1")
    assert json.loads(answer.body) == {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": "What is the matter: ?.",
        "code": kind.code,
        "action_id": "act_1",
    }
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert ("www-authenticate" in answer.headers) is (status == 401)
    assert ("retry-after" in answer.headers) is (kind.code in {"queue_full", "draining"})


def test_an_error_without_a_row_is_a_fault_of_the_service() -> None:
    """Its text is not shown."""
    answer = problem(WorkerLost("pid 17"))
    assert answer.status_code == 500
    assert b"17" not in answer.body
