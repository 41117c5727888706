"""Requests of OpenAI's completions and chats, checked.

Fields are those of https://platform.openai.com/docs/api-reference (completions, chat). What would
change an answer and is not there is refused, not ignored.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.apps.serve.exchange import Body

MOST_SAMPLES = 16

Zero = Annotated[float | None, Field(ge=0, le=0)]
Texts = str | list[str] | None


class Sampling(Body):
    """Settings that completions and chats share."""

    model: str = Field(min_length=1, description="a name that /v1/models lists")
    temperature: float | None = Field(
        None,
        ge=0,
        le=2,
        description="0: the most probable. A translator searches unless it is more than 0",
    )
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, le=MOST_SAMPLES, description="answers to each prompt")
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    stop: Texts = Field(None, description="texts that end an answer")
    seed: int | None = Field(None, ge=0, lt=2**63)
    presence_penalty: Zero = None
    frequency_penalty: Zero = None
    logit_bias: dict[str, float] | None = Field(None, max_length=0)
    max_tokens: int | None = Field(None, ge=1, description="most tokens of an answer")

    usual_tokens: ClassVar[int]
    """Most tokens of a continuation where a request does not say; translations end by themselves"""

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of an answer, where the request says it."""
        return self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in stop if text)

    @property
    def samples(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    def drawn_from(self) -> int:
        """The seed of draws; without one every request draws anew, as clients expect."""
        return uuid.uuid4().int >> 66 if self.seed is None else self.seed

    @property
    def wants_usage(self) -> bool:
        """True if a stream ends with the number of tokens."""
        return bool((self.stream_options or {}).get("include_usage"))

    @model_validator(mode="after")
    def _one_stream(self) -> Self:
        if self.stream and self.samples > 1:
            raise ValueError("One answer can be streamed: n = 1")
        return self

    def _refuse_streamed(self, log_probs: bool) -> None:
        if self.stream and log_probs:
            raise ValueError("logprobs: those of an answer are known when all of it is")


class CompletionBody(Sampling):
    """A request for completions."""

    prompt: str | list[str] = Field("", description="text to continue or translate, or several")
    logprobs: int | None = Field(None, ge=0, le=5, description="give those of chosen tokens")
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=MOST_SAMPLES)
    suffix: None = None

    usual_tokens = 16

    @property
    def prompts(self) -> list[str]:
        """The prompts."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.stream and len(self.prompts) != 1:
            raise ValueError("One prompt can be streamed")
        if self.best_of is not None and self.best_of != self.samples:
            raise ValueError("best_of: all answers are returned; it must be n")
        if self.stream and self.echo:
            raise ValueError("echo: a prompt is not streamed")
        self._refuse_streamed(self.logprobs is not None)
        return self


class MessagePart(Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(Body):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[MessagePart] | None = None

    @property
    def text(self) -> str:
        """Its words."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class PlainText(Body):
    """The format of an answer that is no more than text."""

    type: Literal["text"]


class ChatBody(Sampling):
    """A request for the answer of a chat."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=0)
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    response_format: PlainText | None = None

    usual_tokens = 256

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of an answer, where the request says it."""
        return self.max_completion_tokens or self.max_tokens

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        self._refuse_streamed(bool(self.logprobs))
        return self
