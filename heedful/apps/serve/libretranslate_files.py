"""LibreTranslate's interface for files: `/translate_file`, and the address of the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import PurePath
from typing import Annotated, Any
from urllib.parse import quote

import pydantic
from anyio import to_thread
from pydantic import Field, InstanceOf, WithJsonSchema
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from heedful.apps.documents.formats import FORMATS, format_of
from heedful.apps.serve.document_translation import document_text, translate_documents
from heedful.apps.serve.exchange import (
    Body,
    Endpoint,
    RefusedRequest,
    while_connected,
)
from heedful.apps.serve.file_store import FileStore
from heedful.apps.serve.service import Service
from heedful.apps.web import json_response
from heedful.errors import RunError

_WITH_QUESTIONS = ("csv", "tsv")
"""Formats that need the names of text columns, which LibreTranslate's requests cannot give."""

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
    leftOut: list[str] = Field(
        description="passages that stay as they were: line, text and reason of each"
    )


class DownloadBody(Body):
    """A request for a translated file."""


def supported_suffixes() -> list[str]:
    """Return the suffixes of files that are translated."""
    return [
        suffix
        for format in FORMATS.values()
        if format.name not in _WITH_QUESTIONS
        for suffix in format.suffixes
    ]


def translated_format(name: PurePath) -> str:
    """Return the format of a document by the suffix of its name.

    Raises:
        RefusedRequest, DataError: when documents of that suffix are not translated.
    """
    format = format_of(name)
    if format in _WITH_QUESTIONS:
        raise RefusedRequest(400, "Which columns are text is not known", "invalid", where="file")
    return format


def attachment(content: bytes, name: str) -> Response:
    """Return a translated document as a download, so that browsers run none of its scripts."""
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name)}",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
    return Response(content, headers=headers, media_type="application/octet-stream")


class FileTranslation:
    """The endpoints for files.

    Args:
        service: service of the server.
        files: store of translated files; None to translate no files.
        route: function that returns the names of the models from one language to another.
        detect: function that returns the language of a text, for a target.
        error: function that writes an error for clients.
    """

    def __init__(
        self,
        service: Service,
        files: FileStore | None,
        route: Callable[[str, str], tuple[str, ...]],
        detect: Callable[[str, str], Awaitable[str]],
        error: Callable[[RefusedRequest], Mapping[str, Any]],
    ) -> None:
        self.service = service
        self.files = files
        self.route = route
        self.detect = detect
        self.error = error

    def endpoints(self) -> list[Endpoint[Any]]:
        """Return the paths that are answered."""
        return [
            Endpoint(
                "/translate_file",
                "Translate a document, and say where it is then",
                TranslateFileBody,
                self.translate,
                self.error,
                result=TranslatedFile,
                body_type="multipart/form-data",
            ),
            Endpoint(
                "/download_file/{name}",
                "Fetch a translated document",
                DownloadBody,
                self.download,
                self.error,
                method="GET",
                is_open=True,
                media_type="application/octet-stream",
            ),
        ]

    async def translate(self, request: Request, body: TranslateFileBody) -> Response:
        """Answer `/translate_file`, however long it takes.

        LibreTranslate's clients wait for the address of a file, and know no jobs to ask for again.
        """
        if self.files is None:
            raise RefusedRequest(403, "This server does not translate files", "files")
        name = PurePath(body.file.filename or "document")
        format = translated_format(name)
        data = await body.file.read()
        source = body.source
        if source == "auto":
            text = await document_text(data, format, name.name)
            source = await self.detect(text, body.target)
        route = self.route(source, body.target)
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
            stored = await to_thread.run_sync(self.files.put, translated.data, name.suffix.lower())
        except OSError as error:
            raise RunError(f"The translated file cannot be stored: {error.strerror}") from None
        address = request.url_for("/download_file/{name}", name=stored)
        if host := request.headers.get("x-forwarded-host"):  # the name that the client knows
            address = address.replace(netloc=host)
        return json_response(
            {"translatedFileUrl": str(address), "leftOut": list(translated.left_out)}
        )

    async def download(self, request: Request, body: DownloadBody) -> Response:
        """Answer `/download_file/NAME`."""
        name = request.path_params["name"]
        content = None
        if self.files is not None:
            content = await to_thread.run_sync(self.files.get, name)
        if content is None:
            raise RefusedRequest(404, "There is no such file, or it has expired", "missing")
        return attachment(content, name)
