"""How a tokenizer is trained, as data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
