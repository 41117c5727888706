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
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from heedful.apps.serve.exchange import (
    Endpoint,
    RefusedRequest,
    refusal_of,
    while_connected,
)
from heedful.apps.serve.libretranslate import NoBody
from heedful.apps.serve.openai_requests import ChatBody, CompletionBody, ResponseBody, Sampling
from heedful.apps.serve.service import Service
from heedful.apps.serve.translated_text import TranslatedText
from heedful.apps.web import json_response
from heedful.pipelines.text_generation import Generation
from heedful.pipelines.text_splitting import Translation
from heedful.search.search_settings import GenerationSettings, SearchSettings


@dataclass(frozen=True)
class PromptAnswer:
    """An answer to a prompt.

    Args:
        text: text of the answer.
        tokens: its tokens, as in the vocabulary.
        token_scores: log-probability of each token, in nats.
        is_cut: true if the answer reached its maximum length.
    """

    text: str
    tokens: Sequence[str]
    token_scores: Sequence[float]
    is_cut: bool

    @property
    def finish_reason(self) -> str:
        """The reason for the end of the answer, in OpenAI's words."""
        return "length" if self.is_cut else "stop"


def error_body(refusal: RefusedRequest) -> Mapping[str, Any]:
    """Return an error in OpenAI's form."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    code = "invalid_api_key" if refusal.reason == "key" else refusal.reason
    return {
        "error": {"message": refusal.message, "type": kind, "param": refusal.where, "code": code}
    }


class OpenAI:
    """The endpoints of a service.

    Args:
        service: service of the server.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.created = int(time.time())

    def endpoints(self) -> list[Endpoint[Any]]:
        """Return the paths of OpenAI that are answered here.

        OpenAI's clients expect another status for a wrong key than LibreTranslate's.
        """
        endpoints: list[Endpoint[Any]] = [
            Endpoint(
                "/v1/models", "List the models", NoBody, self.models, error_body, method="GET"
            ),
            Endpoint(
                "/v1/models/{name}",
                "Describe a model",
                NoBody,
                self.model,
                error_body,
                method="GET",
            ),
            Endpoint(
                "/v1/completions",
                "Continue prompts, or translate them",
                CompletionBody,
                self.complete,
                error_body,
            ),
            Endpoint(
                "/v1/chat/completions",
                "Answer a chat: continue it, or translate its last message",
                ChatBody,
                self.chat,
                error_body,
            ),
        ]
        return [replace(endpoint, no_key=401) for endpoint in endpoints]

    async def models(self, request: Request, body: NoBody) -> Response:
        """Answer `/v1/models`."""
        data = [self._model(name) for name in self.service.models.by_name]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request, body: NoBody) -> Response:
        """Answer `/v1/models/{name}`."""
        return json_response(
            self._model(self.service.models.find(request.path_params["name"]).name)
        )

    async def complete(self, request: Request, body: CompletionBody) -> Response:
        """Answer `/v1/completions`."""
        reply = _Reply("text_completion", "cmpl", body.model)
        request.state.texts = len(body.prompts)
        if body.stream:
            return await self._stream(request, body, body.prompts[0], reply)
        read = await self.service.lengths(body.model, body.prompts)
        answers = await while_connected(request, self._answers(body, body.prompts, read))
        choices: list[dict[str, Any]] = []
        for prompt, several in zip(body.prompts, answers, strict=True):
            before = prompt if body.echo else ""
            for answer in several:
                choice = {"index": len(choices), "text": before + answer.text}
                choice["logprobs"] = None if body.logprobs is None else _log_probs(answer)
                choices.append(choice | {"finish_reason": answer.finish_reason})
        return json_response(reply.whole(choices, _usage(read, answers)))

    async def chat(self, request: Request, body: ChatBody) -> Response:
        """Answer `/v1/chat/completions`."""
        reply = _Reply("chat.completion", "chatcmpl", body.model)
        prompt = self._prompt(body)
        request.state.texts = 1
        if body.stream:
            return await self._stream(request, body, prompt, reply)
        read = await self.service.lengths(body.model, [prompt])
        answers = await while_connected(request, self._answers(body, [prompt], read))
        choices = [
            {
                "index": number,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": _chat_log_probs(answer) if body.logprobs else None,
                "finish_reason": answer.finish_reason,
            }
            for number, answer in enumerate(answers[0])
        ]
        return json_response(reply.whole(choices, _usage(read, answers)))

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self.created, "owned_by": "heedful"}

    def _prompt(self, body: ChatBody | ResponseBody) -> str:
        """Return the text that a model reads for a chat."""
        if self.service.models.find(body.model).is_translator:
            return body.messages[-1].text
        return "\n".join(message.text for message in body.messages)

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
            [_continued(each, pipeline.tokenizer.pieces(each.tokens)) for each in best.n_best]
            for best in generations
        ]

    def _search(self, body: Sampling, read: Sequence[int]) -> SearchSettings:
        """Return the settings of a translation: beam search, or sampling above temperature 0."""
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

        Without a limit in the request, an answer has the usual number of tokens, or as many as the
        model has positions left for.
        """
        longest = body.most_tokens or body.usual_tokens
        positions = (await self.service.generator(body.model)).model.spec.embedding.positions
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
        temperature = 1.0 if body.temperature is None else body.temperature
        if temperature == 0 and body.samples == 1:
            return GenerationSettings.parse(values)
        drawn = {"sampling": True, "temperature": temperature, "n_best": body.samples}
        drawn |= {"top_p": body.top_p or 1.0, "seed": body.drawn_from}
        return GenerationSettings.parse(values | drawn)

    async def _stream(
        self, request: Request, body: Sampling, prompt: str, reply: _Reply
    ) -> Response:
        read = await self.service.lengths(body.model, [prompt])
        pieces = self._pieces(body, prompt, read)
        # Checked before the status 200 is sent, since a refusal has another status.
        first = await while_connected(request, anext(pieces))
        return event_stream(self._events(body, read, first, pieces, reply))

    async def _events(
        self,
        body: Sampling,
        read: Sequence[int],
        first: PromptAnswer,
        pieces: AsyncIterator[PromptAnswer],
        reply: _Reply,
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events: pieces of text, the reason for the end, usage, end mark."""
        written: list[PromptAnswer] = []
        try:
            yield _event(reply.begin())
            piece: PromptAnswer | None = first
            while piece is not None:
                written.append(piece)
                if piece.text:
                    yield _event(reply.piece(piece.text))
                piece = await anext(pieces, None)
            yield _event(reply.piece(None, written[-1].finish_reason))
            if body.wants_usage:
                yield _event(reply.whole([], _usage(read, [written])) | {"object": reply.chunk})
        except Exception as error:  # the status is sent already, so the error is an event
            refusal = refusal_of(error)
            if refusal is None:
                raise
            yield _event(dict(error_body(refusal)))
        yield b"data: [DONE]\n\n"

    async def _pieces(
        self, body: Sampling, prompt: str, read: Sequence[int]
    ) -> AsyncIterator[PromptAnswer]:
        """Yield pieces of an answer as they become certain, and at the end its tokens.

        A translation comes as one piece, since a beam search may change every word until its end.
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
            yield PromptAnswer("", tokens, (), is_cut=stream.ended == "length")
        finally:
            is_read = False
            work.cancel()


class _Reply:
    """The fields that all pieces of an answer share.

    Args:
        kind: kind of object.
        prefix: prefix of its id.
        model: name of the model.
    """

    def __init__(self, kind: str, prefix: str, model: str) -> None:
        self.kind = kind
        self.is_chat = prefix == "chatcmpl"
        self.chunk = "chat.completion.chunk" if self.is_chat else kind
        self.head = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(
        self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, int]
    ) -> dict[str, Any]:
        """Return a complete answer."""
        return {**self.head, "object": self.kind, "choices": list(choices), "usage": usage}

    def begin(self) -> dict[str, Any]:
        """Return the first event of a stream."""
        first: dict[str, Any] = {"role": "assistant", "content": ""}
        return self._part({"delta": first} if self.is_chat else {"text": ""}, None)

    def piece(self, text: str | None, reason: str | None = None) -> dict[str, Any]:
        """Return an event with a piece of text, or with the reason for the end."""
        if self.is_chat:
            return self._part({"delta": {} if text is None else {"content": text}}, reason)
        return self._part({"text": text or ""}, reason)

    def _part(self, words: Mapping[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **words, "logprobs": None, "finish_reason": reason}
        return {**self.head, "object": self.chunk, "choices": [choice]}


def event_stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    """Return server-sent events as a response that no proxy holds back."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _usage(read: Sequence[int], answers: Sequence[Sequence[PromptAnswer]]) -> dict[str, int]:
    count = sum(read)
    written = sum(len(answer.tokens) for several in answers for answer in several)
    return {
        "prompt_tokens": count,
        "completion_tokens": written,
        "total_tokens": count + written,
    }


def _event(content: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode("utf-8", "replace")


def _translated(text: TranslatedText, rank: int, body: Sampling) -> PromptAnswer:
    ranked = [_ranked(line, rank) for line in text.lines]
    most = math.inf if body.most_tokens is None else body.most_tokens
    counts = accumulate(len(line.tokens) for line in ranked)
    lines = [line for line, tokens in zip(ranked, counts, strict=True) if tokens <= most]
    whole = text.join(lines)
    if 0 < len(lines) < len(ranked):  # the break after the last one belongs to those left out
        whole = whole.removesuffix(text.sources[len(lines) - 1].after)
    ends = [place for stop in body.stops if (place := whole.find(stop)) >= 0]
    return PromptAnswer(
        whole[: min(ends, default=len(whole))],
        [piece for line in lines for piece in line.tokens],
        [score for line in lines for score in line.token_scores[: len(line.tokens)]],
        is_cut=not ends and (len(lines) < len(ranked) or not all(line.finished for line in lines)),
    )


def _ranked(line: Translation, rank: int) -> Translation:
    return line.n_best[min(rank, len(line.n_best) - 1)]


def _continued(generation: Generation, pieces: Sequence[str]) -> PromptAnswer:
    is_cut = generation.ended == "length"
    return PromptAnswer(generation.text, pieces, generation.token_scores, is_cut)


def _log_probs(answer: PromptAnswer) -> dict[str, Any]:
    """Return the log-probabilities of a completion's tokens."""
    return {"tokens": list(answer.tokens), "token_logprobs": list(answer.token_scores)} | {
        "top_logprobs": None,
        "text_offset": None,
    }


def _chat_log_probs(answer: PromptAnswer) -> dict[str, Any]:
    """Return the log-probabilities of an answer's tokens."""
    pairs = zip(answer.tokens, answer.token_scores, strict=True)
    return {
        "content": [
            {"token": token, "logprob": score, "bytes": list(token.encode()), "top_logprobs": []}
            for token, score in pairs
        ],
        "refusal": None,
    }
