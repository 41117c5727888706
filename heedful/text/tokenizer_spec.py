"""The settings of a tokenizer's training."""

from __future__ import annotations

from pathlib import Path
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
        wrong = [token for token in self.extend if not _can_be_added(token)]
        if wrong:
            raise ValueError(
                f"{wrong[0]!r} in extend is empty, or white space begins or ends it, or breaks it "
                "into lines"
            )
        return self

    def added_tokens(self) -> list[str]:
        """Return the tokens of `extend` and `extend_file`, each once.

        Raises:
            DataError: naming the file or its line.
        """
        from heedful.durable import open_regular
        from heedful.errors import DataError

        tokens = list(self.extend)
        if self.extend_file is not None:
            try:
                with open_regular(Path(self.extend_file)) as stream:
                    lines = stream.read().decode("utf-8").split("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(
                    f"The tokens cannot be read: {error}",
                    where=self.extend_file,
                    remedy="Give a file of text in UTF-8, a token a line",
                ) from None
            for number, line in enumerate(lines, start=1):
                if line and not _can_be_added(line):
                    raise DataError(
                        "White space begins or ends the token",
                        where=f"{self.extend_file}:{number}",
                        remedy="Take it away",
                    )
            tokens += [line for line in lines if line]
        return list(dict.fromkeys(tokens))

    @property
    def extends(self) -> bool:
        """True if the tokenizer of the initial model gets more tokens."""
        return bool(self.extend) or self.extend_file is not None


def _can_be_added(token: str) -> bool:
    """Return whether a line can hold a token: no white space around it, one line."""
    return bool(token) and token == token.strip() and len(token.splitlines()) == 1
