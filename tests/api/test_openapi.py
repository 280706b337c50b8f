"""The description of the contract: generated, complete, pinned."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

from crewai_sidecar.api.problems import PROBLEMS, ROUTING
from crewai_sidecar.api.wire import CANCEL_FIELDS, START_FIELDS
from tests.api.service import Service, client_of, in_a_service

PINNED = Path(__file__).parent / "openapi.json"
REGENERATE = "WRITE_OPENAPI"


async def described(service: Service) -> dict[str, Any]:
    response = await service.get("/openapi.json")
    assert response.status_code == 200
    return dict(response.json())


def operations(description: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{method.upper()} {path}": operation
        for path, item in description["paths"].items()
        for method, operation in item.items()
        if method in {"get", "post", "delete", "put", "patch"}
    }


@in_a_service()
async def test_the_description_is_the_pinned_one(service: Service) -> None:
    """A change of the contract is seen in review. To accept it: WRITE_OPENAPI=1 make test."""
    text = (await service.get("/openapi.json")).text + "\n"
    if os.environ.get(REGENERATE):
        PINNED.write_text(text, "utf-8")
    assert text == PINNED.read_text("utf-8")


@in_a_service()
async def test_the_description_needs_the_token(service: Service) -> None:
    """Nothing is public on the contract port (W27)."""
    async with client_of(service.app) as stranger:
        assert (await stranger.get("/openapi.json")).status_code == 401
    description = await described(service)
    assert description["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert description["security"] == [{"bearer": []}]


@in_a_service()
async def test_every_route_is_described(service: Service) -> None:
    """The routes of the contract, no more and no less."""
    assert set(operations(await described(service))) == {
        "GET /health",
        "POST /drain",
        "POST /jobs",
        "POST /jobs/stream",
        "GET /jobs",
        "GET /jobs/{action_id}",
        "GET /jobs/{action_id}/events",
        "POST /jobs/{action_id}/cancel",
        "DELETE /jobs/{action_id}",
        "POST /runs",
        "POST /runs/stream",
        "GET /runs/{action_id}",
        "POST /runs/{action_id}/cancel",
    }


@in_a_service()
async def test_every_code_of_the_table_is_described_under_its_number(service: Service) -> None:
    """Those of no route aside; and nothing is described that is in no table."""
    numbers = {kind.code: str(status) for kind, (status, _) in PROBLEMS.items() if kind not in ROUTING}
    seen: dict[str, str] = {}
    for operation in operations(await described(service)).values():
        for number, response in operation["responses"].items():
            if "application/problem+json" in response.get("content", {}):
                codes = re.findall(r"`([a-z_]+)`", response["description"])
                assert codes
                seen |= dict.fromkeys(codes, number)
                assert {numbers[code] for code in codes} == {number}
    assert seen == numbers


@in_a_service()
async def test_the_codes_of_a_start_are_all_there(service: Service) -> None:
    """All of them, with the headers that belong to them."""
    found = operations(await described(service))
    start = found["POST /jobs"]["responses"]
    assert set(start) == {
        "200", "202", "400", "401", "403", "404", "409", "410", "413", "422", "428", "500", "502", "503", "504", "507",
    }  # fmt: skip
    assert set(start["202"]["headers"]) == {"Location", "Preference-Applied"}
    assert set(start["503"]["headers"]) == {"Retry-After"}
    assert set(start["401"]["headers"]) == {"WWW-Authenticate"}
    assert set(found["POST /jobs/stream"]["responses"]) == set(start) - {"202", "502", "504"}
    assert set(found["GET /jobs/{action_id}/events"]["responses"]["200"]["content"]) == {
        "application/json",
        "text/event-stream",
    }
    assert set(found["POST /jobs/stream"]["responses"]["200"]["content"]) == {"text/event-stream"}
    assert "headers" not in found["POST /jobs/{action_id}/cancel"]["responses"]["503"]


@in_a_service()
async def test_bodies_and_parameters_are_described_as_they_are_checked(service: Service) -> None:
    """From the same list."""
    found = operations(await described(service))
    for route, fields in (("POST /jobs", START_FIELDS), ("POST /jobs/{action_id}/cancel", CANCEL_FIELDS)):
        schema = found[route]["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["properties"]) == {field.name for field in fields}
        assert schema["required"] == ["crew_id", "action_id"]
        assert schema["additionalProperties"] is False
    timeout = found["POST /jobs"]["requestBody"]["content"]["application/json"]["schema"]["properties"]["timeout_ms"]
    assert (timeout["type"], timeout["minimum"], timeout["maximum"]) == (["integer", "null"], 1, 3_600_000)
    names = {(one["in"], one["name"]) for one in found["GET /jobs/{action_id}/events"]["parameters"]}
    assert names == {("path", "action_id"), ("query", "cursor"), ("query", "crew_id"), ("header", "Last-Event-ID")}


@pytest.mark.parametrize("name", ["RecordView", "Problem"])
@in_a_service()
async def test_answers_are_as_they_are_described(service: Service, name: str) -> None:
    """Every field of a real answer is in its schema, and every required one is in the answer."""
    schema = (await described(service))["components"]["schemas"][name]
    await service.begin()
    await service.cancel()
    answer = (await service.get("/jobs/act_1") if name == "RecordView" else await service.start()).json()
    assert set(answer) <= set(schema["properties"])
    assert set(schema["required"]) <= set(answer)


@in_a_service()
async def test_describing_leaves_the_process_s_logging_alone(service: Service) -> None:
    """A web framework's default would take it over."""
    before = list(logging.getLogger().handlers)
    await described(service)
    assert logging.getLogger().handlers == before
    json.loads((await service.get("/openapi.json")).text)
