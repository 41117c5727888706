"""The config tree of models that write what is said in a sound. No torch here."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt
from heedful.models.model_spec import CommonSpec
from heedful.models.stack_spec import StackSpec
from heedful.nn.spec import EmbeddingSpec

Token = Annotated[int, Field(ge=0)]
Named = tuple[tuple[str, Token], ...]
"""Names and their tokens; no dictionary, as specs are keys of dictionaries."""


class PromptSpec(Config):
    """Token ids that a transcript begins with, and those that it never has (Radford 2022)."""

    start: Token = Field(description="token that every prompt begins with")
    languages: Named = Field(
        (), description="token of each language that may be spoken; none for a model of one"
    )
    tasks: Named = Field(
        (), description="token of each task: transcribe, and translate into English"
    )
    without_times: Token | None = Field(
        None, description="token of texts without times; ids above it are times"
    )
    language: str | None = Field(None, description="language by default; recognized if unset")
    task: str | None = Field(None, description="task by default; transcribe if unset")
    suppressed: tuple[Token, ...] = Field((), description="tokens that no transcript has")
    suppressed_first: tuple[Token, ...] = Field(
        (), description="tokens that no transcript begins with"
    )

    @model_validator(mode="after")
    def _knows_its_defaults(self) -> Self:
        for chosen, known in ((self.language, self.languages), (self.task, self.tasks)):
            if chosen is not None and chosen not in dict(known):
                raise ValueError(f"{chosen!r} is the default, and has no token")
        return self

    @property
    def tokens(self) -> tuple[int, ...]:
        """All ids."""
        last = () if self.without_times is None else (self.without_times,)
        named = [token for _, token in (*self.languages, *self.tasks)]
        return (self.start, *named, *last, *self.suppressed, *self.suppressed_first)


class TranscriberSpec(CommonSpec):
    """An encoder of sounds and a decoder of text (Whisper, Radford 2022)."""

    kind: Literal["transcriber"] = "transcriber"
    width: PositiveInt
    vocabulary: PositiveInt
    bands: PositiveInt = Field(80, description="number of bands of the mel scale")
    frames: PositiveInt = Field(
        3000, description="number of frames of 10 ms of a window, to which sounds are padded"
    )
    embedding: EmbeddingSpec = Field(EmbeddingSpec(), description="input of the decoder")
    encoder: StackSpec
    decoder: StackSpec
    prompt: PromptSpec | None = Field(None, description="tokens of a transcript's beginning")

    reads = "sounds"
    generates = True
    # Settings of a translator that this one has at the values without effect.
    output_scale: ClassVar[float | None] = None
    logits_softcap: ClassVar[float | None] = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.embedding.refuse_width()
        if self.embedding.row_size:
            raise ValueError("a transcript is read token by token (embedding.row_size)")
        if self.frames % 2:
            raise ValueError(f"frames = {self.frames}: two frames make a state of the encoder")
        if not self.decoder.has_memory:
            raise ValueError("the decoder's block needs cross_attention")
        if self.encoder.has_memory:
            raise ValueError("an encoder has no memory to read: it makes the memory")
        if self.prompt is not None and max(self.prompt.tokens) >= self.vocabulary:
            raise ValueError(f"the prompt has a token past the vocabulary of {self.vocabulary}")
        self.decoder.check_writes()
        for stack in (self.encoder, self.decoder):
            stack.check_width(self.width)
        return self

    @property
    def num_states(self) -> int:
        """Number of states of a window, one for every two frames."""
        return self.frames // 2

    def ties(self) -> dict[str, str]:
        """Return the names of tied tensors: each alias and the name it is stored under."""
        return {"output_projection.weight": "target_embedding.weight"}
