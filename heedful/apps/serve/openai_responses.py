"""OpenAI's interface for responses, which its newer clients use in place of chats.

Fields and events are those of https://platform.openai.com/docs/api-reference (responses). Nothing
is stored, so a response cannot be retrieved or continued later.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from heedful.apps.serve.exchange import RefusedRequest, answers
from heedful.apps.serve.openai_api import CompletionReply, OpenAI, PromptAnswer
from heedful.apps.serve.openai_requests import ResponseBody


class OpenAIResponses(OpenAI):
    """The endpoint `/v1/responses`."""

    @answers("/v1/responses", ResponseBody)
    async def respond(self, request: Request, body: ResponseBody) -> Response:
        """Continue a text, or translate the last message."""
        return await self._reply(request, body, [await self._prompt(body)], ResponseReply(body))


class ResponseReply(CompletionReply):
    """The response to a request."""

    def __init__(self, body: ResponseBody) -> None:
        super().__init__(body)
        self.id, self.item = (f"{prefix}_{uuid.uuid4().hex}" for prefix in ("resp", "msg"))
        self.events = 0
        self.place = {"item_id": self.item, "output_index": 0, "content_index": 0}

    def whole(self, answers: Sequence[Sequence[PromptAnswer]]) -> dict[str, Any]:
        """Return the response with its one answer."""
        return self.response(answers[0])

    def begin(self) -> Iterator[bytes]:
        """Yield the events that begin response, message and text."""
        yield self._event("response.created", response=self.response(None))
        yield self._event("response.in_progress", response=self.response(None))
        item = self.message(None)
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **self.place, part=_part(""))

    def piece(self, text: str) -> bytes:
        """Return an event with a piece of text."""
        return self._event("response.output_text.delta", **self.place, delta=text, logprobs=[])

    def end(self, written: Sequence[PromptAnswer]) -> Iterator[bytes]:
        """Yield the events that end text, message and response."""
        text = "".join(each.text for each in written)
        yield self._event("response.output_text.done", **self.place, text=text, logprobs=[])
        yield self._event("response.content_part.done", **self.place, part=_part(text))
        item = self.message(written)
        yield self._event("response.output_item.done", output_index=0, item=item)
        whole = self.response(written)
        yield self._event(f"response.{whole['status']}", response=whole)

    def failed(self, refusal: RefusedRequest) -> bytes:
        """Return the error as an event."""
        words = {"code": refusal.reason, "message": refusal.message, "param": refusal.where}
        return self._event("error", **words)

    def response(self, written: Sequence[PromptAnswer] | None) -> dict[str, Any]:
        """Return the response; with None for its answer it is in progress."""
        body, status = self.body, _status(written)
        is_cut = status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.head["created"],
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
            "text": {"format": _format(body)},
            "tool_choice": "none",
            "tools": [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None if written is None else self._token_counts(written),
        }

    def message(self, written: Sequence[PromptAnswer] | None) -> dict[str, Any]:
        """Return the message of the response; with None for its answer it is in progress."""
        text = "".join(each.text for each in written or ())
        content = [] if written is None else [_part(text)]
        own = {"id": self.item, "type": "message", "role": "assistant"}
        return own | {"status": _status(written), "content": content}

    def _event(self, kind: str, **values: Any) -> bytes:
        data = json.dumps({"type": kind, "sequence_number": self.events, **values})
        self.events += 1
        return f"event: {kind}\ndata: {data}\n\n".encode()

    def _token_counts(self, written: Sequence[PromptAnswer]) -> dict[str, Any]:
        count = sum(len(each.tokens) for each in written)
        return {
            "input_tokens": self.read,
            "input_tokens_details": {"cached_tokens": written[-1].cached},
            "output_tokens": count,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.read + count,
        }


def _format(body: ResponseBody) -> dict[str, Any]:
    """Return the format of the text as the request has it."""
    if body.text is None or body.text.format is None:
        return {"type": "text"}
    return body.text.format.model_dump(by_alias=True, exclude_none=True)


def _status(written: Sequence[PromptAnswer] | None) -> str:
    if written is None:
        return "in_progress"
    return "incomplete" if written[-1].is_cut else "completed"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
