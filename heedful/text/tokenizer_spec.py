"""The settings of a tokenizer's training."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt


class TokenizerSpec(Config):
    """Settings of a tokenizer trained from the corpus."""

    kind: Literal["bpe", "byte-bpe", "unigram", "characters"] = "bpe"
    vocabulary_size: PositiveInt = Field(
        8000, description="pieces to learn, special tokens included (an upper bound)"
    )
    joint: bool = Field(True, description="one tokenizer for source and target")
    words: Literal["whitespace", "punctuation"] = Field(
        "punctuation",
        description="pieces never cross white space, or punctuation and digits neither; "
        "use whitespace for text that is tokenised already",
    )
    lowercase: bool = Field(False, description="fold the source's and target's case")
    extend: tuple[str, ...] = Field(
        (), description="whole tokens that the tokenizer of a model to begin with gets besides"
    )
    extend_file: str | None = Field(None, description="file of such tokens, one a line")

    @model_validator(mode="after")
    def _tokens_can_be_found(self) -> Self:
        wrong = [token for token in self.extend if not can_be_added(token)]
        if wrong:
            raise ValueError(
                f"{wrong[0]!r} in extend is empty, or white space begins or ends it, or breaks it "
                "into lines"
            )
        return self


def can_be_added(token: str) -> bool:
    """Return whether a line can hold a token: no white space around it, one line."""
    return bool(token) and token == token.strip() and len(token.splitlines()) == 1
