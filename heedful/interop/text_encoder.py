"""What directories of BERT's build have in common: BERT (Devlin 2019) and RoBERTa (Liu 2019).

They are one encoder under one set of names. A `Family` holds what an architecture has of its own:
the names of its classes and heads, and how its positions are numbered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from heedful.interop.fields import ACTIVATION_NAMES, ACTIVATIONS, Fields
from heedful.interop.fitting import misfits
from heedful.interop.table import Copy, Rule, Table, same
from heedful.models.family import (
    EncoderSpec,
    HeadSpec,
    MaskedLMHeadSpec,
    ModelSpec,
    SequenceHeadSpec,
    TokenHeadSpec,
)
from heedful.nn.kinds import PlainActivation

Names = Collection[str]

# Files of a pre-trained model often hold these heads although config.json names a class without.
_PRETRAINED = ("masked_lm", "next_sentence")


@dataclass(frozen=True)
class Family:
    """One architecture of this build.

    Args:
        model_type: its name in config.json.
        classes: its classes and the kinds of heads of each, in alphabetical order.
        prefix: what classes with heads put before the encoder's names.
        head_layers: for each kind of head, our names of its layers and theirs.
        vocabulary: their module that holds the bias of each piece's score.
        sequence_source: what labels of a text are predicted from.
        lm_activation: the masked language model's activation; the encoder's if None.
        padding_rows: the position table begins with unused rows, up to that of the padding id.
    """

    model_type: str
    classes: Mapping[str, tuple[str, ...]]
    prefix: str
    head_layers: Mapping[str, Mapping[str, str]]
    vocabulary: str
    sequence_source: Literal["pooled", "first"]
    lm_activation: PlainActivation | None
    padding_rows: bool

    def read_config(
        self, config: Mapping[str, Any], *, where: str, names: Names = ()
    ) -> EncoderSpec:
        """The spec that a config.json describes.

        Args:
            config: its content.
            where: the file, for error messages.
            names: the tensors' names. A configuration does not tell whether there is a pooler, nor
                of heads that its class has not; without names it is as in the class.

        Raises:
            ModelError: when something in it has no counterpart here.
            ConfigError: when a size or a probability is out of its range.
        """
        fields = Fields(config, where)
        _refuse_what_differs(fields)
        kinds = self._head_kinds(fields, names)
        unused_rows = _rows_to_padding(fields) if self.padding_rows else 0
        length = fields.integer("max_position_embeddings") - unused_rows
        dropout = fields.number("hidden_dropout_prob", 0.1)
        norm = {"epsilon": fields.number("layer_norm_eps", 1e-12)}
        plain = {
            "width": fields.integer("hidden_size"),
            "vocabulary": fields.integer("vocab_size"),
            "embedding": {
                "scale": False,
                "num_segments": fields.integer("type_vocab_size", 2),
                "positions": {"kind": "learned", "max_length": length, "unused_rows": unused_rows},
                "norm": norm,
                "dropout": dropout,
            },
            "encoder": {
                "num_layers": fields.integer("num_hidden_layers"),
                "block": {
                    "norm": norm,
                    "self_attention": {
                        "num_heads": fields.integer("num_attention_heads"),
                        "dropout": fields.number("attention_probs_dropout_prob", 0.1),
                    },
                    "feedforward": {
                        "width": fields.integer("intermediate_size"),
                        "activation": fields.choice("hidden_act", ACTIVATIONS, "gelu"),
                    },
                    "dropout": dropout,
                },
            },
            "pooler": self._has_pooler(kinds, names),
            "heads": [self._read_head(fields, kind) for kind in kinds],
            "max_length": length,
        }
        return EncoderSpec.parse(plain, where=where)

    def write_config(self, spec: EncoderSpec) -> dict[str, Any]:
        """A config.json of a spec that `fits`; of another spec, one that says less."""
        block, positions = spec.encoder.block, spec.embedding.positions
        kinds = tuple(head.kind for head in spec.heads)
        config: dict[str, Any] = {
            "architectures": [name for name, heads in self.classes.items() if heads == kinds],
            "model_type": self.model_type,
            "vocab_size": spec.vocabulary,
            "hidden_size": spec.width,
            "num_hidden_layers": spec.encoder.num_layers,
            "num_attention_heads": block.self_attention.num_heads,
            "intermediate_size": block.feedforward.width,
            "hidden_act": ACTIVATION_NAMES.get(block.feedforward.activation),
            "hidden_dropout_prob": block.dropout,
            "attention_probs_dropout_prob": block.self_attention.dropout,
            "max_position_embeddings": (positions.max_length or 0) + positions.unused_rows,
            "type_vocab_size": spec.embedding.num_segments,
            "layer_norm_eps": block.norm.epsilon,
        }
        if self.padding_rows:
            config["pad_token_id"] = positions.unused_rows - 1
        for head in spec.heads:
            config |= _write_head(head)
        return config

    def differences(self, spec: ModelSpec) -> list[str] | None:
        """What of a spec `write_config` cannot say; None for another kind of model."""
        if not isinstance(spec, EncoderSpec):
            return None
        homeless = [head.kind for head in spec.heads if head.kind not in self.head_layers]
        if homeless:
            return [f"it has no {kind} head" for kind in homeless]
        names = [name for rule in self.table(spec).rules for name in rule.theirs]
        config = self.write_config(spec)
        return misfits(spec, lambda: self.read_config(config, where="", names=names))

    def fits(self, spec: ModelSpec) -> bool:
        """Whether `write_config` can say all of a spec: read again, it gives the same spec."""
        return self.differences(spec) == []

    def table(self, spec: EncoderSpec, names: Names = ()) -> Table:
        """All tensors of a model.

        Args:
            spec: of the model.
            names: theirs, which tell the prefix and what norms are called; () for an export.
        """
        prefix = self.prefix if spec.heads else ""
        if names:
            prefix = self.prefix if any(name.startswith(self.prefix) for name in names) else ""
        rules = _embedding_rules(prefix)
        for layer in range(spec.encoder.num_layers):
            rules += _layer_rules(f"{prefix}encoder.layer.{layer}.", f"encoder.blocks.{layer}.")
        if spec.pooler:
            rules += _affine(f"{prefix}pooler.dense", "pooler.dense")
        copies: tuple[Copy, ...] = ()
        ignored: tuple[str, ...] = (r"(\w+\.)?embeddings\.(position|token_type)_ids",)
        for head in spec.heads:
            for ours, theirs in self.head_layers[head.kind].items():
                rules += _affine(theirs, f"heads.{head.kind}.{ours}")
            if isinstance(head, MaskedLMHeadSpec):
                last = _vocabulary_table(head, self.vocabulary, prefix, names)
                rules += last.rules
                copies, ignored = last.copies, (*ignored, *last.ignored)
        if any(name.endswith("LayerNorm.gamma") for name in names):
            rules = [_with_first_norm_names(rule) for rule in rules]
        return Table(tuple(rules), copies, ignored)

    def _head_kinds(self, fields: Fields, names: Names) -> tuple[str, ...]:
        written = fields.texts("architectures")
        if len(written) > 1 or any(name not in self.classes for name in written):
            raise fields.wrong("architectures", f"Heedful reads one of {', '.join(self.classes)}")
        kinds = set(self.classes[written[0]]) if written else set()
        for kind in _PRETRAINED:
            layers = self.head_layers.get(kind, {})
            if any(f"{layer}.weight" in names for layer in layers.values()):
                kinds.add(kind)
        return tuple(sorted(kinds))

    def _has_pooler(self, kinds: Names, names: Names) -> bool:
        if names:
            return any(name.endswith("pooler.dense.weight") for name in names)
        pooled = "sequence" in kinds and self.sequence_source == "pooled"
        return not kinds or pooled or "next_sentence" in kinds

    def _read_head(self, fields: Fields, kind: str) -> dict[str, Any]:
        head: dict[str, Any] = {"kind": kind}
        if kind == "masked_lm":
            encoder_activation = fields.choice("hidden_act", ACTIVATIONS, "gelu")
            head["activation"] = self.lm_activation or encoder_activation
            head["norm"] = {"epsilon": fields.number("layer_norm_eps", 1e-12)}
            head["tied"] = fields.flag("tie_word_embeddings", True)
        if kind == "sequence":
            fields.refuse_unless("problem_type", (None, "single_label_classification"), None)
            head["source"] = self.sequence_source
        if kind in ("sequence", "token"):
            head["labels"] = fields.labels()
            hidden = fields.number("hidden_dropout_prob", 0.1)
            head["dropout"] = fields.number("classifier_dropout", hidden)
        return head


def _refuse_what_differs(fields: Fields) -> None:
    fields.refuse_unless("position_embedding_type", ("absolute",), "absolute")
    fields.refuse_unless("is_decoder", (False,), False)
    fields.refuse_unless("add_cross_attention", (False,), False)
    fields.refuse_unless("pruned_heads", ({},), {})


def _rows_to_padding(fields: Fields) -> int:
    padding = fields.integer("pad_token_id", 1)
    if padding < 0:
        raise fields.wrong("pad_token_id", "positions are numbered from the one after it")
    return padding + 1


def _write_head(head: HeadSpec) -> dict[str, Any]:
    if isinstance(head, MaskedLMHeadSpec):
        return {"tie_word_embeddings": head.tied}
    if isinstance(head, SequenceHeadSpec | TokenHeadSpec):
        return {
            "classifier_dropout": head.dropout,
            "id2label": {str(id): label for id, label in enumerate(head.labels)},
            "label2id": {label: id for id, label in enumerate(head.labels)},
        }
    return {}


def _vocabulary_table(head: MaskedLMHeadSpec, module: str, prefix: str, names: Names) -> Table:
    """The last layer of a masked language model, of which files hold a part twice."""
    weight, bias, other = f"{module}.decoder.weight", f"{module}.decoder.bias", f"{module}.bias"
    ours = "heads.masked_lm"
    if head.tied:
        copies = (Copy(weight, of=f"{prefix}embeddings.word_embeddings.weight"), Copy(bias, other))
        return Table((same(other, f"{ours}.bias"),), copies)
    projection = same(weight, f"{ours}.projection.weight")
    if not names:
        return Table((projection, same(bias, f"{ours}.bias")), (Copy(other, bias, written=True),))
    if bias not in names:
        return Table((projection, same(other, f"{ours}.bias")))
    # Of an untied head's two biases this one is added; the other is a leftover that training
    # does not touch, so they may differ.
    return Table((projection, same(bias, f"{ours}.bias")), ignored=(other.replace(".", r"\."),))


def _with_first_norm_names(rule: Rule) -> Rule:
    """For files of 2018, which say gamma and beta where later ones say weight and bias."""
    (name,), (ours,) = rule.theirs, rule.ours
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return same(name.replace("LayerNorm.bias", "LayerNorm.beta"), ours)


def _affine(theirs: str, ours: str) -> list[Rule]:
    """A weight and a bias."""
    return [same(f"{theirs}.{part}", f"{ours}.{part}") for part in ("weight", "bias")]


def _embedding_rules(prefix: str) -> list[Rule]:
    theirs = f"{prefix}embeddings."
    return [
        same(f"{theirs}word_embeddings.weight", "embedding.weight"),
        same(f"{theirs}position_embeddings.weight", "input.positions.weight"),
        same(f"{theirs}token_type_embeddings.weight", "input.segments.weight"),
        *_affine(f"{theirs}LayerNorm", "input.norm"),
    ]


def _layer_rules(theirs: str, ours: str) -> list[Rule]:
    return [
        *_affine(f"{theirs}attention.self.query", f"{ours}self_attention.query"),
        *_affine(f"{theirs}attention.self.key", f"{ours}self_attention.key"),
        *_affine(f"{theirs}attention.self.value", f"{ours}self_attention.value"),
        *_affine(f"{theirs}attention.output.dense", f"{ours}self_attention.output"),
        *_affine(f"{theirs}attention.output.LayerNorm", f"{ours}self_attention_norm"),
        *_affine(f"{theirs}intermediate.dense", f"{ours}feedforward.up"),
        *_affine(f"{theirs}output.dense", f"{ours}feedforward.down"),
        *_affine(f"{theirs}output.LayerNorm", f"{ours}feedforward_norm"),
    ]
