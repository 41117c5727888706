"""HTTP helpers of the model server and the studio: JSON, body limits, headers and raw answers.

The two report errors in different forms, so each writes its own error bodies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Message, Receive, Scope, Send

HUNG_UP = 499
"""Status for logs of a request whose client has disconnected, as in nginx."""

SAFETY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of every answer: no guessed media types, no frames, no referrer."""


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
        headers: further headers.
        ascii_only: True to escape all characters outside of ASCII. Escapes preserve a lone
            surrogate, which stands for a byte in a file name and would otherwise become a question
            mark.
    """
    text = json.dumps(content, ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"))
    # JSON can hold lone surrogates, which UTF-8 cannot encode.
    data = text.encode("utf-8", "replace")
    kept = {"cache-control": "no-store", **(headers or {})}
    return Response(data, status, headers=kept, media_type="application/json")


def json_object(body: bytes) -> dict[str, Any]:
    """Return the object that a body holds.

    Raises:
        ValueError: when the body is no object; the message completes "The body is …".
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


class BodyTooLarge(Exception):
    """The body of a request is larger than its limit."""


class CheckedExchange:
    """A request and its answer in an ASGI layer, which limits the body and records the status.

    Args:
        scope, receive, send: request and its channels.
        limit: maximum size of the body in bytes.
        added: headers to add to the answer.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        limit: int,
        added: Iterable[tuple[bytes, bytes]] = SAFETY_HEADERS,
    ) -> None:
        self.scope = scope
        self.limit = limit
        self.added = added
        # Of several headers with the same name, the last one counts.
        self.headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        self.status: int | None = None
        self.read = 0
        self._receive, self._send = receive, send

    def too_large(self) -> Exception:
        """Return the error of a body over the limit."""
        return BodyTooLarge()

    def check_length(self) -> None:
        """Raise `too_large` if the length in the headers is not a number or exceeds the limit."""
        length = self.headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length) > self.limit:
            raise self.too_large()

    async def receive(self) -> Message:
        """Return the next part of the body; raise `too_large` once the parts exceed the limit."""
        message = await self._receive()
        self.read += len(message.get("body", b""))
        if self.read > self.limit:
            raise self.too_large()
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer; its status is recorded, and headers are added."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self.added]
        await self._send(message)

    async def answer(
        self, status: int, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send a whole answer.

        Args:
            status: HTTP status.
            body: content of the answer.
            headers: headers in addition to the length.
        """
        own = [*headers, (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": own})
        await self.send({"type": "http.response.body", "body": body})
