"""Checked values of requests, and their responses or errors, for all HTTP interfaces.

Each endpoint has a pydantic model of a request's values, which ignores unknown values that clients
of other servers send, and a function that writes an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pydantic
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from heedful.apps.serve.scheduler import DeadlinePassed, QueueFull
from heedful.apps.web import HUNG_UP, json_object, json_response, media_type
from heedful.config import validation_error
from heedful.errors import ModelError, RunError, UserError

MOST_FORM_FIELDS = 1000

TOO_OFTEN = "rate"
"""Reason code for a request beyond the allowance of its client."""


class Body(pydantic.BaseModel):
    """Base of the values of a request."""

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class NoBody(Body):
    """A request without values."""


B = TypeVar("B", bound=Body)
Result = TypeVar("Result")


class RefusedRequest(Exception):
    """An error with an HTTP status: the request is refused.

    Args:
        status: HTTP status.
        message: sentence for the client.
        reason: code of the error, for metrics and clients.
        retry_after: seconds after which the client may try again.
        where: name of the invalid value.
        details: further fields of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        reason: str,
        *,
        retry_after: int | None = None,
        where: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.retry_after = retry_after
        self.where = where
        self.details = details or {}

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer; after a body that was not read, the connection closes."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return headers | ({"connection": "close"} if self.status in (408, 413) else {})


class MissingValue(RefusedRequest):
    """A refusal of a request without a value that it needs."""


def refusal_of(error: Exception) -> RefusedRequest | None:
    """Return an error as a refused request; None for a bug of Heedful."""
    if isinstance(error, RefusedRequest):
        return error
    if isinstance(error, QueueFull):
        return RefusedRequest(
            429,
            "The queue of the server is full",
            "queue_full",
            retry_after=error.retry_after,
        )
    if isinstance(error, DeadlinePassed):
        return RefusedRequest(503, "The request exceeded the time limit", "deadline", retry_after=5)
    if isinstance(error, RunError):
        return RefusedRequest(503, str(error), "failed", retry_after=5)
    if isinstance(error, UserError):
        is_missing = isinstance(error, ModelError) and error.where == "model"
        return RefusedRequest(404 if is_missing else 400, str(error), "invalid", where=error.where)
    if isinstance(error, HTTPException):
        return RefusedRequest(error.status_code, error.detail, "http")
    return None


ErrorBody = Callable[[RefusedRequest], Mapping[str, Any]]


@dataclass(frozen=True)
class Endpoint(Generic[B]):
    """A path of an interface, and the function that answers it.

    Args:
        path: path of the address.
        summary: sentence for the OpenAPI description.
        body: model of a request's values.
        answer: function that returns the response.
        error: function that writes an error for clients.
        method: HTTP method.
        result: model of the response's values, for the description.
        is_open: true if no key is needed.
        media_type: media type of the answer.
        body_type: media type of a request, for the description.
        no_key: HTTP status for a missing or unknown key.
    """

    path: str
    summary: str
    body: type[B]
    answer: Callable[[Request, B], Awaitable[Response]]
    error: ErrorBody
    method: str
    result: type[pydantic.BaseModel] | None = None
    is_open: bool = False
    media_type: str = "application/json"
    body_type: str = "application/json"
    no_key: int = 403


AnswerMethod = TypeVar("AnswerMethod", bound=Callable[..., Awaitable[Response]])


def answers(
    path: str, body: type[Body] = NoBody, method: str | None = None, **options: Any
) -> Callable[[AnswerMethod], AnswerMethod]:
    """Mark a method of an interface as the answer to the requests of a path.

    The first line of its docstring is the summary in the OpenAPI description.

    Args:
        path: path of the address.
        body: model of a request's values.
        method: HTTP method; if unset, GET for requests without values and POST for all others.
        options: further fields of the `Endpoint`.
    """
    method = method or ("GET" if body is NoBody else "POST")

    def mark(answer: AnswerMethod) -> AnswerMethod:
        summary = (answer.__doc__ or "").partition("\n")[0].rstrip(".")
        fields = {"path": path, "summary": summary, "body": body, "method": method, **options}
        # Decorators are applied from the last line to the first.
        vars(answer).setdefault("endpoints", []).insert(0, fields)
        return answer

    return mark


Admit = Callable[[Request, Mapping[str, Any], int], None]
"""Function that checks a request with its values; for a missing key it raises an error with a given
status."""


async def respond(endpoint: Endpoint[Any], request: Request, *, admit: Admit) -> Response:
    """Read, check and answer a request.

    Args:
        endpoint: endpoint of the request's path.
        request: request to answer.
        admit: check of its client, for endpoints that are not open.

    Returns:
        The response, or an error in the endpoint's form.
    """
    try:
        values = await read_values(request)
        if not endpoint.is_open:
            admit(request, values, endpoint.no_key)
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
        await request.close()  # closes uploaded files


async def read_values(request: Request) -> dict[str, Any]:
    """Return the values of a request, from its query, form and JSON object.

    Raises:
        RefusedRequest: when the body is neither a JSON object nor a form.
    """
    values = _by_name(request.query_params.multi_items())
    if request.method != "POST":
        return values
    if media_type(request) in ("application/x-www-form-urlencoded", "multipart/form-data"):
        try:
            form = await request.form(max_fields=MOST_FORM_FIELDS)
        except HTTPException as error:
            raise RefusedRequest(
                400, f"The form cannot be read: {error.detail}", "invalid"
            ) from None
        return values | _by_name(form.multi_items())
    body = await request.body()
    if not body.strip():
        return values
    try:
        return values | json_object(body)
    except ValueError as error:
        raise RefusedRequest(400, f"The body of the request is {error}", "invalid") from None


def _by_name(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values of a form by name; several values of one name become a list."""
    lists: dict[str, list[Any]] = {}
    for name, value in items:
        lists.setdefault(name, []).append(value)
    return {name: each if len(each) > 1 else each[0] for name, each in lists.items()}


def parse(body: type[B], values: Mapping[str, Any]) -> B:
    """Validate the values of a request.

    Raises:
        RefusedRequest: naming the invalid values.
    """
    try:
        return body.model_validate(values)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        what = validation_error(body, error, None).what
        kind = MissingValue if first["type"] == "missing" else RefusedRequest
        raise kind(400, what, "invalid", where=place or None) from None
    except RecursionError:
        raise RefusedRequest(400, "The values are nested too deeply", "invalid") from None


async def while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """Await work, and cancel it if the client disconnects.

    Args:
        request: request whose body has been read.
        work: awaitable that computes the result.

    Raises:
        ClientDisconnect: when the client has disconnected.
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
