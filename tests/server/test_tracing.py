"""Spans of requests and of the stages of a start."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentenv.errors import CapabilityError, Stage
from agentenv.server import control, tracing
from agentenv.server.app import create_app
from agentenv.server.services import Services, open_services
from agentenv.server.settings import load_settings

KEY = "e2b_" + "0123456789" * 4
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> TracerProvider:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(spans))
    return made


@pytest.fixture
async def services(server_home: Path) -> AsyncIterator[Services]:
    async with open_services(load_settings(environment={}), server_home, given_key=KEY) as opened:
        yield opened


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    return next(span for span in spans.get_finished_spans() if span.name == name)


async def test_a_creation_is_a_span_with_its_stages_in_the_callers_trace(
    services: Services, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    def instrument(app: FastAPI, services: Services) -> None:
        tracing.instrument(app, services, provider)

    app = create_app(services, (control.install, instrument))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        answer = await client.post("/sandboxes", json={"templateID": "base"}, headers={"X-API-Key": KEY, "traceparent": PARENT})
        assert answer.status_code == 201
        assert (await client.get(f"/sandboxes/{answer.json()['sandboxID']}")).status_code == 401
    request, start, launch = (named(spans, name) for name in ("POST /sandboxes", "sandbox start", "launch"))
    assert request.context is not None
    assert f"{request.context.trace_id:032x}" == PARENT.split("-")[1]
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 201
    assert start.parent == request.context
    assert launch.parent == start.context
    assert all(part.parent == launch.context for part in spans.get_finished_spans() if part.name.startswith("launch."))
    assert named(spans, "GET /sandboxes/{sandboxID}").attributes["http.response.status_code"] == 401  # type: ignore[index]


def test_stages_follow_each_other_and_parts_lie_in_their_stage(provider: TracerProvider, spans: InMemorySpanExporter) -> None:
    stages = [Stage("image", 1.0), Stage("launch", 3.0), Stage("launch.root", 1.0), Stage("launch.exec", 2.0), Stage("agent", 0.5)]
    tracing.trace_start(provider.get_tracer("test"), "namespace", stages)
    begin = named(spans, "sandbox start").start_time or 0
    places = {
        span.name: (((span.start_time or 0) - begin) / 1e9, ((span.end_time or 0) - begin) / 1e9) for span in spans.get_finished_spans()
    }
    assert places == {
        "image": (0, 1),
        "launch": (1, 4),
        "launch.root": (1, 2),
        "launch.exec": (2, 4),
        "agent": (4, 4.5),
        "sandbox start": (0, 4.5),
    }


async def test_nothing_is_traced_unless_asked_for(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tracing.ENDPOINT, raising=False)
    app = create_app(services, (tracing.install,))
    assert not any(middleware.cls is tracing.Tracing for middleware in app.user_middleware)
    monkeypatch.setenv(tracing.ENDPOINT, "http://127.0.0.1:4318")
    app = create_app(services, (tracing.install,))
    assert any(middleware.cls is tracing.Tracing for middleware in app.user_middleware)


async def test_without_the_extra_it_says_what_to_install(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(name, name=name)
        return load(name, *rest, **more)

    monkeypatch.setenv(tracing.ENDPOINT, "http://127.0.0.1:4318")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CapabilityError, match=r"agentenv\[otel\]"):
        tracing.install(FastAPI(), services)
