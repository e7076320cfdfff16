"""OpenTelemetry traces, where they are wanted: a span for each request, and in it one for each stage of a start.

They are off unless `tracing.endpoint` or OTEL_EXPORTER_OTLP_ENDPOINT names a collector; the other OTEL_* variables mean what the
OpenTelemetry SDK says (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentenv.errors import CapabilityError, Stage
from agentenv.monitoring.stages import total_seconds
from agentenv.server.services import Services
from agentenv.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
NANOSECONDS = 1_000_000_000


def install(app: FastAPI, services: Services) -> None:
    """Traces where an endpoint is named. Raises `CapabilityError` where one is and the extra is not installed."""
    endpoint = services.settings.tracing.endpoint
    if endpoint is None and not os.environ.get(ENDPOINT):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise CapabilityError(f"traces need the package {error.name!r}.", remedy="Run `pip install agentenv[otel]`.") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "agentenv", "service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None)))

    async def flush() -> None:
        await asyncio.to_thread(provider.shutdown)

    services.closing.push_async_callback(flush)
    instrument(app, services, provider)


def instrument(app: FastAPI, services: Services, provider: TracerProvider) -> None:
    """Traces the application's requests and the fleet's starts with that provider."""
    tracer = provider.get_tracer("agentenv", __version__)
    app.add_middleware(Tracing, tracer=tracer)
    backend = services.ground.backend
    services.fleet.telemetry.on_start(lambda stages: trace_start(tracer, backend, stages))


class Tracing:
    """ASGI middleware: a span around each request, child of the caller's where it sends one (W3C Trace Context)."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; WebSockets last too long to be spans."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method = scope["method"]
        attributes = {"http.request.method": method, "url.path": scope["path"]}
        with self._tracer.start_as_current_span(method, extract(headers), SpanKind.SERVER, attributes=attributes) as span:

            async def noticing(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _answered(span, message["status"])
                await send(message)

            await self._app(scope, receive, noticing)
            # Names are of routes, not of paths: one for each sandbox would be of no use.
            if (route := getattr(scope.get("route"), "path", None)) is not None:
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)


def trace_start(tracer: Tracer, backend: str, stages: Sequence[Stage]) -> None:
    """A span for a start that has just ended, with one for each stage; a stage with a dot in its name is a part of the one before it."""
    from opentelemetry.trace import set_span_in_context

    end = time.time_ns()
    begin = end - round(total_seconds(stages) * NANOSECONDS)
    whole = tracer.start_span("sandbox start", start_time=begin, attributes={"agentenv.backend": backend})
    context = above = set_span_in_context(whole)
    after = inner = begin
    for stage in stages:
        length = round(stage.seconds * NANOSECONDS)
        if "." in stage.name:
            tracer.start_span(stage.name, above, start_time=inner).end(inner + length)
            inner += length
            continue
        span = tracer.start_span(stage.name, context, start_time=after)
        span.end(after + length)
        above, inner, after = set_span_in_context(span), after, after + length
    whole.end(end)


def _answered(span: Span, status: int) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))
