"""OpenAI's interface for its clients: models, completions and chats.

A language model continues a prompt; a translator translates it, or the last message of a chat.
Fields are those of https://platform.openai.com/docs/api-reference (completions, chat).
"""

from __future__ import annotations

import asyncio
import json
import math
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from anyio import to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from heedful.apps.serve.exchange import (
    NoBody,
    RefusedRequest,
    answers,
    refusal_of,
    while_connected,
)
from heedful.apps.serve.function_calls import free_calls, required_call, settled
from heedful.apps.serve.openai_requests import ChatBody, CompletionBody, ResponseBody, Sampling
from heedful.apps.serve.server_parts import Interface, ServerParts
from heedful.apps.serve.translated_text import TranslatedText
from heedful.apps.web import json_response
from heedful.search.search_settings import GenerationSettings, SearchSettings
from heedful.text.chat_template import check_messages


@dataclass(frozen=True)
class PromptAnswer:
    """An answer to a prompt.

    Args:
        text: text of the answer.
        tokens: tokens of the answer, as in the vocabulary.
        token_scores: log-probability of each token, in nats.
        is_cut: true if the answer reached its maximum length.
        cached: tokens of the prompt that the prefix cache held.
    """

    text: str
    tokens: Sequence[str]
    token_scores: Sequence[float]
    is_cut: bool
    cached: int = 0

    @property
    def finish_reason(self) -> str:
        """The reason for the end of the answer, in OpenAI's words."""
        return "length" if self.is_cut else "stop"


class OpenAI(Interface):
    """The endpoints of models, completions and chats."""

    no_key = 401
    """HTTP status for a wrong key, which differs from that of LibreTranslate."""

    @staticmethod
    def error_body(refusal: RefusedRequest) -> Mapping[str, Any]:
        """Return an error in OpenAI's form."""
        kind = "invalid_request_error" if refusal.status < 500 else "server_error"
        code = "invalid_api_key" if refusal.reason == "key" else refusal.reason
        error = {"message": refusal.message, "type": kind, "param": refusal.where, "code": code}
        return {"error": error}

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self.created = int(time.time())

    @answers("/v1/models")
    async def models(self, request: Request, body: NoBody) -> Response:
        """List the models."""
        data = [self._model(name) for name in self.service.models.by_name]
        return json_response({"object": "list", "data": data})

    @answers("/v1/models/{name}")
    async def model(self, request: Request, body: NoBody) -> Response:
        """Describe a model."""
        return json_response(
            self._model(self.service.models.find(request.path_params["name"]).name)
        )

    @answers("/v1/completions", CompletionBody)
    async def complete(self, request: Request, body: CompletionBody) -> Response:
        """Continue prompts, or translate them."""
        return await self._reply(request, body, body.prompts, CompletionReply(body))

    @answers("/v1/chat/completions", ChatBody)
    async def chat(self, request: Request, body: ChatBody) -> Response:
        """Answer a chat: continue it, or translate its last message."""
        prompt = await self._prompt(body)
        reply = CallReply(body) if body.callable or body.offered else ChatReply(body)
        return await self._reply(request, body, [prompt], reply)

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self.created, "owned_by": "heedful"}

    async def _prompt(self, body: ChatBody | ResponseBody) -> str:
        """Return the text that a model reads for a chat, by its template if it has one."""
        if self.service.models.find(body.model).is_translator:
            return body.messages[-1].text
        pipeline = await self.service.generator(body.model)
        if pipeline.chat is None:
            return "\n".join(message.text for message in body.messages)
        messages = [{"role": each.role, "content": each.text} for each in body.messages]
        checked = check_messages(messages, "messages")
        whole = [{**text, **own.calls} for text, own in zip(checked, body.messages, strict=True)]
        tools = body.shown_tools if isinstance(body, ChatBody) else []
        # A template may take a while, as its bounds are wide.
        return await to_thread.run_sync(lambda: pipeline.chat_prompt(whole, tools))

    async def _answers(
        self, body: Sampling, prompts: Sequence[str], read: Sequence[int]
    ) -> list[list[PromptAnswer]]:
        """Return the requested number of answers to each prompt.

        Args:
            body: settings of the request.
            prompts: prompts.
            read: number of tokens of each prompt.
        """
        if self.service.models.find(body.model).is_translator:
            settings = self._search(body, read)
            texts = await self.service.translate(prompts, [body.model], settings=settings)
            return [[_translated(t, rank, body) for rank in range(body.samples)] for t in texts]
        settings = await self._generation(body, read)
        pipeline = await self.service.generator(body.model)
        generations = await self.service.generate(body.model, prompts, read, settings)
        return [
            [
                PromptAnswer(
                    each.text,
                    pipeline.tokenizer.pieces(each.tokens),
                    each.token_scores,
                    is_cut=each.ended == "length",
                    cached=best.cached,
                )
                for each in best.n_best
            ]
            for best in generations
        ]

    def _search(self, body: Sampling, read: Sequence[int]) -> SearchSettings:
        """Return the settings of a translation: beam search, or sampling above temperature 0."""
        if body.schema_text:
            raise RefusedRequest(
                400,
                "A translator writes plain text",
                "invalid",
                where="tools" if getattr(body, "callable", None) else "response_format",
            )
        settings = self.service.search_for(body.samples)
        changes: dict[str, Any] = {}
        if body.temperature:
            changes = {"sampling": True, "temperature": body.temperature, "alternatives": 0}
            changes |= {"top_p": body.top_p or 1.0, "seed": body.drawn_from}
        # Many clients send a large max_tokens; the usual limit by source length stays below it.
        usual = settings.longest(max(read, default=0))
        if body.most_tokens is not None and body.most_tokens < usual:
            changes["max_length"] = body.most_tokens
        return SearchSettings.parse(settings.plain() | changes, where="the request")

    async def _generation(self, body: Sampling, read: Sequence[int]) -> GenerationSettings:
        """Return the settings of continuations: sampling, as by default at OpenAI.

        Without a limit in the request, an answer has at most the usual number of tokens, or as many
        as the remaining positions of the model.
        """
        longest = body.most_tokens or body.usual_tokens
        positions = (await self.service.generator(body.model)).spec.embedding.positions
        if body.most_tokens is None and positions.max_length is not None:
            longest = max(1, min(longest, positions.max_length - max(read, default=0)))
        if longest > self.service.limits.tokens:
            raise RefusedRequest(
                400,
                f"At most {self.service.limits.tokens:,} tokens are allowed",
                "invalid",
                where="max_tokens",
            )
        values: dict[str, Any] = {"max_length": longest, "stop": body.stops}
        if body.schema_text:
            values["json_schema"] = body.schema_text
        temperature = 1.0 if body.temperature is None else body.temperature
        if temperature == 0 and body.samples == 1:
            return GenerationSettings.parse(values)
        drawn = {"sampling": True, "temperature": temperature, "n_best": body.samples}
        drawn |= {"top_p": body.top_p or 1.0, "seed": body.drawn_from}
        return GenerationSettings.parse(values | drawn)

    async def _reply(
        self, request: Request, body: Sampling, prompts: Sequence[str], reply: CompletionReply
    ) -> Response:
        """Answer prompts at once, or a single prompt by server-sent events."""
        request.state.texts = len(prompts)
        read = await self.service.lengths(body.model, prompts)
        reply.count(read)
        if not body.stream:
            answers = await while_connected(request, self._answers(body, prompts, read))
            return json_response(reply.whole(answers))
        pieces = self._pieces(body, prompts[0], read)
        # Checked before the status 200 is sent, since a refusal has another status.
        first = await while_connected(request, anext(pieces))
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        events = _events(first, pieces, reply)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def _pieces(
        self, body: Sampling, prompt: str, read: Sequence[int]
    ) -> AsyncIterator[PromptAnswer]:
        """Yield chunks of an answer as they become final, and at the end its tokens.

        A translation is one chunk, since a beam search may change every word until its end.
        """
        if self.service.models.find(body.model).is_translator:
            for answer in (await self._answers(body, [prompt], read))[0]:
                yield answer
            return
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        is_read = True

        def emit(piece: str) -> None:
            if not is_read:
                raise ClientDisconnect
            loop.call_soon_threadsafe(queue.put_nowait, piece)

        settings = await self._generation(body, read)
        work = asyncio.ensure_future(
            self.service.stream(body.model, prompt, read[0], settings, emit)
        )
        work.add_done_callback(lambda done: queue.put_nowait(None))
        try:
            while (piece := await queue.get()) is not None:
                yield PromptAnswer(piece, (), (), is_cut=False)
            stream = await work
            pipeline = await self.service.generator(body.model)
            tokens = pipeline.tokenizer.pieces(stream.tokens)
            is_cut = stream.ended == "length"
            yield PromptAnswer("", tokens, (), is_cut, stream.cached)
        finally:
            is_read = False
            work.cancel()


class CompletionReply:
    """A completion as one object or as a stream of events; subclasses write other objects.

    Args:
        body: request.
    """

    kind = chunk = "text_completion"
    prefix = "cmpl"

    def __init__(self, body: Any) -> None:
        self.body = body
        id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.head = {"id": id, "created": int(time.time()), "model": body.model}

    def count(self, read: Sequence[int]) -> None:
        """Record the number of tokens of each prompt."""
        self.read = sum(read)

    def whole(self, answers: Sequence[Sequence[PromptAnswer]]) -> dict[str, Any]:
        """Return all answers to all prompts in one numbered list."""
        flat = [(place, answer) for place, several in enumerate(answers) for answer in several]
        choices = [
            {"index": i, **self.choice(place, answer), "finish_reason": answer.finish_reason}
            for i, (place, answer) in enumerate(flat)
        ]
        # All answers to a prompt share what was known of it.
        cached = sum(several[-1].cached for several in answers)
        usage = self._usage([answer for _, answer in flat], cached)
        return {**self.head, "object": self.kind, "choices": choices, "usage": usage}

    def choice(self, place: int, answer: PromptAnswer) -> dict[str, Any]:
        """Return an answer to the prompt at a place of the request."""
        text = self.body.prompts[place] + answer.text if self.body.echo else answer.text
        return {"text": text, "logprobs": self.log_probs(answer)}

    def log_probs(self, answer: PromptAnswer) -> dict[str, Any] | None:
        """Return the log-probabilities of the tokens; None if the request wants none."""
        if self.body.logprobs is None:
            return None
        return {
            "tokens": list(answer.tokens),
            "token_logprobs": list(answer.token_scores),
            "top_logprobs": None,
            "text_offset": None,
        }

    def words(self, text: str | None) -> dict[str, Any]:
        """Return the fields of an event with a chunk of text; None stands for the last event."""
        return {"text": text or ""}

    def begin(self) -> Iterator[bytes]:
        """Yield an event without text."""
        yield self._part(self.words(""))

    def piece(self, text: str) -> bytes:
        """Return an event with a piece of text."""
        return self._part(self.words(text))

    def end(self, written: Sequence[PromptAnswer]) -> Iterator[bytes]:
        """Yield the finish reason, the usage if requested, and the end mark."""
        yield from self._last(written, written[-1].finish_reason)

    def _last(self, written: Sequence[PromptAnswer], reason: str) -> Iterator[bytes]:
        yield self._part(self.words(None), reason)
        if self.body.wants_usage:
            usage = {"choices": [], "usage": self._usage(written, written[-1].cached)}
            yield _event({**self.head, "object": self.chunk, **usage})
        yield _DONE

    def failed(self, refusal: RefusedRequest) -> bytes:
        """Return an error and the end mark."""
        return _event(OpenAI.error_body(refusal)) + _DONE

    def _part(self, words: Mapping[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, **words, "logprobs": None, "finish_reason": reason}
        return _event({**self.head, "object": self.chunk, "choices": [choice]})

    def _usage(self, answers: Sequence[PromptAnswer], cached: int) -> dict[str, Any]:
        written = sum(len(answer.tokens) for answer in answers)
        return {
            "prompt_tokens": self.read,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens": written,
            "total_tokens": self.read + written,
        }


class ChatReply(CompletionReply):
    """The answer of a chat."""

    kind = "chat.completion"
    chunk = "chat.completion.chunk"
    prefix = "chatcmpl"

    def choice(self, place: int, answer: PromptAnswer) -> dict[str, Any]:
        """Return an answer as a message."""
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        return {"message": message, "logprobs": self.log_probs(answer)}

    def log_probs(self, answer: PromptAnswer) -> dict[str, Any] | None:
        """Return the log-probabilities of the tokens; None if the request wants none."""
        if not self.body.logprobs:
            return None
        content = [
            {"token": token, "logprob": score, "bytes": list(token.encode()), "top_logprobs": []}
            for token, score in zip(answer.tokens, answer.token_scores, strict=True)
        ]
        return {"content": content, "refusal": None}

    def words(self, text: str | None) -> dict[str, Any]:
        """Return the change of the message; its role comes before the text."""
        role = {"role": "assistant"} if text == "" else {}
        return {"delta": {} if text is None else role | {"content": text}}


class CallReply(ChatReply):
    """The answer of a chat that has to be, or may be, a call of functions.

    Args:
        body: request.
    """

    def __init__(self, body: ChatBody) -> None:
        super().__init__(body)
        self.required = [each.name for each in body.callable]
        self.names = self.required or [each.name for each in body.offered]
        self.held, self.begun = "", False

    def whole(self, answers: Sequence[Sequence[PromptAnswer]]) -> dict[str, Any]:
        """Return all answers; see `CompletionReply.whole`."""
        whole = super().whole(answers)
        for choice in whole["choices"]:
            if choice["message"].get("tool_calls") and choice["finish_reason"] == "stop":
                choice["finish_reason"] = "tool_calls"
        return whole

    def choice(self, place: int, answer: PromptAnswer) -> dict[str, Any]:
        """Return an answer as a message with its calls."""
        message = {"role": "assistant", "refusal": None, **self._called(answer.text)}
        return {"message": message, "logprobs": self.log_probs(answer)}

    def piece(self, text: str) -> bytes:
        """Return an event with the text that can be no part of a call, or nothing."""
        self.held += text
        end = 0 if self.required else settled(self.held, begun=self.begun)
        sent, self.held = self.held[:end], self.held[end:]
        self.begun = self.begun or bool(sent)
        return super().piece(sent) if sent else b""

    def end(self, written: Sequence[PromptAnswer]) -> Iterator[bytes]:
        """Yield the calls, the finish reason, the usage if requested, and the end mark."""
        called = self._called(self.held)
        for index, call in enumerate(called.get("tool_calls", ())):
            call["index"] = index
        if called["content"] or "tool_calls" in called:
            yield self._part({"delta": called})
        is_call = "tool_calls" in called and not written[-1].is_cut
        yield from self._last(written, "tool_calls" if is_call else written[-1].finish_reason)

    def _called(self, text: str) -> dict[str, Any]:
        """Return the fields of a message: its text, and its calls if it has any."""
        if self.required:
            call = required_call(text, self.names)
            rest, calls = ("", [call]) if call else (text, [])
        else:
            rest, calls = free_calls(text, self.names)
        if not calls:
            return {"content": text}
        described = [
            {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": call._asdict()}
            for call in calls
        ]
        return {"content": rest or None, "tool_calls": described}


async def _events(
    first: PromptAnswer, pieces: AsyncIterator[PromptAnswer], reply: CompletionReply
) -> AsyncIterator[bytes]:
    """Yield the events of a stream."""
    written: list[PromptAnswer] = []
    try:
        for event in reply.begin():
            yield event
        piece: PromptAnswer | None = first
        while piece is not None:
            written.append(piece)
            if piece.text:
                yield reply.piece(piece.text)
            piece = await anext(pieces, None)
        for event in reply.end(written):
            yield event
    except Exception as error:  # the status is sent already, so the error is an event
        refusal = refusal_of(error)
        if refusal is None:
            raise
        yield reply.failed(refusal)


_DONE = b"data: [DONE]\n\n"


def _event(content: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode("utf-8", "replace")


def _translated(text: TranslatedText, rank: int, body: Sampling) -> PromptAnswer:
    ranked = text.ranked(rank)
    most = math.inf if body.most_tokens is None else body.most_tokens
    counts = accumulate(len(line.tokens) for line in ranked)
    lines = [line for line, tokens in zip(ranked, counts, strict=True) if tokens <= most]
    whole = text.join(lines)
    if 0 < len(lines) < len(ranked):  # the break after the last line belongs to the lines left out
        whole = whole.removesuffix(text.sources[len(lines) - 1].after)
    ends = [place for stop in body.stops if (place := whole.find(stop)) >= 0]
    return PromptAnswer(
        whole[: min(ends, default=len(whole))],
        [piece for line in lines for piece in line.tokens],
        [score for line in lines for score in line.token_scores[: len(line.tokens)]],
        is_cut=not ends and (len(lines) < len(ranked) or not all(line.finished for line in lines)),
    )
