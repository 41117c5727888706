"""Calls over HTTP: JSON in, JSON out, errors as what, where and remedy."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from heedful.errors import RunError, UserError

if TYPE_CHECKING:
    from heedful.studio.page import Call
    from heedful.studio.workspace import Workspace

AT_ONCE = 2
"""Calls that are worked on at a time; torch spreads each over the processor itself."""

_GONE = 499
"""A status nobody reads: whoever asked has hung up."""


def json_response(content: Mapping[str, Any], status: int = 200) -> Response:
    """JSON data as a response."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    headers = {"cache-control": "no-store"}
    return Response(text, status, headers=headers, media_type="application/json")


def error_response(error: UserError, status: int | None = None) -> Response:
    """An error that a person can mend."""
    if status is None:
        status = 500 if isinstance(error, RunError) else 400
    content = {"what": error.what, "where": error.where, "remedy": error.remedy}
    return json_response(content, status)


def answering(
    call: Call, workspace: Workspace, turn: anyio.Semaphore
) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of a call.

    Args:
        call: what is asked and how it is answered.
        workspace: what it may look at.
        turn: what calls wait for, from `new_turn`.
    """

    async def endpoint(request: Request) -> Response:
        try:
            asked = call.asks.parse(await _body(request), where="the page's request")
            async with turn:
                # A slider that moves on hangs up on what it asked before.
                if await request.is_disconnected():
                    return Response(status_code=_GONE)
                found = await to_thread.run_sync(partial(call.answer, asked, workspace))
            return json_response(found)
        except UserError as error:
            return error_response(error)

    return endpoint


def new_turn() -> anyio.Semaphore:
    """What calls wait for."""
    return anyio.Semaphore(AT_ONCE)


async def broken(request: Request, error: Exception) -> Response:
    """Say that something of ours failed; the traceback is for the terminal."""
    traceback.print_exception(error, file=sys.stderr)
    return error_response(
        RunError(
            f"The studio failed in a way it should not: {type(error).__name__}: {error}",
            where=request.url.path,
            remedy="Please report it, with what the terminal shows",
        )
    )


async def missing(request: Request, error: Exception) -> Response:
    """Say that there is nothing at an address, or not for this method."""
    return error_response(
        UserError(
            "There is nothing here", where=request.url.path[:200], remedy="Go back to the start: /"
        ),
        getattr(error, "status_code", 404),
    )


async def _body(request: Request) -> Mapping[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":  # what a form of another site cannot send
        raise UserError("The request is no JSON", where=f"Content-Type: {kind[:80]}")
    try:
        values = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise UserError("The request is no JSON", where="the request's body") from None
    if not isinstance(values, dict):
        raise UserError("The request is no JSON object", where="the request's body")
    return values
