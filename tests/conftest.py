"""What holds for every test: in CI a skip is a failure, unless its reason is on the list below."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

ALLOWED_SKIPS: frozenset[str] = frozenset()
"""Reasons, word for word, that CI accepts. A test that cannot run on CI's machine has its reason here."""

IN_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what needs root, for everybody else."""
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn an unexpected skip of a test into a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn an unexpected skip of a whole module into a failure."""
    report = yield
    if report.skipped:
        _refuse(report)
    return report


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = (
        report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
    )
    if IN_CI and reason not in ALLOWED_SKIPS:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI without being on the list in tests/conftest.py: {reason}"
