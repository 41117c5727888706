"""The server as an ASGI application."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from heedful.apps.serve.endpoints import all_endpoints
from heedful.apps.serve.exchange import RefusedRequest, respond
from heedful.apps.serve.gate import ForwardedHeaders, Gate
from heedful.apps.serve.jobs import RUNNERS, run_jobs
from heedful.apps.serve.server_parts import Interface, ServerParts
from heedful.apps.web import json_response


def build_app(parts: ServerParts) -> Starlette:
    """Build the application."""
    endpoints = all_endpoints(parts)
    errors = {endpoint.path: endpoint.error for endpoint in endpoints}

    def error_body(path: str, refusal: RefusedRequest) -> Mapping[str, Any]:
        return errors.get(path, Interface.error_body)(refusal)

    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = {404: "There is nothing here", 405: "This address takes another method"}
        refusal = RefusedRequest(
            error.status_code, words.get(error.status_code, error.detail), "http"
        )
        headers = dict(error.headers or {})
        methods = {each.method for each in endpoints if each.path == request.url.path}
        # Starlette's header names only the methods of the first route.
        if len(methods) > 1 and error.status_code == 405:
            headers["Allow"] = ", ".join(sorted({"HEAD", *methods}))
        body = error_body(request.url.path, refusal)
        return json_response(body, error.status_code, headers)

    async def defect(request: Request, error: Exception) -> Response:
        traceback.print_exception(error, file=sys.stderr)
        refusal = RefusedRequest(
            500, "Internal error of the server; its log gives the reason", "defect"
        )
        return json_response(error_body(request.url.path, refusal), 500)

    return Starlette(
        routes=[
            Route(
                each.path,
                partial(respond, each, admit=parts.clients.admit),
                methods=[each.method],
                name=each.path,
            )
            for each in endpoints
        ],
        middleware=[
            Middleware(ForwardedHeaders, proxies=parts.gate.proxies),
            Middleware(
                Gate,
                settings=parts.gate,
                metrics=parts.metrics,
                known=errors,
                for_files={each.path for each in endpoints if "multipart" in each.body_type},
                log=parts.log,
                error_body=error_body,
            ),
        ],
        exception_handlers={HTTPException: not_found, Exception: defect},
        lifespan=lambda app: _running(parts),
    )


@asynccontextmanager
async def _running(parts: ServerParts) -> AsyncIterator[None]:
    """Compute jobs while the server runs; at its end, finish the waiting texts of requests."""
    jobs = parts.jobs
    tasks = [
        asyncio.ensure_future(run_jobs(jobs, parts.service))
        for _ in range(RUNNERS)
        if jobs is not None
    ]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await to_thread.run_sync(parts.service.scheduler.stop)
