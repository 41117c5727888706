"""The server as an ASGI application."""

from __future__ import annotations

import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from anyio import to_thread
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from heedful.apps.serve.exchange import Endpoint, RefusedRequest, respond
from heedful.apps.serve.file_store import FileStore
from heedful.apps.serve.gate import AccessLog, Gate
from heedful.apps.serve.keys import Keys
from heedful.apps.serve.libretranslate import LibreTranslate, NoBody
from heedful.apps.serve.limits import GateSettings
from heedful.apps.serve.metrics import Metrics
from heedful.apps.serve.native_api import NativeApi
from heedful.apps.serve.native_api import error_body as native_error
from heedful.apps.serve.openai_api import OpenAI
from heedful.apps.serve.openapi import describe
from heedful.apps.serve.service import Service
from heedful.apps.web import json_response


@dataclass(frozen=True)
class ServerParts:
    """The parts of an application.

    Args:
        service: models and queue.
        metrics: metrics of this process.
        gate: limits of requests.
        keys: keys of clients; None to serve anybody.
        log: log of requests; None without one.
        files: store of translated files; None to translate no files.
    """

    service: Service
    metrics: Metrics
    gate: GateSettings
    keys: Keys | None = None
    log: AccessLog | None = None
    files: FileStore | None = None


def build_app(parts: ServerParts) -> Starlette:
    """Build the application."""
    endpoints = all_endpoints(parts)
    errors = {endpoint.path: endpoint.error for endpoint in endpoints}

    def error_body(path: str, refusal: RefusedRequest) -> Mapping[str, Any]:
        return errors.get(path, native_error)(refusal)

    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = {404: "There is nothing here", 405: "This address takes another method"}
        refusal = RefusedRequest(
            error.status_code, words.get(error.status_code, error.detail), "http"
        )
        headers = dict(error.headers or {})
        methods = {each.method for each in endpoints if each.path == request.url.path}
        if (
            len(methods) > 1 and error.status_code == 405
        ):  # Starlette names the methods of the first route only
            headers["Allow"] = ", ".join(sorted({"HEAD", *methods}))
        body = error_body(request.url.path, refusal)
        return json_response(body, error.status_code, headers)

    async def defect(request: Request, error: Exception) -> Response:
        traceback.print_exception(error, file=sys.stderr)
        refusal = RefusedRequest(
            500, "Internal error of the server; its log gives the reason", "defect"
        )
        return json_response(error_body(request.url.path, refusal), 500)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await to_thread.run_sync(parts.service.scheduler.stop)

    return Starlette(
        routes=[
            Route(each.path, _handler(each, parts.keys), methods=[each.method], name=each.path)
            for each in endpoints
        ],
        middleware=[
            Middleware(
                Gate,
                settings=parts.gate,
                metrics=parts.metrics,
                known=errors,
                log=parts.log,
                error_body=error_body,
            )
        ],
        exception_handlers={HTTPException: not_found, Exception: defect},
        lifespan=lifespan,
    )


def all_endpoints(parts: ServerParts) -> list[Endpoint[Any]]:
    """Return the endpoints of all interfaces."""
    needs_key = parts.keys is not None
    endpoints = [
        *LibreTranslate(parts.service, needs_key=needs_key, files=parts.files).endpoints(),
        *OpenAI(parts.service).endpoints(),
        *NativeApi(parts.service).endpoints(),
        *_operations(parts),
    ]

    async def spec(request: Request, body: NoBody) -> Response:
        return json_response(describe(endpoints, needs_key=needs_key))

    endpoints += [
        _open(path, "Describe this server (OpenAPI)", spec) for path in ("/spec", "/openapi.json")
    ]
    return endpoints


def _operations(parts: ServerParts) -> Sequence[Endpoint[Any]]:
    """Return the endpoints for those who run the server."""

    async def health(request: Request, body: NoBody) -> Response:
        return json_response({"status": "ok"})

    async def ready(request: Request, body: NoBody) -> Response:
        waiting = parts.service.scheduler.waiting
        is_full = waiting >= parts.service.scheduler.most_waiting
        status = {"status": "busy" if is_full else "ok", "waiting": waiting}
        return json_response(status, 503 if is_full else 200)

    async def metrics(request: Request, body: NoBody) -> Response:
        text = await to_thread.run_sync(parts.metrics.text)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})

    return [
        _open("/health", "Say that the server runs", health),
        _open("/ready", "Say whether the server takes requests", ready),
        _open("/metrics", "Give metrics in Prometheus' format", metrics, "text/plain"),
    ]


def _open(
    path: str,
    summary: str,
    answer: Callable[[Request, NoBody], Awaitable[Response]],
    media_type: str = "application/json",
) -> Endpoint[NoBody]:
    return Endpoint(
        path,
        summary,
        NoBody,
        answer,
        native_error,
        method="GET",
        is_open=True,
        media_type=media_type,
    )


def _handler(
    endpoint: Endpoint[Any], keys: Keys | None
) -> Callable[[Request], Awaitable[Response]]:
    async def handler(request: Request) -> Response:
        return await respond(endpoint, request, keys)

    return handler
