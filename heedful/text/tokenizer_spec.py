"""Settings for training a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, TextNormalization, TokenizerKind, open_names

KINDS: tuple[TokenizerKind, ...] = get_args(TokenizerKind)
"""The package's own kinds."""


class TokenizerSpec(Config):
    """Tokenizer that is trained on the corpus."""

    kind: Annotated[TokenizerKind | str, open_names("tokenizer", TokenizerKind)] = Field(
        "bpe",
        description="tokenization: BPE (Sennrich 2016), BPE over bytes, unigram language model "
        "(Kudo 2018), or characters",
    )
    vocabulary_size: PositiveInt = Field(
        8000,
        description="maximum number of tokens, special tokens included; 4,000 to 32,000 is usual",
    )
    # Joint by default: names and cognates share tokens, and embeddings can be shared (Press 2017).
    joint: bool = Field(
        True, description="train one tokenizer for both languages; false trains one for each"
    )
    words: Literal["whitespace", "punctuation"] = Field(
        "punctuation",
        description="boundaries that no token crosses: white space, or also punctuation and "
        "digits; use whitespace for text that is already tokenised",
    )
    lowercase: bool = Field(False, description="convert all text to lower case")
    # Not NFKC, SentencePiece's default, which also rewrites ², … and Chinese punctuation.
    normalization: TextNormalization = Field(
        "nfc-2",
        description="spelling of all text: one form for composed letters and spaces, without "
        "invisible signs (nfc-2), for full-width letters and ligatures too (compatibility-2), or "
        "as it is (none); nfc and compatibility are the rules of older models",
    )
    extend: tuple[str, ...] = Field(
        (), description="tokens to add to the tokenizer of the model that --init names"
    )
    extend_file: str | None = Field(
        None, description="text file of tokens to add, one a line, in addition to tokenizer.extend"
    )

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
            DataError: when the file cannot be read, or a line is no token.
        """
        # Imported here, as the command line loads the settings for its help texts.
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
        return list(dict.fromkeys(tokens))  # in the order of their ids

    @property
    def extends(self) -> bool:
        """True if the tokenizer of the initial model gets more tokens."""
        return bool(self.extend) or self.extend_file is not None


def _can_be_added(token: str) -> bool:
    """Return True if a token is one line without white space around it."""
    return bool(token) and token == token.strip() and len(token.splitlines()) == 1
