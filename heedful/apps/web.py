"""HTTP for the server of models and the studio: JSON, sizes of bodies, headers, raw answers.

The two have different forms of errors, so each of them writes its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope, Send

HUNG_UP = 499
"""Status of a request whose client has gone: nginx's, for logs; nobody reads the answer."""

SAFETY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of every answer: no guessed media types, no frames, no address passed on elsewhere."""


def json_response(
    content: Any,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    ascii_only: bool = False,
) -> Response:
    """Return JSON data as a response that no cache keeps.

    Args:
        content: JSON data without NaN and infinity.
        status: HTTP status.
        headers: headers besides those of the type and the cache.
        ascii_only: escapes for all other characters. They keep a lone surrogate, which stands for
            a byte in the name of a file; without escapes it becomes a question mark.
    """
    text = json.dumps(content, ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"))
    # Halves of surrogate pairs, which JSON can hold, have no UTF-8.
    data = text.encode("utf-8", "replace")
    kept = {"cache-control": "no-store", **(headers or {})}
    return Response(data, status, headers=kept, media_type="application/json")


def json_object(body: bytes) -> dict[str, Any]:
    """Return the object that a body holds.

    Raises:
        ValueError: when it holds none; the message completes "The body is …".
    """
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("no JSON") from None
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    return values


def media_type(request: Request) -> str:
    """Return the media type of a request's body in lower case, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def headers_of(scope: Scope) -> dict[bytes, str]:
    """Return the headers of a request; of several with one name, the last."""
    return {name: value.decode("latin-1") for name, value in scope["headers"]}


def is_too_long(headers: Mapping[bytes, str], limit: int) -> bool:
    """Return True if the length that a request gives is no number, or above a limit in bytes."""
    length = headers.get(b"content-length", "0")
    return not length.isdecimal() or int(length) > limit


async def send_answer(
    send: Send, status: int, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a whole answer from a layer that has no response object.

    Args:
        send: channel of the request.
        status: HTTP status.
        body: content of the answer.
        headers: headers besides the length.
    """
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
