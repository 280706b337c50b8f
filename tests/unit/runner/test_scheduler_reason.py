"""What is kept of a cancel's reason."""

from __future__ import annotations

import pytest

from crewai_sidecar import jsontext
from crewai_sidecar.runner.scheduler import MAX_REASON_BYTES, _fitting


@pytest.mark.parametrize("reason", [None, "", "short", "x" * 2048, "x" * 2049, "é" * 2048, "😀" * 2048, '"' * 2048])
def test_a_reason_fits_the_room_of_its_ending_and_is_cut_no_more_than_that_needs(reason: str | None) -> None:
    """As encoded; a prefix of what was sent."""
    kept = _fitting(reason)
    if reason is None or kept is None:
        assert kept is reason
        return
    assert reason.startswith(kept)
    assert jsontext.length(kept) <= MAX_REASON_BYTES
    assert kept == reason or jsontext.length(kept) > MAX_REASON_BYTES - 13
