"""Validated requests of OpenAI's interfaces for completions, chats and responses.

Fields are those of https://platform.openai.com/docs/api-reference (completions, chat, responses).
Unsupported fields that would change an answer are refused, not ignored.
"""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.apps.serve.exchange import Body

MOST_SAMPLES = 16

Zero = Annotated[float | None, Field(ge=0, le=0)]
Texts = str | list[str] | None


class Sampling(Body):
    """Settings that completions and chats share."""

    model: str = Field(min_length=1, description="name of a model in /v1/models")
    temperature: float | None = Field(
        None,
        ge=0,
        le=2,
        description="sampling temperature; translators use beam search unless it is above 0",
    )
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(
        None, ge=1, le=MOST_SAMPLES, description="number of answers to each prompt"
    )
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    stop: Texts = Field(None, description="texts that end an answer")
    seed: int | None = Field(None, ge=0, lt=2**63)
    presence_penalty: Zero = None
    frequency_penalty: Zero = None
    logit_bias: dict[str, float] | None = Field(None, max_length=0)
    max_tokens: int | None = Field(None, ge=1, description="maximum number of tokens of an answer")

    limits: ClassVar[tuple[str, ...]] = ("max_tokens",)
    """Fields that limit the number of tokens of an answer; the first one that is set counts."""

    usual_tokens: ClassVar[int]
    """Maximum number of tokens of a continuation if the request sets none; not for translations."""

    @property
    def most_tokens(self) -> int | None:
        """The maximum number of tokens of an answer; None without a limit in the request."""
        return next(filter(None, (getattr(self, name) for name in self.limits)), None)

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in stop if text)

    @property
    def samples(self) -> int:
        """The number of answers to each prompt."""
        return self.n or 1

    @property
    def drawn_from(self) -> int:
        """The seed of sampling; without one every request samples anew, as clients expect."""
        return uuid.uuid4().int >> 66 if self.seed is None else self.seed

    @property
    def schema_text(self) -> str:
        """The JSON Schema of the answer; "" for plain text."""
        return getattr(getattr(self, "response_format", None), "schema_text", "")

    @property
    def wants_usage(self) -> bool:
        """True if a stream ends with the number of tokens."""
        return bool((self.stream_options or {}).get("include_usage"))

    @model_validator(mode="after")
    def _one_stream(self) -> Self:
        if self.stream and self.samples > 1:
            raise ValueError("stream supports a single answer only: n = 1")
        return self

    def _refuse_streamed(self, log_probs: bool) -> None:
        if self.stream and log_probs:
            raise ValueError("logprobs cannot be combined with stream")


class CompletionBody(Sampling):
    """A request for completions."""

    prompt: str | list[str] = Field(
        "", description="text to continue or translate, or a list of texts"
    )
    logprobs: int | None = Field(
        None, ge=0, le=5, description="return log-probabilities of the tokens"
    )
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
            raise ValueError("stream supports a single prompt only")
        if self.best_of is not None and self.best_of != self.samples:
            raise ValueError("best_of must be equal to n, since all answers are returned")
        if self.stream and self.echo:
            raise ValueError("echo cannot be combined with stream")
        self._refuse_streamed(self.logprobs is not None)
        return self


class MessagePart(Body):
    """A part of a message."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class Message(Body):
    """A message of a chat; one of the role `tool` has the result of a call."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[MessagePart] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The text of the message."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def calls(self) -> dict[str, Any]:
        """The calls of tools, and the call that a message answers, for a chat template."""
        return self.model_dump(include={"tool_calls", "tool_call_id"}, exclude_none=True)


class Function(Body):
    """A function that the client can call for a model."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] = Field(
        default_factory=lambda: {"type": "object", "properties": {}, "additionalProperties": False},
        description="JSON Schema of the arguments",
    )


class Tool(Body):
    """A tool of a chat."""

    type: Literal["function"]
    function: Function


class FunctionName(Body):
    """The name of a function."""

    name: str


class ChosenTool(Body):
    """The choice of one tool, which the answer calls."""

    type: Literal["function"]
    function: FunctionName


class PlainText(Body):
    """The format of a plain text answer."""

    type: Literal["text"]


class AnyObject(Body):
    """The format of an answer that is a JSON object."""

    type: Literal["json_object"]

    @property
    def schema_text(self) -> str:
        """The JSON Schema of the answer."""
        return '{"type": "object"}'


class NamedSchema(Body):
    """A JSON Schema with a name."""

    name: str = Field(min_length=1)
    description: str | None = None
    content: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(None, description="an answer fits the schema in any case")


class SchemaFormat(Body):
    """The format of an answer that fits a JSON Schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema

    @property
    def schema_text(self) -> str:
        """The JSON Schema of the answer."""
        return json.dumps(self.json_schema.content)


class FlatSchemaFormat(NamedSchema):
    """The format of a response that fits a JSON Schema."""

    type: Literal["json_schema"]

    @property
    def schema_text(self) -> str:
        """The JSON Schema of the answer."""
        return json.dumps(self.content)


class ChatBody(Sampling):
    """A request for the answer of a chat."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=0)
    tools: list[Tool] | None = Field(None, description="functions that the client can call")
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = Field(
        None, description="required or one function: the answer is a call; auto: it may have calls"
    )
    response_format: PlainText | AnyObject | SchemaFormat | None = None

    limits = ("max_completion_tokens", "max_tokens")
    usual_tokens = 256

    @property
    def callable(self) -> list[Function]:
        """The functions one of which the answer has to call; none if it need not call any."""
        functions = [tool.function for tool in self.tools or ()]
        if isinstance(self.tool_choice, ChosenTool):
            return [each for each in functions if each.name == self.tool_choice.function.name]
        return functions if self.tool_choice == "required" else []

    @property
    def offered(self) -> list[Function]:
        """The functions that an answer may call in its text; none if it has a form of its own."""
        if self.tool_choice not in (None, "auto") or self.schema_text:
            return []
        return [tool.function for tool in self.tools or ()]

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The tools that a chat template shows to the model."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]

    @property
    def schema_text(self) -> str:
        """The JSON Schema of the answer, or of a call; "" for plain text."""
        functions = self.callable
        if len(functions) < 2:  # alone, so that the references of its schema keep their root
            return json.dumps(functions[0].parameters) if functions else super().schema_text
        return json.dumps({"anyOf": [_call_schema(each) for each in functions]})

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        self._refuse_streamed(bool(self.logprobs))
        if self.tool_choice not in (None, "none", "auto"):
            if not self.callable:
                raise ValueError("tool_choice names no function of tools")
            if super().schema_text:
                raise ValueError("response_format cannot be combined with a call of tool_choice")
        return self


def _call_schema(function: Function) -> dict[str, Any]:
    """Return the schema of a call that names its function."""
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "arguments": function.parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


class TextFormat(Body):
    """The format of the text of a response."""

    format: PlainText | AnyObject | FlatSchemaFormat | None = None


class ResponseBody(Sampling):
    """A request for a response."""

    input: str | Annotated[list[Message], Field(min_length=1)] = Field(
        description="a text, or a list of messages"
    )
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    previous_response_id: None = Field(
        None, description="must be null, since responses are not stored"
    )
    background: Literal[False] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    text: TextFormat | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None

    limits = ("max_output_tokens",)
    usual_tokens = ChatBody.usual_tokens

    @property
    def schema_text(self) -> str:
        """The JSON Schema of the response; "" for plain text."""
        return getattr(self.text.format if self.text else None, "schema_text", "")

    @property
    def messages(self) -> list[Message]:
        """The messages of the request, instructions first."""
        before = [Message(role="developer", content=self.instructions)] if self.instructions else []
        own = [Message(role="user", content=self.input)] if isinstance(self.input, str) else None
        return before + (own or list(self.input))  # type: ignore[arg-type]
