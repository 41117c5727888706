"""LibreTranslate's interface for files: `/translate_file`, and the address of the result."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated
from urllib.parse import quote

import pydantic
from anyio import to_thread
from pydantic import Field, InstanceOf, WithJsonSchema
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from heedful.apps.serve.document_translation import (
    document_text,
    translate_documents,
    translated_format,
)
from heedful.apps.serve.exchange import Body, NoBody, RefusedRequest, answers, while_connected
from heedful.apps.serve.libretranslate import LibreTranslate
from heedful.apps.web import json_response
from heedful.errors import RunError

Upload = Annotated[InstanceOf[UploadFile], WithJsonSchema({"type": "string", "format": "binary"})]


class TranslateFileBody(Body):
    """A request for the translation of a file."""

    file: Upload = Field(description="document; the suffix of its name determines the format")
    source: str = Field(min_length=1, description="source language code, or auto to detect it")
    target: str = Field(min_length=1, description="target language code")
    api_key: str = Field("", description="API key, if the server requires one")


class TranslatedFile(pydantic.BaseModel):
    """The address of a translated file."""

    translatedFileUrl: str = Field(description="address of the file, which is kept for ten minutes")
    leftOut: list[str] = Field(description="untranslated passages: line, text and reason of each")


def attachment(content: bytes, name: str) -> Response:
    """Return a translated document as a download, so that browsers run none of its scripts."""
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name)}",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
    return Response(content, headers=headers, media_type="application/octet-stream")


class LibreTranslateFiles(LibreTranslate):
    """The endpoints for files."""

    @answers(
        "/translate_file", TranslateFileBody, result=TranslatedFile, body_type="multipart/form-data"
    )
    async def translate_file(self, request: Request, body: TranslateFileBody) -> Response:
        """Translate a document, and return the address of the result.

        LibreTranslate's clients wait for this address; they cannot poll a job.
        """
        if self.parts.files is None:
            raise RefusedRequest(403, "This server does not translate files", "files")
        name = PurePath(body.file.filename or "document")
        format = translated_format(name)
        data = await body.file.read()
        source = body.source
        if source == "auto":
            text = await document_text(data, format, name.name)
            source = (await self._detected(text, body.target)).language
        route = self._route(source, body.target)
        ((translated,),) = await while_connected(
            request,
            translate_documents(
                self.service,
                [data],
                format,
                route,
                settings=self.service.search.model_copy(update={"n_best": 1}),
                language=source,
                target_language=body.target,
                name=name.name,
                advance=lambda done, total: None,
            ),
        )
        try:
            stored = await to_thread.run_sync(
                self.parts.files.put, translated.data, name.suffix.lower()
            )
        except OSError as error:
            raise RunError(f"The translated file cannot be stored: {error.strerror}") from None
        address = request.url_for("/download_file/{name}", name=stored)
        if host := request.headers.get("x-forwarded-host"):  # the name that the client knows
            address = address.replace(netloc=host)
        return json_response(
            {"translatedFileUrl": str(address), "leftOut": list(translated.left_out)}
        )

    @answers("/download_file/{name}", is_open=True, media_type="application/octet-stream")
    async def download(self, request: Request, body: NoBody) -> Response:
        """Fetch a translated document."""
        name = request.path_params["name"]
        content = None
        if self.parts.files is not None:
            content = await to_thread.run_sync(self.parts.files.get, name)
        if content is None:
            raise RefusedRequest(404, "There is no such file, or it has expired", "missing")
        return attachment(content, name)
