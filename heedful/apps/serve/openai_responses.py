"""OpenAI's interface for responses, which its newer clients use in place of chats.

Fields and events are those of https://platform.openai.com/docs/api-reference (responses). Nothing
is stored, so a response cannot be asked for again or continued.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from heedful.apps.serve.exchange import Endpoint, refusal_of, while_connected
from heedful.apps.serve.openai_api import OpenAI, PromptAnswer, error_body, event_stream
from heedful.apps.serve.openai_requests import ResponseBody
from heedful.apps.web import json_response


class OpenAIResponses(OpenAI):
    """The endpoint `/v1/responses`."""

    def endpoints(self) -> list[Endpoint[Any]]:
        """Return the path that is answered."""
        endpoint = Endpoint(
            "/v1/responses",
            "Continue a text, or translate the last message",
            ResponseBody,
            self.respond,
            error_body,
        )
        return [replace(endpoint, no_key=401)]

    async def respond(self, request: Request, body: ResponseBody) -> Response:
        """Answer `/v1/responses`."""
        prompt = self._prompt(body)
        request.state.texts = 1
        read = await self.service.lengths(body.model, [prompt])
        reply = _Reply(body, read)
        if body.stream:
            pieces = self._pieces(body, prompt, read)
            # Checked before the status 200 is sent, since a refusal has another status.
            first = await while_connected(request, anext(pieces))
            return event_stream(self._response_events(first, pieces, reply))
        ((answer,),) = await while_connected(request, self._answers(body, [prompt], read))
        return json_response(reply.whole([answer]))

    async def _response_events(
        self, first: PromptAnswer, pieces: AsyncIterator[PromptAnswer], reply: _Reply
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events: beginnings, pieces of the text, ends."""
        written: list[PromptAnswer] = []
        place = {"item_id": reply.item, "output_index": 0, "content_index": 0}
        try:
            yield reply.event("response.created", response=reply.whole(None))
            yield reply.event("response.in_progress", response=reply.whole(None))
            item = reply.message(None)
            yield reply.event("response.output_item.added", output_index=0, item=item)
            yield reply.event("response.content_part.added", **place, part=_part(""))
            piece: PromptAnswer | None = first
            while piece is not None:
                written.append(piece)
                if piece.text:
                    delta = {"delta": piece.text, "logprobs": []}
                    yield reply.event("response.output_text.delta", **place, **delta)
                piece = await anext(pieces, None)
            text = "".join(each.text for each in written)
            yield reply.event("response.output_text.done", **place, text=text, logprobs=[])
            yield reply.event("response.content_part.done", **place, part=_part(text))
            item = reply.message(written)
            yield reply.event("response.output_item.done", output_index=0, item=item)
            whole = reply.whole(written)
            yield reply.event(f"response.{whole['status']}", response=whole)
        except Exception as error:  # the status is sent already, so the error is an event
            refusal = refusal_of(error)
            if refusal is None:
                raise
            words = {"code": refusal.reason, "message": refusal.message, "param": refusal.where}
            yield reply.event("error", **words)


class _Reply:
    """The response to a request.

    Args:
        body: request.
        read: number of tokens of its prompt.
    """

    def __init__(self, body: ResponseBody, read: Sequence[int]) -> None:
        self.body = body
        self.read = sum(read)
        self.id, self.item = (f"{prefix}_{uuid.uuid4().hex}" for prefix in ("resp", "msg"))
        self.created = int(time.time())
        self.events = 0

    def whole(self, written: Sequence[PromptAnswer] | None) -> dict[str, Any]:
        """Return the response; without pieces it is in progress."""
        body, status = self.body, _status(written)
        is_cut = status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "model": body.model,
            "output": [] if written is None else [self.message(written)],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None if written is None else self._usage(written),
        }

    def message(self, written: Sequence[PromptAnswer] | None) -> dict[str, Any]:
        """Return the message of the response; without pieces it is in progress."""
        text = "".join(each.text for each in written or ())
        content = [] if written is None else [_part(text)]
        own = {"id": self.item, "type": "message", "role": "assistant"}
        return own | {"status": _status(written), "content": content}

    def event(self, kind: str, **values: Any) -> bytes:
        """Return the next event of a stream."""
        data = json.dumps({"type": kind, "sequence_number": self.events, **values})
        self.events += 1
        return f"event: {kind}\ndata: {data}\n\n".encode()

    def _usage(self, written: Sequence[PromptAnswer]) -> dict[str, Any]:
        count = sum(len(each.tokens) for each in written)
        return {
            "input_tokens": self.read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": count,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.read + count,
        }


def _status(written: Sequence[PromptAnswer] | None) -> str:
    if written is None:
        return "in_progress"
    return "incomplete" if written[-1].is_cut else "completed"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
