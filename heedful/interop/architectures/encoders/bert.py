"""BERT (Devlin 2019), and encoders with its structure under other names, such as RoBERTa."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from heedful.config import Activation, PlainActivation
from heedful.interop.architecture import Architecture, Names
from heedful.interop.config_fields import ACTIVATION_NAMES, ACTIVATIONS, Fields, write_labels
from heedful.interop.rewrites import (
    one_segment,
    padding_row,
    scaled_embeddings,
    tabled_positions,
)
from heedful.interop.tensor_table import (
    AFFINE,
    RepeatedTensor,
    Rule,
    Table,
    renamed,
    repeated,
    same,
)
from heedful.models.encoder_spec import EncoderSpec, HeadSpec, MaskedLMHeadSpec

# Files of a pre-trained model often hold these heads although config.json names a class without
# them: `bert-base-uncased` says BertForMaskedLM and has the next-sentence head too.
_PRETRAINED = ("masked_lm", "next_sentence")
# An encoder trained here has a scale, no segments, and positions from the first row on.
_REWRITES = (scaled_embeddings, tabled_positions, one_segment, padding_row)
_LAYER = {
    "attention.self.query": "self_attention.query",
    "attention.self.key": "self_attention.key",
    "attention.self.value": "self_attention.value",
    "attention.output.dense": "self_attention.output",
    "attention.output.LayerNorm": "self_attention_norm",
    "intermediate.dense": "feedforward.up",
    "output.dense": "feedforward.down",
    "output.LayerNorm": "feedforward_norm",
}
_PRE_NORM_LAYER = {
    theirs.replace("attention.output.LayerNorm", "attention.self_attn_layer_norm").replace(
        "output.LayerNorm", "LayerNorm"
    ): ours
    for theirs, ours in _LAYER.items()
}


@dataclass(frozen=True)
class BertNames:
    """Names and settings in which encoders with the structure of BERT differ.

    Args:
        model_type: name of the architecture in config.json.
        classes: kinds of heads, in alphabetical order, by class of transformers.
        prefix: prefix of the encoder's tensors in classes with heads.
        head_layers: names of a head's layers in the files by our names, for each kind of head.
        vocabulary: module with the bias of the masked language model's logits.
        sequence_source: state that labels of a text are predicted from.
        lm_activation: activation of the masked language model's head; the encoder's if None.
        padding_rows: flag of a position table with unused rows up to that of the padding id.
        pre_norm: flag of norms before the sub-layers and after the stack, and of none of the
            embeddings.
        keys: their names of settings that they call otherwise than BERT, by BERT's names.
        layers: name of the layers.
        layer: our names of a layer's modules by their names.
        segments: flag of embeddings of segments.
        plain_vocabulary: flag of an output layer that is a linear map, whose weights and bias are
            its own tensors.
        relative: tensor with the biases of distances that all layers share; None without one.
        sequence_activation: activation of a head that labels texts by the first state.
        sequence_dropout: name of the dropout of heads.
        projection: map of embeddings of another width to the model's; None without such a setting.
        always_projected: flag of a map where the two widths are equal, too.
        pooler: name of the pooler's map; None for encoders without one.
        shares_layers: flag of one layer's weights for all layers.
        fixed: settings with the only value that is read, which is also that of a missing one.
        usual: values of missing settings that are not BERT's, by BERT's names.
        fixed_epsilon: epsilon of norms where no setting has it.
        inert: settings without effect.
    """

    model_type: str
    classes: Mapping[str, tuple[str, ...]]
    prefix: str
    head_layers: Mapping[str, Mapping[str, str]]
    vocabulary: str
    sequence_source: Literal["pooled", "first"]
    lm_activation: PlainActivation | None
    padding_rows: bool
    pre_norm: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    layers: str = "encoder.layer"
    layer: Mapping[str, str] = field(default_factory=lambda: _LAYER)
    segments: bool = True
    plain_vocabulary: bool = False
    relative: str | None = None
    sequence_activation: PlainActivation | Literal["tanh"] = "tanh"
    sequence_dropout: str = "classifier_dropout"
    projection: str | None = None
    always_projected: bool = False
    pooler: str | None = "pooler.dense"
    shares_layers: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=dict)
    fixed_epsilon: float | None = None
    inert: tuple[str, ...] = ()

    def architecture(self) -> Architecture[EncoderSpec]:
        """Return the architecture with these names."""
        return Architecture(
            model_type=self.model_type,
            kind="encoder",
            read=self._read,
            write=self._write,
            tensors=self._table,
            missing=self._missing,
            compared=self._compared,
            rewrites=_REWRITES if self.pre_norm else (),
            classes=tuple(self.classes),
            # Read where a head predicts tokens.
            inert=("tie_word_embeddings", *self.inert),
        )

    def _read(self, fields: Fields, names: Names) -> EncoderSpec:
        # Relative keys (Shaw 2018) have tables in every layer that no rule here converts.
        fields.refuse_unless("position_embedding_type", ("absolute",), "absolute")
        fields.refuse_unless("is_decoder", (False,), False)
        fields.refuse_unless("add_cross_attention", (False,), False)
        # Pruned checkpoints have smaller matrices in some layers.
        fields.refuse_unless("pruned_heads", ({},), {})
        for name, value in self.fixed.items():
            fields.refuse_unless(name, [value], value)
        kinds, key = self._head_kinds(fields, names), self._key
        # Fairseq's convention: the first token has the position after the padding id, 2 in RoBERTa.
        unused_rows = fields.integer("pad_token_id", 1) + 1 if self.padding_rows else 0
        if self.padding_rows and unused_rows < 1:
            raise fields.wrong("pad_token_id", "positions are numbered from the one after it")
        length = fields.integer(key("max_position_embeddings")) - unused_rows
        dropout = self._number(fields, "hidden_dropout_prob", 0.1)
        norm = {"epsilon": self._epsilon(fields)}
        width = fields.integer(key("hidden_size"))
        plain = {
            "width": width,
            "vocabulary": fields.integer("vocab_size"),
            "embedding": {
                # Unlike the Transformer of 2017, BERT does not multiply embeddings by sqrt(D).
                "scale": False,
                "num_segments": self._read_segments(fields),
                "positions": {"kind": "learned", "max_length": length, "unused_rows": unused_rows},
                "norm": None if self.pre_norm else norm,
                "width": self._embedding_width(fields, width),
                "dropout": dropout,
            },
            "encoder": {
                "num_layers": fields.integer(key("num_hidden_layers")),
                "final_norm": norm if self.pre_norm else None,
                "shared_position_bias": self._read_relative(fields),
                "block": {
                    "norm": norm,
                    "norm_placement": "pre" if self.pre_norm else "post",
                    "self_attention": {
                        "num_heads": fields.integer(key("num_attention_heads")),
                        "dropout": self._number(fields, "attention_probs_dropout_prob", 0.1),
                    },
                    "feedforward": {
                        "width": fields.integer(key("intermediate_size")),
                        "activation": self._activation(fields),
                    },
                    "dropout": dropout,
                },
            },
            "pooler": self._has_pooler(kinds, names),
            "heads": [self._read_head(fields, kind) for kind in kinds],
            "max_length": length,
        }
        return EncoderSpec.parse(plain, where=fields.where)

    def _read_segments(self, fields: Fields) -> int | None:
        if not self.segments:
            return None
        # DeBERTa writes 0 for no segments.
        return fields.integer("type_vocab_size", self.usual.get("type_vocab_size", 2)) or None

    def _embedding_width(self, fields: Fields, width: int) -> int | None:
        if self.projection is None:
            return None
        own = fields.integer("embedding_size", 128)
        return own if self.always_projected or own != width else None

    def _epsilon(self, fields: Fields) -> float:
        return self.fixed_epsilon or self._number(fields, "layer_norm_eps", 1e-12)

    def _number(self, fields: Fields, name: str, default: float) -> float:
        return fields.number(self._key(name), self.usual.get(name, default))

    def _activation(self, fields: Fields) -> Activation:
        usual = self.usual.get("hidden_act", "gelu")
        return fields.choice(self._key("hidden_act"), ACTIVATIONS, usual)

    def _key(self, name: str) -> str:
        """Return their name of a setting that BERT calls by a name."""
        return self.keys.get(name, name)

    def _read_relative(self, fields: Fields) -> dict[str, Any] | None:
        """Return the biases of distances, in T5's buckets; None without them."""
        if self.relative is None:
            return None
        return {"kind": "t5", "num_buckets": fields.integer("relative_attention_num_buckets", 32)}

    def _head_kinds(self, fields: Fields, names: Names) -> tuple[str, ...]:
        """Return the kinds of heads of the class, and of other heads among the tensors."""
        written = fields.texts("architectures")
        kinds = set(self.classes[written[0]]) if written else set()
        for kind in _PRETRAINED:
            layers = self.head_layers.get(kind, {})
            # Tensors that no rule names are an error, so heads that are present must be in the
            # spec.
            if any(f"{layer}.weight" in names for layer in layers.values()):
                kinds.add(kind)
        return tuple(sorted(kinds))

    def _has_pooler(self, kinds: Names, names: Names) -> bool:
        if self.pooler is None:
            return False
        if names:
            # `add_pooling_layer` is an argument of the class, not a field of the config.
            return any(name.endswith(f"{self.pooler}.weight") for name in names)
        pooled = "sequence" in kinds and self.sequence_source == "pooled"
        return not kinds or pooled or "next_sentence" in kinds

    def _read_head(self, fields: Fields, kind: str) -> dict[str, Any]:
        head: dict[str, Any] = {"kind": kind}
        if kind == "masked_lm":
            encoder_activation = self._activation(fields)
            # RoBERTa's head calls GELU whatever `hidden_act` says; BERT's uses `hidden_act`.
            head["activation"] = self.lm_activation or encoder_activation
            head["norm"] = {"epsilon": self._epsilon(fields)}
            head["tied"] = fields.flag("tie_word_embeddings", True)
        if kind == "sequence":
            # Regression and multi-label heads have the same tensors and another meaning of the
            # logits.
            fields.refuse_unless("problem_type", (None, "single_label_classification"), None)
            head["source"] = self.sequence_source
            head["activation"] = self.sequence_activation
        if kind in ("sequence", "token"):
            head["labels"] = fields.labels()
            # A null or missing `classifier_dropout` means the dropout of the hidden layers.
            hidden = self._number(fields, "hidden_dropout_prob", 0.1)
            head["dropout"] = fields.number(self.sequence_dropout, hidden)
        return head

    def _write(self, spec: EncoderSpec) -> dict[str, Any]:
        block, positions = spec.encoder.block, spec.embedding.positions
        kinds = tuple(head.kind for head in spec.heads)
        # Positions that are no table have no number; reading back then shows that they are none.
        length = positions.max_length or spec.max_length or 512
        config: dict[str, Any] = {
            # Empty for a combination of heads that no class has; `differences` then reports them.
            "architectures": [name for name, heads in self.classes.items() if heads == kinds],
            "vocab_size": spec.vocabulary,
            "hidden_size": spec.width,
            "num_hidden_layers": spec.encoder.num_layers,
            "num_attention_heads": block.self_attention.num_heads,
            "intermediate_size": block.feedforward.width,
            "hidden_act": ACTIVATION_NAMES.get(block.feedforward.activation),
            "hidden_dropout_prob": block.dropout,
            "attention_probs_dropout_prob": block.self_attention.dropout,
            "max_position_embeddings": length + positions.unused_rows,
            "type_vocab_size": spec.embedding.num_segments,
            "layer_norm_eps": block.norm.epsilon,
        }
        config = {self._key(name): value for name, value in config.items()} | dict(self.fixed)
        if not self.segments:
            del config["type_vocab_size"]
        if self.fixed_epsilon is not None:
            del config["layer_norm_eps"]
        if self.projection is not None:
            config["embedding_size"] = spec.embedding.width or spec.width
        bias = spec.encoder.shared_position_bias
        if self.relative is not None and bias is not None and bias.kind == "t5":
            config["relative_attention_num_buckets"] = bias.num_buckets
        if self.padding_rows:
            # The table's offset is not stored; transformers derives it from the padding id.
            config["pad_token_id"] = max(positions.unused_rows - 1, 0)
        for head in spec.heads:
            config |= self._write_head(head)
        return config

    def _write_head(self, head: HeadSpec) -> dict[str, Any]:
        if head.kind == "masked_lm":
            return {"tie_word_embeddings": head.tied}
        if head.kind == "sequence" or head.kind == "token":
            return {self.sequence_dropout: head.dropout, **write_labels(head.labels)}
        return {}

    def _compared(self, spec: EncoderSpec) -> EncoderSpec:
        """Return a spec as config.json can say it: whether to answer is a matter of a search."""
        heads = tuple(
            head.model_copy(update={"unanswerable": False}) if head.kind == "span" else head
            for head in spec.heads
        )
        spec = spec.model_copy(update={"heads": heads})
        # An encoder trained here has a position more than its longest text, for the end token.
        length = spec.embedding.positions.max_length
        return spec.model_copy(update={"max_length": length}) if self.pre_norm else spec

    def _missing(self, spec: EncoderSpec) -> list[str]:
        return [
            f"it has no {head.kind} head"
            for head in spec.heads
            if head.kind not in self.head_layers
        ]

    def _table(self, spec: EncoderSpec, names: Names) -> Table:
        # Classes with heads hold the encoder as an attribute, the bare encoder has no prefix.
        prefix = self.prefix if spec.heads else ""
        if names:
            prefix = self.prefix if any(name.startswith(self.prefix) for name in names) else ""
        embeddings = f"{prefix}embeddings."
        rules = [same(f"{embeddings}word_embeddings.weight", "embedding.weight")]
        if spec.embedding.positions.kind == "learned":
            ours = "input.positions.weight"
            rules.append(same(f"{embeddings}position_embeddings.weight", ours))
        if spec.embedding.num_segments is not None:
            rules.append(same(f"{embeddings}token_type_embeddings.weight", "input.segments.weight"))
        if self.relative is not None:
            ours = "encoder.position_bias.weight"
            rules.append(same(f"{prefix}{self.relative}.weight", ours))
        if self.pre_norm:
            stack = {"LayerNorm": "encoder.final_norm"}
            rules += renamed(stack, theirs=f"{prefix}encoder.")
        else:
            rules += renamed({"LayerNorm": "input.norm"}, theirs=embeddings)
        if spec.embedding.width is not None:
            rules += renamed({self.projection or "": "input.projection"}, theirs=prefix)
        layer = _PRE_NORM_LAYER if self.pre_norm else self.layer
        blocks = [f"encoder.blocks.{number}." for number in range(spec.encoder.num_layers)]
        if self.shares_layers:
            rules += [
                repeated(
                    f"{prefix}{self.layers}.{name}.{part}", [f"{b}{own}.{part}" for b in blocks]
                )
                for name, own in layer.items()
                for part in AFFINE
            ]
        for number, ours in enumerate(() if self.shares_layers else blocks):
            rules += renamed(layer, theirs=f"{prefix}{self.layers}.{number}.", ours=ours)
        if spec.pooler:
            rules += renamed({self.pooler or "": "pooler.dense"}, theirs=prefix)
        copies: tuple[RepeatedTensor, ...] = ()
        # Older versions saved these buffers of the numbers 0, 1, 2 ….
        ignored: tuple[str, ...] = (r"(\w+\.)?embeddings\.(position|token_type)_ids",)
        for head in spec.heads:
            # A head without names is among what is `missing`, and has no tensors to name.
            names_of = self.head_layers.get(head.kind, {})
            layers = {theirs: ours for ours, theirs in names_of.items()}
            rules += renamed(layers, ours=f"heads.{head.kind}.")
            if head.kind == "masked_lm":
                find = _plain_vocabulary if self.plain_vocabulary else _vocabulary_table
                last = find(head, self.vocabulary, prefix, names)
                rules += last.rules
                copies, ignored = last.copies, (*ignored, *last.ignored)
        # TensorFlow's names, which the first PyTorch conversions of 2018 kept.
        if any(name.endswith("LayerNorm.gamma") for name in names):
            rules = [_with_first_norm_names(rule) for rule in rules]
        return Table(tuple(rules), copies, ignored)


def _vocabulary_table(head: MaskedLMHeadSpec, module: str, prefix: str, names: Names) -> Table:
    """Return the rules of the masked language model's output layer, whose bias files hold twice."""
    weight, bias, other = f"{module}.decoder.weight", f"{module}.decoder.bias", f"{module}.bias"
    ours = "heads.masked_lm"
    if head.tied:
        copies = (
            RepeatedTensor(weight, f"{prefix}embeddings.word_embeddings.weight"),
            RepeatedTensor(bias, other),
        )
        return Table((same(other, f"{ours}.bias"),), copies)
    projection = same(weight, f"{ours}.projection.weight")
    if not names:
        return Table(
            (projection, same(bias, f"{ours}.bias")), (RepeatedTensor(other, bias, written=True),)
        )
    if bias not in names:
        return Table((projection, same(other, f"{ours}.bias")))
    # An untied head has two biases: `decoder.bias` is added; the other one is not used or trained,
    # so the two may differ.
    return Table((projection, same(bias, f"{ours}.bias")), ignored=(other.replace(".", r"\."),))


def _plain_vocabulary(head: MaskedLMHeadSpec, module: str, prefix: str, names: Names) -> Table:
    """Return the rules of an output layer that is one linear map."""
    weight, ours = f"{module}.weight", "heads.masked_lm"
    bias = same(f"{module}.bias", f"{ours}.bias")
    if head.tied:
        table = f"{prefix}embeddings.word_embeddings.weight"
        return Table((bias,), (RepeatedTensor(weight, table),))
    return Table((same(weight, f"{ours}.projection.weight"), bias))


def _with_first_norm_names(rule: Rule) -> Rule:
    """Return the rule for files of 2018, with gamma and beta instead of weight and bias."""
    (name,), (ours,) = rule.theirs, rule.ours
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return same(name.replace("LayerNorm.bias", "LayerNorm.beta"), ours)


NAMES = BertNames(
    model_type="bert",
    classes={
        "BertModel": (),
        "BertForMaskedLM": ("masked_lm",),
        "BertForPreTraining": ("masked_lm", "next_sentence"),
        "BertForNextSentencePrediction": ("next_sentence",),
        "BertForSequenceClassification": ("sequence",),
        "BertForTokenClassification": ("token",),
        "BertForQuestionAnswering": ("span",),
    },
    prefix="bert.",
    head_layers={
        "masked_lm": {
            "dense": "cls.predictions.transform.dense",
            "norm": "cls.predictions.transform.LayerNorm",
        },
        "next_sentence": {"output": "cls.seq_relationship"},
        "sequence": {"output": "classifier"},
        "token": {"output": "classifier"},
        "span": {"output": "qa_outputs"},
    },
    vocabulary="cls.predictions",
    # [CLS] through the pooler's dense layer and tanh, which was trained on next sentences.
    sequence_source="pooled",
    lm_activation=None,
    padding_rows=False,
)

ARCHITECTURE = NAMES.architecture()
