"""`serve` where the service must not start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("settings", "variable"),
    [
        ({}, "AIP_CREWAI_REGISTRY"),
        ({"AIP_CREWAI_REGISTRY": "a:b", "AIP_CREWAI_PORT": "tcp://10.0.0.1:8090"}, "AIP_CREWAI_PORT"),
    ],
    ids=["missing", "injected by Kubernetes"],
)
def test_a_refused_start_is_one_line_and_code_78(settings: dict[str, str], variable: str) -> None:
    """The line names the variable; standard output stays empty for whoever waits for the ready line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIP_CREWAI_")}
    result = subprocess.run(
        [sys.executable, "-m", "crewai_sidecar", "serve"],
        env=environment | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (78, "")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"crewai-sidecar: {variable}: ")
