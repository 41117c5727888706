"""The config tree of each kind of model, complete and explicit: the content of `config.json`.

All are made of the same stacks: BERT differs from RoBERTa, and GPT-2 from LLaMA, by settings of
these trees. `heedful.models.shape` has the few options that a user sets; `expand` gives the
complete tree. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PlainActivation, PositiveInt, Probability
from heedful.errors import ModelError, suggest
from heedful.models.stack_spec import StackSpec
from heedful.nn.spec import EmbeddingSpec, NormSpec, PixelSpec

Side = Literal["source", "target"]
"""The two texts of a pair; a model of one text has the same vocabulary on either side."""

Prediction = Literal["next_token", "masked_token", "token_label", "label"]
"""The next token, a masked token, a label of each token, or the label of a whole text or image."""

Sharing = Literal["all", "inputs", "target", "none"]
"""The embedding tables that are one tensor: source, target and output (all), source and target
(inputs), target and output (target), or none."""


class CommonSpec(Config):
    """The part that the specs of all kinds of models have in common."""

    reads: ClassVar[Literal["pairs", "texts", "images"]] = "texts"
    """The inputs of a forward pass: source and target texts, texts, or images."""

    generates: ClassVar[bool] = False
    """True if the model writes text token by token (`start`, `step`, `reorder`)."""

    @model_validator(mode="after")
    def _mixers_fit(self) -> Self:
        if self.generates:
            # Training sees whole texts at once: a mixer that looks ahead would learn to copy.
            self.stacks()["decoder"].check_causal("decoder")
        positions = self.num_positions
        if positions is not None:  # without a table a mask may reach any distance
            for stack in self.stacks().values():
                stack.check_positions(positions)
        return self

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Turn the short form of equal blocks into patterns of sub-layers."""
        stacks = {name: values.get(name) for name in ("encoder", "decoder")}
        return dict(values) | {
            name: StackSpec.upgrade(stack)
            for name, stack in stacks.items()
            if isinstance(stack, Mapping)
        }

    def stacks(self) -> dict[str, StackSpec]:
        """Return the stacks by the name of their module, the encoder first."""
        stacks = ((name, getattr(self, name, None)) for name in ("encoder", "decoder"))
        return {name: stack for name, stack in stacks if stack is not None}

    def with_stacks(self, stacks: Mapping[str, StackSpec]) -> Self:
        """Return a copy with other stacks.

        Args:
            stacks: new stacks by name; the others stay.
        """
        # Rebuilt from plain data: `model_copy` would skip the checks of stacks against the rest.
        return self.parse(self.plain() | {name: stack.plain() for name, stack in stacks.items()})

    def vocabularies(self) -> dict[Side, int]:
        """Return the vocabulary size of each side; an empty dictionary for a model of images."""
        size: int | None = getattr(self, "vocabulary", None)
        return {} if size is None else {"source": size, "target": size}

    def with_vocabularies(self, *, source: int, target: int) -> Self:
        """Return a copy with vocabularies of these sizes; a model of one text takes `target`."""
        return self.model_copy(update={"vocabulary": target})

    @property
    def predicted_vocabulary(self) -> int:
        """V of the logits; 1 for models without a vocabulary, whose few logits cost little."""
        return self.vocabularies().get("target", 1)

    @property
    def sharing(self) -> Sharing | None:
        """The embedding tables that are one tensor; None without an output table to share."""
        return None

    def ties(self) -> dict[str, str]:
        """Return the names of tied tensors: each alias and the name it is stored under."""
        return {}

    @property
    def predicts(self) -> Prediction | None:
        """The kind of prediction that has a reference answer; None where the model makes none."""
        return "next_token" if self.generates else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels that `predicts` chooses from; none where it predicts tokens."""
        return ()

    @property
    def num_positions(self) -> int | None:
        """Number of learned positions; None where positions are not learned, so without limit."""
        embedding: EmbeddingSpec | None = getattr(self, "embedding", None)
        positions = None if embedding is None else embedding.positions
        return positions.max_length if positions and positions.kind in ("learned", "axes") else None

    @property
    def longest_text(self) -> int | None:
        """Most tokens of a text that the model can read; None without a limit.

        Learned positions limit it, and mixers with weights of a fixed length.
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
        description="embedding tables that are shared: source, target and output (all), source and "
        "target (inputs), target and output (target), or none",
    )
    embedding: EmbeddingSpec = EmbeddingSpec()
    encoder: StackSpec
    decoder: StackSpec
    output_bias: bool = Field(False, description="bias vector of the output projection")
    output_scale: Annotated[float, Field(gt=0)] | None = Field(
        None, description="factor on decoder states before the output projection; 1 if unset"
    )
    logits_softcap: Annotated[float, Field(gt=0)] | None = Field(
        None, description="cap c on logits: c · tanh(logit / c) (Gemma 2); none if unset"
    )
    max_length: PositiveInt = Field(256, description="maximum length of a source in tokens")

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
        # Parts check divisibility (heads, groups) as soon as the width is known: here.
        for stack in (self.encoder, self.decoder):
            stack.check_width(self.width)
        return self

    reads = "pairs"
    generates = True

    def vocabularies(self) -> dict[Side, int]:
        """Return the vocabulary size of each side."""
        return {"source": self.source_vocabulary, "target": self.target_vocabulary}

    def with_vocabularies(self, *, source: int, target: int) -> Self:
        """Return a copy with vocabularies of these sizes."""
        return self.model_copy(update={"source_vocabulary": source, "target_vocabulary": target})

    @property
    def sharing(self) -> Sharing:
        """The shared embedding tables."""
        return self.share_embeddings

    def ties(self) -> dict[str, str]:
        """Return the names of tied tensors: each alias and the name it is stored under."""
        aliases = {
            "all": ("source_embedding", "output_projection"),
            "inputs": ("source_embedding",),
            "target": ("output_projection",),
            "none": (),
        }
        # The first of the shared tables in the order of the modules, so the stored name.
        table = "target_embedding.weight"
        return {f"{alias}.weight": table for alias in aliases[self.share_embeddings]}

    def untied(self) -> Self:
        """Return a copy whose output projection is a table of its own."""
        share = {"all": "inputs", "target": "none"}.get(self.share_embeddings)
        return self if share is None else self.model_copy(update={"share_embeddings": share})

    @property
    def longest_text(self) -> int | None:
        """Most tokens of a text, without the begin or end token, which takes a position, too."""
        rows = super().longest_text
        return None if rows is None else rows - 1


class CausalLMSpec(CommonSpec):
    """A decoder without a memory that predicts the next token (GPT, LLaMA)."""

    kind: Literal["causal_lm"] = "causal_lm"
    width: PositiveInt
    vocabulary: PositiveInt
    embedding: EmbeddingSpec = EmbeddingSpec()
    decoder: StackSpec
    tied: bool = Field(True, description="use the embedding table as output projection")
    output_bias: bool = Field(False, description="bias vector of the output projection")
    logits_softcap: Annotated[float, Field(gt=0)] | None = Field(
        None, description="cap c on logits: c · tanh(logit / c) (Gemma 2); none if unset"
    )
    max_length: PositiveInt | None = Field(
        None, description="maximum length of a text in tokens; unlimited if unset"
    )
    memory: PositiveInt | None = Field(
        None,
        description="number of previous hidden states that attention also reads (Transformer-XL); "
        "none if unset",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.decoder.check_width(self.width)
        if self.decoder.has_memory:
            raise ValueError("a causal language model has no memory to cross-attend to")
        self.decoder.check_writes()
        if self.memory is not None:
            if self.embedding.positions.kind != "none":  # Dai 2019, section 3.3
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
    """Properties that the specs of all heads have in common."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels that the head chooses from; none where it predicts something else."""
        return getattr(self, "labels", ())

    @property
    def num_scores(self) -> int:
        """Logits of the head for a sequence or a position: one for each label, or 2."""
        return len(self.class_names) or 2  # the next sentence or not; start and end of a span

    @property
    def reads_pooled(self) -> bool:
        """True for heads whose input is the pooler's output."""
        return False


class MaskedLMHeadSpec(CommonHeadSpec):
    """Predicts the token at each position (Devlin 2019): dense, activation, norm, vocabulary."""

    kind: Literal["masked_lm"] = "masked_lm"
    activation: PlainActivation = "gelu"
    norm: NormSpec = NormSpec()
    tied: bool = Field(True, description="use the embedding table as output projection")


class NextSentenceHeadSpec(CommonHeadSpec):
    """Predicts from the pooler's output whether the second text follows the first (Devlin 2019)."""

    kind: Literal["next_sentence"] = "next_sentence"

    @property
    def reads_pooled(self) -> bool:
        """True for every head of this kind."""
        return True


class SequenceHeadSpec(CommonHeadSpec):
    """Predicts the label of a whole text from the state of its first token."""

    kind: Literal["sequence"] = "sequence"
    labels: Labels
    source: Literal["pooled", "first"] = Field(
        "pooled",
        description="input: the pooler's output, or the first state through a dense layer and tanh",
    )
    dropout: Probability = 0.0

    @property
    def reads_pooled(self) -> bool:
        """True if `source` is the pooler's output."""
        return self.source == "pooled"


class TokenHeadSpec(CommonHeadSpec):
    """Predicts a label of each token."""

    kind: Literal["token"] = "token"
    labels: Labels
    dropout: Probability = 0.0


class SpanHeadSpec(CommonHeadSpec):
    """Predicts where an answer starts and ends (Rajpurkar 2016)."""

    kind: Literal["span"] = "span"
    unanswerable: bool = Field(False, description="predict the first token if a text has no answer")


HeadSpec = Annotated[
    MaskedLMHeadSpec | NextSentenceHeadSpec | SequenceHeadSpec | TokenHeadSpec | SpanHeadSpec,
    Field(discriminator="kind"),
]


class EncoderSpec(CommonSpec):
    """An encoder of text with prediction heads (BERT, RoBERTa)."""

    kind: Literal["encoder"] = "encoder"
    width: PositiveInt
    vocabulary: PositiveInt
    embedding: EmbeddingSpec = EmbeddingSpec()
    encoder: StackSpec
    pooler: bool = Field(False, description="dense layer and tanh over the first state")
    heads: tuple[HeadSpec, ...] = Field((), description="heads, at most one of each kind")
    max_length: PositiveInt | None = Field(
        None, description="maximum length of a text in tokens; unlimited if unset"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.encoder.check_width(self.width)
        kinds = [head.kind for head in self.heads]  # the names of their modules
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
        """The kind of prediction: labels of sequences or tokens, or masked tokens."""
        # A head for the pretraining task may still be there: the fine-tuned ones come first.
        if self.head("sequence") or self.head("token"):
            return "label" if self.head("sequence") else "token_label"
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
        # The head is built after the table, whose name is the stored one.
        alias = "heads.masked_lm.projection.weight"
        return {alias: "embedding.weight"} if self.sharing == "all" else {}

    def untied(self) -> Self:
        """Return a copy whose masked-LM head, if any, has a table of its own."""
        untied = {"tied": False}
        heads = (h.model_copy(update=untied) if h.kind == "masked_lm" else h for h in self.heads)
        return self.model_copy(update={"heads": tuple(heads)})


class VisionSpec(CommonSpec):
    """An encoder of images cut into patches (Dosovitskiy 2021)."""

    kind: Literal["vision"] = "vision"
    width: PositiveInt
    image_size: PositiveInt = Field(224, description="height and width of an image in pixels")
    patch_size: PositiveInt = Field(16, description="height and width of a patch in pixels")
    channels: PositiveInt = Field(3, description="number of colour channels")
    encoder: StackSpec
    pooling: Literal["first", "mean"] = Field(
        "first", description="state of the whole image: that of a [CLS] token, or the mean"
    )
    pooler: bool = Field(False, description="dense layer and tanh over the pooled state")
    labels: tuple[str, ...] = Field((), description="names of the classes")
    num_classes: PositiveInt | None = Field(
        None,
        description="number of classes without names; no classifier if unset and without labels",
    )
    dropout: Probability = Field(0.0, description="dropout probability of embeddings")
    pixels: PixelSpec | None = Field(None, description="preprocessing of pixels; unset if unknown")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.encoder.check_width(self.width)
        if self.image_size % self.patch_size:  # pixels left at the border would belong to no patch
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}"
            )
        # Imported models may give both, as Hugging Face does; then they must agree.
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
        """Number of learned positions, one for each state."""
        return self.num_states

    @property
    def longest_text(self) -> None:
        """None, as the input is no text."""
        return None

    @property
    def predicts(self) -> Prediction | None:
        """The class of the image; None without a classifier."""
        return "label" if self.class_names else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels, or LABEL_0, LABEL_1 … for classes without names."""
        return self.labels or tuple(f"LABEL_{i}" for i in range(self.num_classes or 0))

    @property
    def num_states(self) -> int:
        """Number of states of an image: one for each patch, and one for the class token if any."""
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
    """Return a spec from plain data, of the class that its `kind` names.

    Args:
        values: nested plain data of the spec.
        where: file of the values, for the error message.

    Raises:
        ModelError: when there is no such kind.
        ConfigError: when a setting is unknown or wrong.
    """
    kind = values.get("kind", "translator")  # the first directories had no `kind`
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ModelError(
            f"No kind of model is called {kind!r}",
            where=where,
            remedy=suggest(str(kind), _KINDS),
        )
    # By the class itself: in errors of the union the kind would stand before each setting.
    return _KINDS[kind].parse(values, where=where)
