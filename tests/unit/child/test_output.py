"""Outputs that are too large are cut to what fits, and no further."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crewai_sidecar import jsontext
from crewai_sidecar.child.crewai_adapter.output import bounded, crew_output, sealed


@given(st.text(), st.integers(min_value=400, max_value=3000))
def test_a_long_text_is_cut_to_the_last_character_that_fits(text: str, most: int) -> None:
    """The output is within the bound, and one more character of raw would not be."""
    output = crew_output({"raw": text * 50, "tasks_output": [{"raw": "x"}]})
    cut = bounded(output, most)
    assert len(jsontext.encode(cut.value)) <= most
    assert cut.truncated == (cut.size > most)
    if cut.truncated:
        raw = cut.value["raw"]
        assert output["raw"].startswith(raw)
        following = {**cut.value, "raw": output["raw"][: len(raw) + 1]}
        assert len(output["raw"]) == len(raw) or len(jsontext.encode(following)) > most


@given(st.lists(st.text(max_size=2000), min_size=1, max_size=100))
def test_a_batch_that_is_too_large_keeps_a_share_of_each_result(texts: list[str]) -> None:
    """No result is lost: each keeps the beginning of its text."""
    results = [crew_output(text) for text in texts]
    cut = bounded({"results": results, "count": len(texts)}, 20_000)
    assert len(jsontext.encode(cut.value)) <= 20_000
    assert cut.value["count"] == len(cut.value["results"]) == len(texts)
    for kept, text in zip(cut.value["results"], texts, strict=True):
        assert text.startswith(kept["raw"]) or not cut.truncated


def test_found_documents_are_shortened_too() -> None:
    """A knowledge query's result stays an object with results."""
    found: list[dict[str, Any]] = [{"content": "x" * 5000, "score": 1}] * 5
    cut = bounded(sealed({"results": found}), 4000)
    assert cut.truncated
    assert [len(one["content"]) > 500 for one in cut.value["results"]] == [True] * 5


def test_what_was_changed_inside_a_batch_is_said_at_the_top() -> None:
    """The mark of one result marks the whole output."""
    results = [crew_output("fine"), crew_output({"raw": "n", "n": float("nan")})]
    made = sealed({"results": results, "count": 2})
    assert made["sanitized"] is True
    assert "sanitized" not in made["results"][0]
