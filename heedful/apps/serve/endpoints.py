"""The endpoints of all interfaces, and endpoints for operators of the server."""

from __future__ import annotations

from typing import Any

from anyio import to_thread
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from heedful.apps.serve.exchange import Endpoint, NoBody, answers
from heedful.apps.serve.jobs_api import JobsApi
from heedful.apps.serve.libretranslate import LibreTranslate
from heedful.apps.serve.libretranslate_files import LibreTranslateFiles
from heedful.apps.serve.native_api import NativeApi
from heedful.apps.serve.openai_api import OpenAI
from heedful.apps.serve.openai_responses import OpenAIResponses
from heedful.apps.serve.openapi import describe
from heedful.apps.serve.server_parts import Interface, ServerParts
from heedful.apps.web import json_response


class Operations(Interface):
    """The endpoints for operators of the server, and its description."""

    @answers("/health", is_open=True)
    async def health(self, request: Request, body: NoBody) -> Response:
        """Say that the server runs."""
        return json_response({"status": "ok"})

    @answers("/ready", is_open=True)
    async def ready(self, request: Request, body: NoBody) -> Response:
        """Say whether the server takes requests."""
        waiting = self.service.scheduler.waiting
        is_full = waiting >= self.service.scheduler.most_waiting
        status = {"status": "busy" if is_full else "ok", "waiting": waiting}
        return json_response(status, 503 if is_full else 200)

    @answers("/metrics", is_open=True, media_type="text/plain")
    async def metrics(self, request: Request, body: NoBody) -> Response:
        """Give metrics in Prometheus' format."""
        text = await to_thread.run_sync(self.parts.metrics.text)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})

    @answers("/spec", is_open=True)
    @answers("/openapi.json", is_open=True)
    async def spec(self, request: Request, body: NoBody) -> Response:
        """Describe this server (OpenAPI)."""
        described = describe(all_endpoints(self.parts), needs_key=self.parts.needs_key)
        return json_response(described)


INTERFACES = (
    LibreTranslateFiles,
    LibreTranslate,
    OpenAI,
    OpenAIResponses,
    NativeApi,
    JobsApi,
    Operations,
)


def all_endpoints(parts: ServerParts) -> list[Endpoint[Any]]:
    """Return the endpoints of all interfaces whose parts the server has."""
    interfaces = [each for each in INTERFACES if each is not JobsApi or parts.jobs is not None]
    return [each for interface in interfaces for each in interface(parts).endpoints()]
