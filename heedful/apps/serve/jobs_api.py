"""Heedful's own interface for large documents: order a translation, ask for it, fetch it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Literal

import pydantic
from anyio import to_thread
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from heedful.apps.serve.document_translation import translated_format
from heedful.apps.serve.exchange import Body, NoBody, RefusedRequest, answers
from heedful.apps.serve.jobs import Order
from heedful.apps.serve.libretranslate_files import Upload, attachment
from heedful.apps.serve.native_api import find_route
from heedful.apps.serve.server_parts import Interface, ServerParts
from heedful.apps.web import json_response

_JOB = "/v1/jobs/{name}"

TEXT_NAME = "text.txt"
"""Document name of a job with plain text."""


class JobBody(Body):
    """A request for a translation that may take long."""

    file: Upload | None = Field(None, description="document; its suffix determines the format")
    text: str = Field("", description="plain text, instead of a file")
    source: str = Field("", description="source language code; requires target")
    target: str = Field("", description="target language code; requires source")
    model: str = Field("", description="name of a model, instead of languages")


class JobState(pydantic.BaseModel):
    """The state of a job."""

    id: str = Field(description="unguessable id in the addresses of the job")
    name: str = Field(description="name of the document")
    status: Literal["waiting", "running", "done", "failed"]
    done: int = Field(description="number of translated sentences")
    total: int | None = Field(description="number of all sentences; null before the job runs")
    error: str | None = Field(description="reason of a failure")


class JobsApi(Interface):
    """The endpoints below `/v1/jobs`. A job is visible only to the key that created it."""

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        assert parts.jobs is not None
        self.jobs = parts.jobs

    @answers("/v1/jobs", JobBody, result=JobState, body_type="multipart/form-data")
    async def create(self, request: Request, body: JobBody) -> Response:
        """Order the translation of a document or a long text."""
        if (body.file is None) == (not body.text):
            raise RefusedRequest(400, "Give either file or text", "invalid", where="file")
        name = PurePath((body.file and body.file.filename) or TEXT_NAME)
        order = Order(
            name=name.name,
            format=translated_format(name),
            route=find_route(self.service, body.model, body.source, body.target),
            language=body.source or self.service.models.find(body.model).source,
            owner=_owner(request),
        )
        content = body.text.encode() if body.file is None else await body.file.read()
        id = await to_thread.run_sync(self.jobs.create, order, content)
        self.jobs.added.set()
        state = self.jobs.state(self.jobs.folder / id)
        return json_response(state, 202, {"location": f"/v1/jobs/{id}"})

    @answers(_JOB, result=JobState)
    async def state(self, request: Request, body: NoBody) -> Response:
        """Give the state of a job."""
        state = self.jobs.state(self._folder(request))
        is_finished = state["status"] in ("done", "failed")
        headers: Mapping[str, str] = {} if is_finished else {"retry-after": "1"}
        return json_response(state, headers=headers)

    @answers(_JOB, method="DELETE")
    async def delete(self, request: Request, body: NoBody) -> Response:
        """Delete a job."""
        await to_thread.run_sync(partial(shutil.rmtree, ignore_errors=True), self._folder(request))
        return Response(status_code=204)

    @answers(f"{_JOB}/result", media_type="application/octet-stream")
    async def result(self, request: Request, body: NoBody) -> Response:
        """Fetch the translation of a finished job."""
        folder = self._folder(request)
        content = await to_thread.run_sync(self.jobs.result, folder)
        state = self.jobs.state(folder)
        if content is None:
            words = state["error"] or f"The job is not done yet: it is {state['status']}"
            raise RefusedRequest(409, words, "unfinished")
        return attachment(content, state["name"])

    def _folder(self, request: Request) -> Path:
        return self.jobs.find(request.path_params["name"], _owner(request))


def _owner(request: Request) -> str | None:
    owner: str | None = getattr(request.state, "owner", None)
    return owner
