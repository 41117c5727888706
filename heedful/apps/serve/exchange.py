"""Requests read into checked values, and answers written: shared by all interfaces over HTTP.

An interface is a list of endpoints. Each says which values a request has, as a pydantic model that
takes no notice of values it does not know (clients of other servers send them), and how an error
looks to its clients.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pydantic
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from heedful.apps.serve.scheduler import DeadlinePassed, QueueFull
from heedful.config import validation_error
from heedful.errors import ModelError, RunError, UserError

if TYPE_CHECKING:
    from heedful.apps.serve.keys import Keys

HUNG_UP = 499
"""The status in logs of a request whose client has gone."""

MOST_FORM_FIELDS = 1000


class Body(pydantic.BaseModel):
    """Base of the values of a request."""

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


B = TypeVar("B", bound=Body)
Result = TypeVar("Result")


class RefusedRequest(Exception):
    """A request that is not carried out.

    Args:
        status: of HTTP.
        message: a sentence for the client.
        reason: a word for metrics and for clients that read errors by their code.
        retry_after: seconds after which it may be asked again.
        where: the value at fault.
    """

    def __init__(
        self,
        status: int,
        message: str,
        reason: str,
        *,
        retry_after: int | None = None,
        where: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.retry_after = retry_after
        self.where = where

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer. A body that was not read to its end ends the connection."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return headers | ({"connection": "close"} if self.status in (408, 413) else {})


def refusal_of(error: Exception) -> RefusedRequest | None:
    """Return an error as clients see it; None for a defect of ours."""
    if isinstance(error, RefusedRequest):
        return error
    if isinstance(error, QueueFull):
        return RefusedRequest(
            429,
            "The server has as much to do as it can take",
            "queue_full",
            retry_after=error.retry_after,
        )
    if isinstance(error, DeadlinePassed):
        return RefusedRequest(503, "The request waited too long", "deadline", retry_after=5)
    if isinstance(error, RunError):
        return RefusedRequest(503, str(error), "failed", retry_after=5)
    if isinstance(error, UserError):
        is_missing = isinstance(error, ModelError) and error.where == "model"
        return RefusedRequest(404 if is_missing else 400, str(error), "invalid", where=error.where)
    if isinstance(error, HTTPException):
        return RefusedRequest(error.status_code, error.detail, "http")
    return None


Handler = Callable[[Request, Any], Awaitable[Response]]
ErrorBody = Callable[[RefusedRequest], Mapping[str, Any]]


@dataclass(frozen=True)
class Endpoint(Generic[B]):
    """A path that is answered.

    Args:
        path: of the address.
        summary: a sentence for the description of the interface.
        body: the values of a request.
        answer: returns the response.
        error: how an error looks.
        method: of HTTP.
        result: the response's values, for the description.
        is_open: answered without a key.
        media_type: of the answer.
        body_type: media type of a request, for the description.
        no_key: status of a request without a key that is known.
    """

    path: str
    summary: str
    body: type[B]
    answer: Callable[[Request, B], Awaitable[Response]]
    error: ErrorBody
    method: str = "POST"
    result: type[pydantic.BaseModel] | None = None
    is_open: bool = False
    media_type: str = "application/json"
    body_type: str = "application/json"
    no_key: int = 403


async def respond(endpoint: Endpoint[Any], request: Request, keys: Keys | None) -> Response:
    """Read, check and answer a request.

    Args:
        endpoint: that it reached.
        request: as it came.
        keys: those that may ask; anybody if None.

    Returns:
        The response, or an error in the form of the endpoint.
    """
    try:
        values = await read_values(request)
        if keys is not None and not endpoint.is_open:
            owner = keys.owner(given_key(request, values))
            if owner is None:
                raise RefusedRequest(
                    endpoint.no_key, "This server needs an API key that it knows", "key"
                )
            request.state.owner = owner
        return await endpoint.answer(request, parse(endpoint.body, values))
    except ClientDisconnect:
        return Response(status_code=HUNG_UP)
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        request.state.refusal = refusal.reason
        return json_response(endpoint.error(refusal), refusal.status, refusal.headers)
    finally:
        await request.close()  # files of its form


async def read_values(request: Request) -> dict[str, Any]:
    """Return the values of a request: of its address, its form or its JSON object.

    Raises:
        Refusal: when the body is no JSON object or form.
    """
    values: dict[str, Any] = dict(request.query_params)
    if request.method != "POST":
        return values
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        try:
            form = await request.form(max_fields=MOST_FORM_FIELDS)
        except HTTPException as error:
            raise RefusedRequest(
                400, f"The form cannot be read: {error.detail}", "invalid"
            ) from None
        return values | dict(form)
    body = await request.body()
    if not body.strip():
        return values
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedRequest(400, "The body of the request is no JSON", "invalid") from None
    if not isinstance(parsed, dict):
        raise RefusedRequest(400, "The body of the request is no JSON object", "invalid")
    return values | parsed


def given_key(request: Request, values: Mapping[str, Any]) -> str | None:
    """Return the key of a request: of its Authorization, its X-API-Key or its `api_key`."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return bearer.strip()
    key = request.headers.get("x-api-key") or values.get("api_key")
    return key if isinstance(key, str) else None


def parse(body: type[B], values: Mapping[str, Any]) -> B:
    """Return the values of a request, checked.

    Raises:
        Refusal: naming the values at fault.
    """
    try:
        return body.model_validate(values)
    except pydantic.ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        what = validation_error(body, error, None).what
        raise RefusedRequest(400, what, "invalid", where=place or None) from None
    except RecursionError:
        raise RefusedRequest(400, "The values are nested too deeply", "invalid") from None


async def while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """Await work, and cancel it when the client has gone.

    Args:
        request: whose body has been read.
        work: to do.

    Raises:
        ClientDisconnect: when the client has gone.
    """

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(gone())
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watch.cancel()


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return JSON data as a response."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Halves of surrogate pairs, which JSON can hold, have no UTF-8.
    data = text.encode("utf-8", "replace")
    kept = {"cache-control": "no-store", **(headers or {})}
    return Response(data, status, headers=kept, media_type="application/json")
