"""The endpoints of all interfaces, and those for whoever runs the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from anyio import to_thread
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from heedful.apps.serve.exchange import Endpoint
from heedful.apps.serve.jobs_api import JobsApi
from heedful.apps.serve.libretranslate import LibreTranslate, NoBody
from heedful.apps.serve.native_api import NativeApi
from heedful.apps.serve.native_api import error_body as native_error
from heedful.apps.serve.openai_api import OpenAI
from heedful.apps.serve.openai_responses import OpenAIResponses
from heedful.apps.serve.openapi import describe
from heedful.apps.serve.server_parts import ServerParts
from heedful.apps.web import json_response


def all_endpoints(parts: ServerParts) -> list[Endpoint[Any]]:
    """Return the endpoints of all interfaces."""
    needs_key = parts.clients.keys is not None
    endpoints = [
        *LibreTranslate(
            parts.service,
            needs_key=needs_key,
            files=parts.files,
            suggestions=parts.suggestions,
        ).endpoints(),
        *OpenAI(parts.service).endpoints(),
        *OpenAIResponses(parts.service).endpoints(),
        *NativeApi(parts.service).endpoints(),
        *([] if parts.jobs is None else JobsApi(parts.service, parts.jobs).endpoints()),
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
