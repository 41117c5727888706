"""Settings of data: which corpora to read, and how to cut them into batches."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, Probability

SHARD_INDEX = "index.json"
"""The file that makes a folder one of shards."""


class CorpusSpec(Config):
    """Aligned files `source` and `target`, or one `file` (.tsv, .jsonl); all may be gzip.

    `shards` is a folder that `heedful data shard` has made, which is read as a stream.
    """

    source: str | None = None
    target: str | None = None
    file: str | None = None
    shards: str | None = None
    weight: Annotated[float, Field(gt=0)] = Field(
        1.0, description="how often an epoch shows it; 0.5 shows half of it, 3 shows it three times"
    )

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        pair = self.source is not None and self.target is not None
        forms = pair + (self.file is not None) + (self.shards is not None)
        if forms != 1 or (self.source is None) != (self.target is None):
            raise ValueError("give either source and target, or file, or shards")
        return self


class DataSpec(Config):
    """The corpora, the limits on a pair, and the token budget of a batch."""

    train: tuple[CorpusSpec, ...]
    valid: tuple[CorpusSpec, ...] = ()
    documents: Literal["file", "paragraph", "line"] = Field(
        "file",
        description="language models: unit of text in a file; paragraphs end at an empty "
        "line. A .jsonl file holds one text a line, under the key text",
    )
    max_length: PositiveInt = Field(
        256,
        description="longest side of a pair in tokens; longer pairs are reported and left "
        "out. Language models: context length",
    )
    max_length_ratio: Annotated[float, Field(gt=1)] | None = Field(
        None, description="leave out pairs whose longer side is more than this times the shorter"
    )
    batch_tokens: PositiveInt | Literal["auto"] = Field(
        4096,
        description="positions of a batch on its longer side, padding counted; auto: what fits "
        "into the memory that is free",
    )
    pool_batches: PositiveInt = Field(
        100, description="batches in a shuffled pool within which pairs are sorted by length"
    )
    packed_length: PositiveInt | None = Field(
        None,
        description="translation: put several pairs into rows of so many positions on each side, "
        "so that all batches have one shape, which graphs on a GPU need; if unset, batches hold "
        "pairs of similar length",
    )
    stride: PositiveInt | None = Field(
        None,
        description="tag and answer: tokens from the start of one window of a long text to the "
        "start of the next; half a window if unset",
    )
    word_column: PositiveInt = Field(1, description="tag: column of the words, from 1")
    tag_column: PositiveInt | None = Field(
        None, description="tag: column of the tags, from 1; the last if unset"
    )
    cache: str | None = Field(
        None, description="folder of encoded corpora, shared between runs; RUN/data if unset"
    )
    temperature: Annotated[float, Field(gt=0)] = Field(
        1.0,
        description="share of a corpus is that of its size to the power of 1 / temperature; more "
        "than 1 shows small corpora more often (Arivazhagan 2019)",
    )
    shuffle_shards: PositiveInt = Field(
        32, description="shards: how many are shuffled together, over all corpora"
    )
    block_mb: Annotated[float, Field(gt=0)] = Field(
        4.0, description="shards: MB of text that are tokenised and cut into batches together"
    )
    workers: Annotated[int, Field(ge=0)] = Field(
        0,
        description="shards: processes that tokenise the next blocks; 0: a thread of the process "
        "that trains. The batches are the same",
    )
    tokenizer_sample: PositiveInt = Field(
        1_000_000, description="shards: pairs or texts that a new tokenizer is trained on"
    )

    @model_validator(mode="after")
    def _streams_are_for_training(self) -> Self:
        if any(corpus.shards is not None for corpus in self.valid):
            raise ValueError("shards are for training only; give validation data as files")
        streamed = [corpus.shards is not None for corpus in self.train]
        if any(streamed) and not all(streamed):
            raise ValueError(
                "some corpora are shards and others are files; make shards of all of them with "
                "heedful data shard"
            )
        return self

    @property
    def is_streamed(self) -> bool:
        """True if the training corpora are shards."""
        return any(corpus.shards is not None for corpus in self.train)

    @property
    def budget(self) -> int:
        """The value of `batch_tokens`, once `auto` is resolved."""
        assert not isinstance(self.batch_tokens, str), "auto is resolved before data is read"
        return self.batch_tokens

    @property
    def batch_rows(self) -> int:
        """Rows of a batch of packed pairs."""
        assert self.packed_length is not None
        return self.budget // self.packed_length


class ImageSpec(Config):
    """Images: the size they have and how they are cut into patches."""

    size: PositiveInt | None = Field(
        None,
        description="height and width in pixels that every image is resized to; if unset all must "
        "be squares of one size",
    )
    channels: Literal[1, 3] | None = Field(
        None, description="1 for grey, 3 for colour; if unset 1 for IDX files, 3 for PNG and JPEG"
    )
    patch_size: PositiveInt | None = Field(
        None, description="side of a patch in pixels, which divides the size; 4 if unset"
    )
    pooling: Literal["first", "mean"] | None = Field(
        None,
        description="vector that represents an image: that of [CLS], before the patches (first, "
        "the default), or the mean of the patches",
    )


class AugmentSpec(Config):
    """Images: how each is changed at random in training, anew in every epoch."""

    shift: Annotated[int, Field(ge=0)] = Field(
        0, description="largest shift in pixels in each direction; uncovered pixels are black"
    )
    rotate: Annotated[float, Field(ge=0, le=180)] = Field(
        0.0, description="largest rotation in degrees, either way"
    )
    scale: Probability = Field(0.0, description="0.1 scales by a factor between 0.9 and 1.1")
    flip: bool = Field(False, description="mirror half of the images left to right")
    erase: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="share of the images of which a rectangle is hidden (Zhong 2020)"
    )
