"""Settings of data: which corpora to read, and how to cut them into batches."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, Probability, open_names

_Reader = Literal["records", "images", "midi", "series", "sounds"]

SHARD_INDEX = "index.json"
"""Name of the index file of a shard folder."""


# fmt: off
PAIR_FORMS = (
    ".tsv", ".csv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".feather", ".tar",
)
# fmt: on
"""Suffixes of files that hold both sides of pairs."""


class CorpusSpec(Config):
    """One corpus: aligned files `source` and `target`, or one `file` of `PAIR_FORMS`.

    All files may also be in gzip or zstd. `shards` is a folder that `heedful data shard` has made,
    which is read as a stream.
    """

    source: str | None = Field(
        None, description="file of source sentences, one a line; needs target"
    )
    target: str | None = Field(
        None, description="file of target sentences, line by line like source"
    )
    file: str | None = Field(
        None,
        description="file of pairs or labelled examples (.tsv, .csv, .jsonl, .parquet, .arrow, "
        ".tar), folder of such files, file of text, or folder of images",
    )
    source_key: str | None = Field(None, description="data.source_key of this corpus alone")
    target_key: str | None = Field(None, description="data.target_key of this corpus alone")
    languages: tuple[str, str] | None = Field(
        None, description="data.languages of this corpus alone"
    )
    shards: str | None = Field(
        None, description="folder that `heedful data shard` wrote, read as a stream"
    )
    task_prefix: str = Field(
        "",
        description="text before each source of this corpus, which tells the model its task, such "
        'as "summarise: " (Raffel 2020)',
    )
    weight: Annotated[float, Field(gt=0)] = Field(
        1.0,
        description="number of passes over the corpus in an epoch; 0.5 reads half of it, 3 reads "
        "it three times",
    )

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        pair = self.source is not None and self.target is not None
        forms = pair + (self.file is not None) + (self.shards is not None)
        # The second test catches an incomplete pair beside another form, such as `source` and
        # `file`.
        if forms != 1 or (self.source is None) != (self.target is None):
            raise ValueError("give either source and target, or file, or shards")
        # Shards are encoded as they were written.
        if self.task_prefix and self.shards is not None:
            raise ValueError("write task_prefix into the sources before they are made into shards")
        return self


class DataSpec(Config):
    """The corpora, the limits on a pair, and the token budget of a batch."""

    # Every default decides the batches of a run, so changing one changes results.
    train: tuple[CorpusSpec, ...]
    valid: tuple[CorpusSpec, ...] = ()
    documents: Literal["file", "paragraph", "line"] = Field(
        "file",
        description="unit of text in the files of a language model: a whole file, a paragraph (up "
        "to an empty line) or a line; .jsonl files hold one text a line under the key text",
    )
    chat_template: str | None = Field(
        None,
        description="file with a chat template (Jinja) for conversations, which are lines of JSON "
        "with messages; that of the initial model, or one of the package's own if unset",
    )
    source_key: str | None = Field(
        None,
        description="name of the sources in files with named columns or keys, such as en or "
        "translation.en; a number, from 1, in .csv and .tsv files without a header; for the tasks "
        "classify and tag the name of the texts or words",
    )
    target_key: str | None = Field(
        None,
        description="name of the targets, as for source_key; for the tasks classify and tag that "
        "of the labels or tags",
    )
    languages: tuple[str, str] | None = Field(
        None,
        description="codes of the source and target language, such as en de, by which keys are "
        "found and a sample of the pairs is checked",
    )
    max_length: PositiveInt = Field(
        256,
        description="maximum number of tokens on each side of a pair (longer pairs are left "
        "out); context length of a language model",
    )
    max_length_ratio: Annotated[float, Field(gt=1)] | None = Field(
        None,
        description="maximum ratio of the longer to the shorter side of a pair in tokens; pairs "
        "above it are left out",
    )
    batch_tokens: PositiveInt | Literal["auto"] = Field(
        4096,
        description="size of a batch in tokens of its longer side, padding included; auto fills "
        "the free memory",
    )
    # Randomness has a price in padding: pools of 50 batches of Multi30k leave 14 %, one pool 5 %.
    pool_batches: PositiveInt = Field(
        100,
        description="number of batches that are shuffled as one pool and sorted by length inside "
        "it",
    )
    packed_length: PositiveInt | None = Field(
        None,
        description="length in tokens of rows that several pairs are packed into, so that all "
        "batches of translation have one shape (for CUDA graphs); if unset, batches hold pairs of "
        "similar length",
    )
    stride: PositiveInt | None = Field(
        None,
        description="tokens between the starts of overlapping windows over a long text, for "
        "the tasks tag and answer; half a window if unset",
    )
    word_column: PositiveInt = Field(
        1, description="column of the words in files for the task tag, counted from 1"
    )
    tag_column: PositiveInt | None = Field(
        None,
        description="column of the tags in files for the task tag, counted from 1; the last "
        "one if unset",
    )
    # The folder's names are digests of content and tokenizer, so runs may share it.
    cache: str | None = Field(
        None, description="folder for tokenised corpora, which runs may share; RUN/data if unset"
    )
    temperature: Annotated[float, Field(gt=0)] = Field(
        1.0,
        description="temperature T of sampling corpora in proportion to size^(1/T); above 1, "
        "small corpora are seen more often (Arivazhagan 2019)",
    )
    shuffle_shards: PositiveInt = Field(
        32, description="number of shards that are shuffled together, over all corpora"
    )
    # The size is in bytes of text, since tokens are not known before the block is read.
    block_mb: Annotated[float, Field(gt=0)] = Field(
        4.0, description="megabytes of text from shards that are tokenised and batched at a time"
    )
    workers: Annotated[int, Field(ge=0)] = Field(
        0,
        description="number of processes that tokenise shards ahead of training; 0 uses a thread; "
        "batches do not depend on it",
    )
    tokenizer_sample: PositiveInt = Field(
        1_000_000,
        description="number of pairs or texts of the shards that a new tokenizer is trained on",
    )

    @model_validator(mode="after")
    def _keys_are_those_of_corpora(self) -> Self:
        # Readers know their corpus alone, so what holds for all corpora is written into each.
        for corpus in (*self.train, *self.valid):
            for name in ("source_key", "target_key", "languages"):
                if corpus.file is not None and getattr(corpus, name) is None:
                    object.__setattr__(corpus, name, getattr(self, name))
        return self

    @model_validator(mode="after")
    def _streams_are_for_training(self) -> Self:
        # Validation shows every pair once in a fixed order, a stream shuffles and repeats.
        if any(corpus.shards is not None for corpus in self.valid):
            raise ValueError("shards are for training only; give validation data as files")
        streamed = [corpus.shards is not None for corpus in self.train]
        # An epoch of a stream is cut into blocks; files would need a second way to mix them in.
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
        # The number is recorded in the run's settings, so a resumed run keeps it on another
        # machine.
        assert not isinstance(self.batch_tokens, str), "auto is resolved before data is read"
        return self.batch_tokens

    @property
    def batch_rows(self) -> int:
        """Rows of a batch of packed pairs."""
        assert self.packed_length is not None
        return self.budget // self.packed_length


class ImageSpec(Config):
    """Size of images, and the network that reads them."""

    network: Literal["vit", "resnet"] | None = Field(
        None,
        description="network of a new model: a vision Transformer (vit, Dosovitskiy 2021) or "
        "residual convolutions (resnet, He 2016); vit if unset",
    )

    size: PositiveInt | None = Field(
        None,
        description="height and width in pixels that images are resized to; if unset, all images "
        "must be squares of one size",
    )
    channels: Literal[1, 3] | None = Field(
        None,
        description="number of colour channels: 1 for grey, 3 for colour; if unset, 1 for IDX "
        "files and 3 for PNG and JPEG",
    )
    patch_size: PositiveInt | None = Field(
        None,
        description="side of a square patch in pixels, a divisor of the image size; 4 if unset",
    )
    pooling: Literal["first", "mean"] | None = Field(
        None,
        description="vector that the classifier sees: that of the [CLS] token (first) or the mean "
        "over patches; first if unset",
    )
    blocks: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = Field(
        None,
        description="number of residual blocks of each stage of a resnet; from stage to stage "
        "channels double and sides halve; 2 2 2 if unset",
    )
    stage_width: PositiveInt | None = Field(
        None, description="number of channels of the first stage of a resnet; 16 if unset"
    )
    stem_stride: Literal[1, 2] | None = Field(
        None,
        description="stride of the first convolution of a resnet; 2 takes a quarter of the time; "
        "1 if unset",
    )
    codes: Annotated[int, Field(ge=2)] | None = Field(
        None, description="number of codes that an autoencoder writes images in; 512 if unset"
    )
    code_width: PositiveInt | None = Field(
        None, description="width of the vector of a code; 16 if unset"
    )


class RecordSpec(Config):
    """The fields of token sequences, and how files become such sequences."""

    reader: Annotated[_Reader | str, open_names("record reader", _Reader)] = Field(
        "records",
        description="reader of the files: records (lines of JSON, or arrays of .npy and .npz), "
        "images (IDX files or folders, as pixels), midi (files or folders of music, as notes at "
        "every sixteenth), series (numbers in the order of time, as bins), sounds (a list of WAV "
        "files and their texts, as spectrograms) or a registered one",
    )
    fields: tuple[str, ...] = Field(
        (),
        description="fields in their order, name, content and shape each, such as label:10:1:given "
        "pixels:16:28x28; a content is a number of values, names or text; given fields are read "
        "and not learned; the fields of the training data if unset",
    )
    source: tuple[str, ...] = Field(
        (),
        description="names of the fields that an encoder reads; a decoder with cross-attention "
        "writes the others; without an encoder if unset",
    )
    rows: bool = Field(
        False,
        description="the encoder reads each item along the first axis of its field, such as a "
        "moment of a sound, at one position, as numbers through a projection (as ViT patches)",
    )
    writer: Literal["decoder", "ctc"] = Field(
        "decoder",
        description="writer of the fields that the encoder does not read: a decoder, or ctc: at "
        "each position of the encoder a token or none (Graves 2006), for answers in the order of "
        "what is read, such as speech as text",
    )
    levels: Annotated[int, Field(ge=2, le=256)] = Field(
        16, description="number of grey levels of pixels, or of loudness in sounds"
    )
    size: PositiveInt | None = Field(
        None,
        description="height and width in pixels that images are resized to, or moments that music "
        "is cut into; their own if unset",
    )
    bins: Annotated[int, Field(ge=2, le=65536)] = Field(
        1024, description="number of bins of the values of series"
    )
    # 15 as in Chronos (Ansari 2024), whose bins are four times as many.
    bin_limit: Annotated[float, Field(gt=0)] = Field(
        15.0,
        description="multiple of the mean absolute value of a series' context that the bins reach "
        "up and down; what is beyond counts as the first or the last bin",
    )
    context: PositiveInt = Field(
        96, description="number of values of a series that a forecast reads"
    )
    horizon: PositiveInt = Field(24, description="number of values of a series that a forecast has")


# All defaults together change nothing, which `Augmentation` checks by comparing specs.
class AugmentSpec(Config):
    """Random changes of training images, drawn anew in every epoch (data augmentation)."""

    shift: Annotated[int, Field(ge=0)] = Field(
        0,
        description="maximum random shift in pixels in each direction; uncovered pixels are black",
    )
    rotate: Annotated[float, Field(ge=0, le=180)] = Field(
        0.0, description="maximum random rotation in degrees, in either direction"
    )
    scale: Probability = Field(
        0.0, description="maximum random change of size: 0.1 scales by 0.9 to 1.1"
    )
    flip: bool = Field(False, description="mirror half of the images from left to right")
    erase: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="share of the images in which a random rectangle is erased (Zhong 2020)"
    )
