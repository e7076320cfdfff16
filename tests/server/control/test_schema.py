"""Requests of every shape that the OpenAPI document allows, and of many that it does not: none is answered 500."""

from __future__ import annotations

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis import GenerationMode
from tests.conditions import needs_namespaces
from tests.server.conftest import RunningServer, StartServer
from tests.server.postgres import needs_postgres

pytestmark = needs_namespaces

FEW, MANY = 1, 60
"""Requests for each operation: in `make test`, and in `make soak`."""


def drive(server: RunningServer, examples: int, mode: GenerationMode = GenerationMode.POSITIVE) -> int:
    """Sends requests to every operation of the server's document; returns to how many operations."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", timeout=60)
    headers = {"X-API-Key": server.key}
    settings = hypothesis.settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    driven = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        driven += 1

        @settings
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def answered(case: schemathesis.Case) -> None:
            answer = case.call(headers=headers, timeout=60)
            assert answer.status_code != 500, f"{case.method} {case.path}: {answer.text}"

        answered()
    return driven


def clean(server: RunningServer) -> None:
    """Ends the sandboxes that the requests may have made."""
    with server.client() as client:
        for one in client.get("/v2/sandboxes").json():
            client.delete(f"/sandboxes/{one['sandboxID']}")


def test_no_request_is_answered_500(server: RunningServer) -> None:
    assert drive(server, FEW) > 30
    clean(server)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_no_request_of_many_is_answered_500(server: RunningServer, mode: GenerationMode) -> None:
    assert drive(server, MANY, mode) > 30
    clean(server)


@pytest.mark.soak
@needs_postgres
@pytest.mark.timeout(900)
def test_nor_with_the_stricter_database(start_server: StartServer, postgres_url: str) -> None:
    server = start_server({"database": postgres_url})
    assert drive(server, MANY) > 30
    clean(server)
