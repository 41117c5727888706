"""The config tree of each kind of model, complete and explicit: the content of `config.json`.

All are made of the same stacks; what tells BERT from RoBERTa or GPT-2 from LLaMA are settings of
these trees. `heedful.models.shape` has the few options a person sets; `expand` gives the complete
tree. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, Probability
from heedful.errors import ModelError, suggest
from heedful.models.stack_spec import StackSpec
from heedful.nn.spec import EmbeddingSpec, NormSpec, PixelSpec, PlainActivation

Side = Literal["source", "target"]
"""The two texts of a pair; a model of one text has the same vocabulary on either side."""

Prediction = Literal["next_token", "masked_token", "token_label", "label"]
"""The next token, a masked token, a label of each token, or the label of a whole text or image."""

Sharing = Literal["all", "inputs", "target", "none"]
"""The tables that are one tensor: source, target and output; source and target; target and
output; none."""


class CommonSpec(Config):
    """The questions that the spec of every kind of model answers."""

    reads: ClassVar[Literal["pairs", "texts", "images"]] = "texts"
    """The inputs of a forward pass: source and target texts, texts, or images."""

    generates: ClassVar[bool] = False
    """Whether the model writes text token by token (`start`, `step`, `reorder`)."""

    @model_validator(mode="after")
    def _mixers_fit(self) -> Self:
        if self.generates:
            self.stacks()["decoder"].check_causal("decoder")
        positions = self.num_positions
        if positions is not None:
            for stack in self.stacks().values():
                stack.check_positions(positions)
        return self

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Turn stacks of schema version 1 into those of version 2."""
        stacks = {name: values.get(name) for name in ("encoder", "decoder")}
        return dict(values) | {
            name: StackSpec.upgrade(stack)
            for name, stack in stacks.items()
            if isinstance(stack, Mapping)
        }

    def stacks(self) -> dict[str, StackSpec]:
        """Return the stacks by the name of their module: the encoder first, then the decoder."""
        stacks = ((name, getattr(self, name, None)) for name in ("encoder", "decoder"))
        return {name: stack for name, stack in stacks if stack is not None}

    def with_stacks(self, stacks: Mapping[str, StackSpec]) -> Self:
        """Return a copy with other stacks, checked as a whole.

        Args:
            stacks: by name; those left out stay.
        """
        return self.parse(self.plain() | {name: stack.plain() for name, stack in stacks.items()})

    def vocabularies(self) -> dict[Side, int]:
        """Return the number of pieces on each side; nothing for a model of images."""
        pieces: int | None = getattr(self, "vocabulary", None)
        return {} if pieces is None else {"source": pieces, "target": pieces}

    def with_vocabularies(self, *, source: int, target: int) -> Self:
        """Return a copy with vocabularies of these sizes; a model of one text takes `target`."""
        return self.model_copy(update={"vocabulary": target})

    @property
    def predicted_vocabulary(self) -> int:
        """V of the logits; 1 for a model that labels, whose few scores cost next to nothing."""
        return self.vocabularies().get("target", 1)

    @property
    def sharing(self) -> Sharing | None:
        """The tables that are one tensor; None where there is no output table to share."""
        return None

    def ties(self) -> dict[str, str]:
        """Return the names of tied tensors: each alias and the name it is stored under."""
        return {}

    @property
    def predicts(self) -> Prediction | None:
        """The predictions whose answers can be judged; None where there are none."""
        return "next_token" if self.generates else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels that `predicts` chooses from; none where it predicts tokens."""
        return ()

    @property
    def num_positions(self) -> int | None:
        """Number of positions that learned ones allow; None if there is no end to them."""
        embedding: EmbeddingSpec | None = getattr(self, "embedding", None)
        if embedding is None or embedding.positions.kind != "learned":
            return None
        return embedding.positions.max_length

    @property
    def longest_text(self) -> int | None:
        """Tokens of the longest text that the model can read; None if any length is fine.

        Learned positions set it, and mixers whose sums or weights are of a fixed length.
        """
        lengths = [self.num_positions, *(each.longest_text for each in self.stacks().values())]
        return min((length for length in lengths if length is not None), default=None)


class TranslatorSpec(CommonSpec):
    """A sequence-to-sequence Transformer (Vaswani 2017)."""

    kind: Literal["translator"] = "translator"
    width: PositiveInt
    source_vocabulary: PositiveInt
    target_vocabulary: PositiveInt
    share_embeddings: Sharing = Field(
        "all",
        description="all: source, target and output; inputs: source and target; "
        "target: target and output",
    )
    embedding: EmbeddingSpec = EmbeddingSpec()
    encoder: StackSpec
    decoder: StackSpec
    output_bias: bool = Field(False, description="a learned number per piece, added to its score")
    output_scale: Annotated[float, Field(gt=0)] | None = Field(
        None, description="factor on the decoder's states before the output projection"
    )
    logits_softcap: Annotated[float, Field(gt=0)] | None = Field(
        None, description="logits become softcap · tanh(logit / softcap) (Gemma 2)"
    )
    max_length: PositiveInt = Field(
        256, description="longest source in tokens that is translated in one piece"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        share = self.share_embeddings
        if share in ("all", "inputs") and self.source_vocabulary != self.target_vocabulary:
            raise ValueError(
                f"share_embeddings = {share!r} needs equal source and target vocabularies"
            )
        if not self.decoder.has_memory:
            raise ValueError("the decoder's block needs cross_attention")
        if self.encoder.has_memory:
            raise ValueError("an encoder has no memory to read: it makes the memory")
        self.decoder.check_writes()
        for stack in (self.encoder, self.decoder):
            stack.check_width(self.width)
        return self

    reads = "pairs"
    generates = True

    def vocabularies(self) -> dict[Side, int]:
        """Return the number of pieces on each side."""
        return {"source": self.source_vocabulary, "target": self.target_vocabulary}

    def with_vocabularies(self, *, source: int, target: int) -> Self:
        """Return a copy with vocabularies of these sizes."""
        return self.model_copy(update={"source_vocabulary": source, "target_vocabulary": target})

    @property
    def sharing(self) -> Sharing:
        """The tables that are one tensor."""
        return self.share_embeddings

    def ties(self) -> dict[str, str]:
        """Return the names of tied tensors: each alias and the name it is stored under."""
        aliases = {
            "all": ("source_embedding", "output_projection"),
            "inputs": ("source_embedding",),
            "target": ("output_projection",),
            "none": (),
        }
        table = "target_embedding.weight"
        return {f"{alias}.weight": table for alias in aliases[self.share_embeddings]}

    def untied(self) -> Self:
        """Return a copy whose output projection is a table of its own."""
        share = {"all": "inputs", "target": "none"}.get(self.share_embeddings)
        return self if share is None else self.model_copy(update={"share_embeddings": share})

    @property
    def longest_text(self) -> int | None:
        """As for others, but one less: the token that ends or begins a text comes on top."""
        rows = super().longest_text
        return None if rows is None else rows - 1


class CausalLMSpec(CommonSpec):
    """A decoder without a memory that predicts the next token (GPT, LLaMA)."""

    kind: Literal["causal_lm"] = "causal_lm"
    width: PositiveInt
    vocabulary: PositiveInt
    embedding: EmbeddingSpec = EmbeddingSpec()
    decoder: StackSpec
    tied: bool = Field(True, description="the output projection is the embedding table")
    output_bias: bool = False
    logits_softcap: Annotated[float, Field(gt=0)] | None = Field(
        None, description="logits become softcap · tanh(logit / softcap) (Gemma 2)"
    )
    max_length: PositiveInt | None = Field(
        None, description="longest text in tokens it was made for; unlimited if unset"
    )
    memory: PositiveInt | None = Field(
        None,
        description="tokens before a segment of a text that the segment's attention reads again "
        "(Transformer-XL)",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.decoder.check_width(self.width)
        if self.decoder.has_memory:
            raise ValueError("a causal language model has no memory to cross-attend to")
        self.decoder.check_writes()
        if self.memory is not None:
            if self.embedding.positions.kind != "none":
                raise ValueError(
                    f"memory is read at other distances by each segment, and "
                    f"{self.embedding.positions.kind} positions are part of the states in it"
                )
            self.decoder.check_remembers(self.memory)
        return self

    generates = True

    @property
    def sharing(self) -> Sharing:
        """`all` if the output projection is the embedding table, else `none`."""
        return "all" if self.tied else "none"

    def ties(self) -> dict[str, str]:
        """Return the names of tied tensors: each alias and the name it is stored under."""
        return {"output_projection.weight": "embedding.weight"} if self.tied else {}

    def untied(self) -> Self:
        """Return a copy whose output projection is a table of its own."""
        return self.model_copy(update={"tied": False})


Labels = Annotated[tuple[str, ...], Field(min_length=1)]


class CommonHeadSpec(Config):
    """The questions that the spec of every head answers."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels that the head chooses from; none where it predicts something else."""
        return getattr(self, "labels", ())

    @property
    def num_scores(self) -> int:
        """Number of scores the head gives for a text or a position: one for each label, or 2."""
        return len(self.class_names) or 2

    @property
    def reads_pooled(self) -> bool:
        """True for heads that read the pooler's output."""
        return False


class MaskedLMHeadSpec(CommonHeadSpec):
    """Predicts the token at each position (Devlin 2019): dense, activation, norm, vocabulary."""

    kind: Literal["masked_lm"] = "masked_lm"
    activation: PlainActivation = "gelu"
    norm: NormSpec = NormSpec()
    tied: bool = Field(True, description="the output projection is the embedding table")


class NextSentenceHeadSpec(CommonHeadSpec):
    """Predicts from the pooler's output whether the second text follows the first (Devlin 2019)."""

    kind: Literal["next_sentence"] = "next_sentence"

    @property
    def reads_pooled(self) -> bool:
        """Always."""
        return True


class SequenceHeadSpec(CommonHeadSpec):
    """Labels of a whole text, from its first token."""

    kind: Literal["sequence"] = "sequence"
    labels: Labels
    source: Literal["pooled", "first"] = Field(
        "pooled", description="the pooler's output, or the first state through its own dense, tanh"
    )
    dropout: Probability = 0.0

    @property
    def reads_pooled(self) -> bool:
        """True if `source` says so."""
        return self.source == "pooled"


class TokenHeadSpec(CommonHeadSpec):
    """A label of each token."""

    kind: Literal["token"] = "token"
    labels: Labels
    dropout: Probability = 0.0


class SpanHeadSpec(CommonHeadSpec):
    """Predicts where an answer starts and ends (Rajpurkar 2016)."""

    kind: Literal["span"] = "span"
    unanswerable: bool = Field(
        False, description="trained to point at the first token where a text holds no answer"
    )


HeadSpec = Annotated[
    MaskedLMHeadSpec | NextSentenceHeadSpec | SequenceHeadSpec | TokenHeadSpec | SpanHeadSpec,
    Field(discriminator="kind"),
]


class EncoderSpec(CommonSpec):
    """An encoder of text and what is predicted from its states (BERT, RoBERTa)."""

    kind: Literal["encoder"] = "encoder"
    width: PositiveInt
    vocabulary: PositiveInt
    embedding: EmbeddingSpec = EmbeddingSpec()
    encoder: StackSpec
    pooler: bool = Field(False, description="a dense layer and tanh over the first state")
    heads: tuple[HeadSpec, ...] = Field((), description="at most one of each kind")
    max_length: PositiveInt | None = Field(
        None, description="longest text in tokens it was made for; unlimited if unset"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.encoder.check_width(self.width)
        kinds = [head.kind for head in self.heads]
        if len(set(kinds)) < len(kinds):
            raise ValueError("two heads are of the same kind")
        pooled = [head.kind for head in self.heads if head.reads_pooled]
        if pooled and not self.pooler:
            raise ValueError(f"a {pooled[0]} head over the pooled state needs pooler = true")
        if self.encoder.has_memory:
            raise ValueError("an encoder of one text has no memory to cross-attend to")
        return self

    def head(self, kind: str) -> HeadSpec | None:
        """Return the head of a kind, or None if the model has none of it."""
        return next((head for head in self.heads if head.kind == kind), None)

    @property
    def predicts(self) -> Prediction | None:
        """The predictions of the first of the heads for texts, tokens and masked tokens."""
        if self.head("sequence"):
            return "label"
        if self.head("token"):
            return "token_label"
        return "masked_token" if self.head("masked_lm") else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels of texts, or of tokens."""
        head = self.head("sequence") or self.head("token")
        return head.class_names if head else ()

    @property
    def sharing(self) -> Sharing | None:
        """`all` if the masked-LM head reuses the embedding table, else `none`; None without one."""
        head = self.head("masked_lm")
        return None if head is None else "all" if getattr(head, "tied", False) else "none"

    def ties(self) -> dict[str, str]:
        """Return the names of tied tensors: each alias and the name it is stored under."""
        alias = "heads.masked_lm.projection.weight"
        return {alias: "embedding.weight"} if self.sharing == "all" else {}


class VisionSpec(CommonSpec):
    """An encoder of images cut into patches (Dosovitskiy 2021)."""

    kind: Literal["vision"] = "vision"
    width: PositiveInt
    image_size: PositiveInt = Field(224, description="height and width in pixels")
    patch_size: PositiveInt = 16
    channels: PositiveInt = 3
    encoder: StackSpec
    pooling: Literal["first", "mean"] = Field(
        "first", description="what stands for the image: a [CLS] vector of its own, or the mean"
    )
    pooler: bool = Field(False, description="a dense layer and tanh over it")
    labels: tuple[str, ...] = Field((), description="names of the classes")
    num_classes: PositiveInt | None = Field(
        None, description="how many, where they have no names; with neither there is no classifier"
    )
    dropout: Probability = Field(0.0, description="after patches and positions are added")
    pixels: PixelSpec | None = Field(
        None, description="how pixels become numbers; unset where that is not known"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.encoder.check_width(self.width)
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}"
            )
        if self.labels and self.num_classes not in (None, len(self.labels)):
            raise ValueError(f"num_classes {self.num_classes}, but {len(self.labels)} labels")
        if self.pixels and not (len(self.pixels.mean) == len(self.pixels.std) == self.channels):
            raise ValueError(f"pixels needs a mean and std for each of {self.channels} channels")
        if self.encoder.has_memory:
            raise ValueError("an encoder of images has no memory to cross-attend to")
        return self

    reads = "images"

    @property
    def num_positions(self) -> int:
        """One for each patch, and one for the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1

    @property
    def longest_text(self) -> None:
        """None: it reads no text."""
        return None

    @property
    def predicts(self) -> Prediction | None:
        """The class of the image, where there is a classifier."""
        return "label" if self.class_names else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels, or LABEL_0, LABEL_1 … for classes without names."""
        return self.labels or tuple(f"LABEL_{i}" for i in range(self.num_classes or 0))

    @property
    def num_states(self) -> int:
        """Number of states of an image: one per patch, and one for the whole if it is the first."""
        return (self.image_size // self.patch_size) ** 2 + (self.pooling == "first")


ModelSpec = Annotated[
    TranslatorSpec | CausalLMSpec | EncoderSpec | VisionSpec, Field(discriminator="kind")
]

_KINDS: Mapping[str, type[TranslatorSpec | CausalLMSpec | EncoderSpec | VisionSpec]] = {
    "translator": TranslatorSpec,
    "causal_lm": CausalLMSpec,
    "encoder": EncoderSpec,
    "vision": VisionSpec,
}


def parse_spec(values: Mapping[str, Any], *, where: str) -> ModelSpec:
    """A spec from plain data, of the class that its `kind` names.

    Args:
        values: nested plain data; without a `kind` it is a translator's, as in the first files.
        where: the file they came from, for the error message.

    Raises:
        ModelError: when there is no such kind.
        ConfigError: when a setting is unknown or wrong.
    """
    kind = values.get("kind", "translator")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ModelError(
            f"No kind of model is called {kind!r}",
            where=where,
            remedy=suggest(str(kind), _KINDS),
        )
    return _KINDS[kind].parse(values, where=where)
