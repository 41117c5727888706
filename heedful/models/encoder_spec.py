"""The config tree of encoders of text and of their heads. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PlainActivation, PositiveInt, Probability
from heedful.models.model_spec import CommonSpec, Prediction, Sharing, Side
from heedful.models.stack_spec import StackSpec
from heedful.nn.spec import EmbeddingSpec, NormSpec

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

    def after(self, stack: StackSpec) -> Self:
        """Return this head for states of a stack; most heads read any."""
        return self


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
    """Predicts the label of a whole text from the state of its first or its last token."""

    kind: Literal["sequence"] = "sequence"
    labels: Labels
    source: Literal["pooled", "first", "last"] = Field(
        "pooled",
        description="input: the pooler's output, the first state through a dense layer, or the "
        "last state, which alone has seen the whole text if the mask is causal (Radford 2018)",
    )
    activation: PlainActivation | Literal["tanh"] = Field(
        "tanh", description="activation of the dense layer before the first state is classified"
    )
    dropout: Probability = 0.0

    @property
    def reads_pooled(self) -> bool:
        """True if `source` is the pooler's output."""
        return self.source == "pooled"

    def after(self, stack: StackSpec) -> Self:
        """Return this head for states of a stack: without a pooler, one that saw the whole text."""
        if self.reads_pooled:
            return self
        return self.model_copy(update={"source": "last" if stack.is_causal else "first"})


class TokenHeadSpec(CommonHeadSpec):
    """Predicts a label of each token."""

    kind: Literal["token"] = "token"
    labels: Labels
    dropout: Probability = 0.0


class SpanHeadSpec(CommonHeadSpec):
    """Predicts where an answer starts and ends (Rajpurkar 2016)."""

    kind: Literal["span"] = "span"
    unanswerable: bool = Field(False, description="predict the first token if a text has no answer")


class CTCHeadSpec(CommonHeadSpec):
    """Predicts a label or a blank, label 0, at each position (CTC, Graves 2006)."""

    kind: Literal["ctc"] = "ctc"
    vocabulary: PositiveInt = Field(description="number of labels, the blank among them")

    @property
    def num_scores(self) -> int:
        """The labels."""
        return self.vocabulary


class RewardHeadSpec(CommonHeadSpec):
    """Predicts the reward of a conversation from the state of its last token (Ouyang 2022)."""

    kind: Literal["reward"] = "reward"
    # The only token that has seen the whole text if the mask is causal.
    source: Literal["last"] = "last"
    dropout: Probability = 0.0

    @property
    def num_scores(self) -> int:
        """One."""
        return 1


HeadSpec = Annotated[
    MaskedLMHeadSpec
    | NextSentenceHeadSpec
    | SequenceHeadSpec
    | TokenHeadSpec
    | SpanHeadSpec
    | CTCHeadSpec
    | RewardHeadSpec,
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
        if self.embedding.row_size and kinds != ["ctc"]:
            raise ValueError("rows of tokens (embedding.row_size) have a ctc head, and no other")
        if self.embedding.row_size:
            self.embedding.refuse_width()
        return self

    def vocabularies(self) -> dict[Side, int]:
        """Return the vocabulary size of the tokens that are read, and of the labels of CTC."""
        head = self.head("ctc")
        written = head.num_scores if head is not None else self.vocabulary
        return {"source": self.vocabulary, "target": written}

    def with_vocabularies(self, *, source: int, target: int) -> Self:
        """Return a copy with vocabularies of these sizes; without a CTC head it takes `target`."""
        if self.head("ctc") is None:
            return super().with_vocabularies(source=source, target=target)
        heads = (CTCHeadSpec(vocabulary=target),)
        return self.model_copy(update={"vocabulary": source, "heads": heads})

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
