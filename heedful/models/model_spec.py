"""The config tree of each kind of model, complete and explicit: the content of `config.json`.

All are made of the same stacks: BERT differs from RoBERTa, and GPT-2 from LLaMA, by settings of
these trees. `heedful.models.shape` has the few options that a user sets; `expand` gives the
complete tree. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt
from heedful.errors import ModelError, suggest
from heedful.models.stack_spec import StackSpec
from heedful.nn.spec import EmbeddingSpec

Side = Literal["source", "target"]
"""The two texts of a pair; a model of one text has the same vocabulary on either side."""

Prediction = Literal["next_token", "masked_token", "token_label", "label"]
"""The next token, a masked token, a label of each token, or the label of a whole text or image."""

Sharing = Literal["all", "inputs", "target", "none"]
"""The embedding tables that are one tensor: source, target and output (all), source and target
(inputs), target and output (target), or none."""


class CommonSpec(Config):
    """The part that the specs of all kinds of models have in common."""

    reads: ClassVar[
        Literal["pairs", "texts", "images", "images_and_texts", "captions", "sounds"]
    ] = "texts"
    """The inputs of a forward pass: source and target texts, texts, images, images with texts,
    noisy images and captions, or sounds and texts."""

    generates: ClassVar[bool] = False
    """True if the model writes text token by token (`start`, `step`, `reorder`)."""

    kind: str
    width: PositiveInt

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

    def of_stack(self, name: str) -> CommonSpec:
        """Return the spec that a stack belongs to: this one, or that of a part of the model."""
        return self

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

    @property
    def trained_length(self) -> int | None:
        """Most tokens of a text in training that the model can exceed; None without such a bound.

        Nothing is refused past it, as positions that are computed have no end.
        """
        return None

    @property
    def has_rotary(self) -> bool:
        """True where positions are rotary, which can be stretched past the trained length."""
        return False


ModelSpec = CommonSpec
"""The spec of any kind of model."""


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
        self.embedding.refuse_width()
        if share in ("all", "inputs") and self.source_vocabulary != self.target_vocabulary:
            raise ValueError(
                f"share_embeddings = {share!r} needs equal source and target vocabularies"
            )
        if share in ("all", "inputs") and self.embedding.row_size:
            raise ValueError(f"share_embeddings = {share!r}: the source has a table for rows")
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
        self.embedding.refuse_width()
        if self.embedding.row_size:
            raise ValueError("a causal language model reads token by token (embedding.row_size)")
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
    def trained_length(self) -> int | None:
        """Most tokens of a text in training, times the factor of stretched rotary positions."""
        # With a memory `max_length` is the length of a segment, and a text has any number of them.
        if self.max_length is None or self.memory is not None:
            return None
        stretched = (
            int(each.rotary.factor * (each.rotary.original_length or self.max_length))
            for each in self.decoder.attentions()
            if each.rotary is not None and each.rotary.scaling != "none"
        )
        return max([self.max_length, *stretched])

    @property
    def has_rotary(self) -> bool:
        """True where positions are rotary, which can be stretched past the trained length."""
        return any(each.rotary is not None for each in self.decoder.attentions())

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


@dataclass(frozen=True)
class ModelKind:
    """A kind of model: the places of its classes, which are imported where they are needed.

    Args:
        noun: name for people.
        spec: place of its config tree, as "module:class".
        model: place of its network.
        pipeline: place of its pipeline.
    """

    noun: str
    spec: str
    model: str
    pipeline: str


MODEL_KINDS: Mapping[str, ModelKind] = {
    "translator": ModelKind(
        "translator",
        "heedful.models.model_spec:TranslatorSpec",
        "heedful.models.translator:Translator",
        "heedful.pipelines.translation:TranslationPipeline",
    ),
    "transcriber": ModelKind(
        "transcriber of sounds",
        "heedful.models.sounds.transcriber_spec:TranscriberSpec",
        "heedful.models.sounds.transcriber:Transcriber",
        "heedful.pipelines.sounds.transcription:TranscriptionPipeline",
    ),
    "causal_lm": ModelKind(
        "language model",
        "heedful.models.model_spec:CausalLMSpec",
        "heedful.models.causal_lm:CausalLM",
        "heedful.pipelines.text_generation:GenerationPipeline",
    ),
    "encoder": ModelKind(
        "encoder of text",
        "heedful.models.encoder_spec:EncoderSpec",
        "heedful.models.encoder:EncoderModel",
        "heedful.pipelines.text_encoding:EncoderPipeline",
    ),
    "vision": ModelKind(
        "encoder of images",
        "heedful.models.images.vision_spec:VisionSpec",
        "heedful.models.images.vision:VisionModel",
        "heedful.pipelines.image_classification:ImagePipeline",
    ),
    "autoencoder": ModelKind(
        "autoencoder of images",
        "heedful.models.images.autoencoder_spec:AutoencoderSpec",
        "heedful.models.images.autoencoder:Autoencoder",
        "heedful.pipelines.image_codes:CodePipeline",
    ),
    "two_towers": ModelKind(
        "encoder of images and texts",
        "heedful.models.images.two_towers_spec:TwoTowersSpec",
        "heedful.models.images.two_towers:TwoTowers",
        "heedful.pipelines.image_text_matching:TwoTowersPipeline",
    ),
    "denoiser": ModelKind(
        "denoiser of images",
        "heedful.models.images.vision_spec:DenoiserSpec",
        "heedful.models.images.denoiser:Denoiser",
        "heedful.pipelines.image_drawing:DrawingPipeline",
    ),
    "resnet": ModelKind(
        "residual network of images",
        "heedful.models.images.resnet_spec:ResNetSpec",
        "heedful.models.images.resnet:ResNet",
        "heedful.pipelines.image_classification:ImagePipeline",
    ),
}
"""All kinds of models, by the `kind` of their specs."""


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
    if not isinstance(kind, str) or kind not in MODEL_KINDS:
        raise ModelError(
            f"No kind of model is called {kind!r}",
            where=where,
            remedy=suggest(str(kind), MODEL_KINDS),
        )
    spec: ModelSpec = resolve_name(MODEL_KINDS[kind].spec).parse(values, where=where)
    return spec
