"""DeBERTa 2 and 3 (He 2021): BERT whose contents meet distances in both directions.

All layers there read one table of distances, and in version 3 project it as they project contents.
Here each layer has copies, so a DeBERTa that was trained further is refused as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from heedful.interop.architecture import Names
from heedful.interop.architectures.encoders.bert import NAMES, BertNames
from heedful.interop.config_fields import Fields
from heedful.interop.tensor_table import AFFINE, Rule, Table, prefix_of, renamed, repeated
from heedful.models.encoder_spec import EncoderSpec
from heedful.nn.bias_spec import DisentangledSpec
from heedful.nn.spec import PositionSpec

_Term = Literal["content_to_position", "position_to_content"]
_TERMS: Mapping[str, _Term] = {"c2p": "content_to_position", "p2c": "position_to_content"}
_BIAS = "self_attention.position_bias"
# Names of the maps of distances where they are not those of contents.
_OWN_MAPS = {"key": "pos_key_proj", "query": "pos_query_proj"}


@dataclass(frozen=True)
class DebertaNames(BertNames):
    """Names and settings of DeBERTa, beside those of BERT."""

    def _read(self, fields: Fields, names: Names) -> EncoderSpec:
        fields.refuse_unless("relative_attention", [True], False)
        # The head with its own name for the vocabulary; a convolution beside the first layer; and a
        # map of embeddings before their norm.
        fields.refuse_unless("legacy", [True], True)
        fields.refuse_unless("conv_kernel_size", [0], 0)
        width = fields.integer("hidden_size")
        fields.refuse_unless("embedding_size", [width], width)
        fields.refuse_unless("pooler_hidden_act", ["gelu"], "gelu")
        fields.refuse_unless("pooler_hidden_size", [width], width)
        spec = super()._read(fields, names)
        bias = self._read_bias(fields)
        embedding = spec.embedding
        if not fields.flag("position_biased_input", True):
            embedding = embedding.model_copy(update={"positions": PositionSpec(kind="none")})
        terms = 3 if bias.terms == "both" else 2

        def with_bias(attention: Any) -> Any:
            scale = (terms * attention.width_of_heads(width)) ** -0.5
            return attention.model_copy(update={"position_bias": bias, "scale": scale})

        stack = spec.encoder.with_attentions(with_bias)
        return spec.model_copy(update={"embedding": embedding, "encoder": stack})

    def _read_bias(self, fields: Fields) -> DisentangledSpec:
        written = fields.get("pos_att_type")
        kinds = written.split("|") if isinstance(written, str) else fields.texts("pos_att_type")
        found = sorted({kind.strip().lower() for kind in kinds})
        if not found or not set(found) <= _TERMS.keys():
            raise fields.wrong("pos_att_type", "c2p, p2c or both are needed")
        farthest = fields.integer("max_relative_positions", -1)
        if farthest < 1:
            farthest = fields.integer("max_position_embeddings", 512)
        buckets = fields.integer("position_buckets", -1)
        norms = [each.strip() for each in fields.text("norm_rel_ebd", "none").lower().split("|")]
        return DisentangledSpec(
            num_buckets=buckets if buckets > 0 else farthest,
            max_distance=farthest if buckets > 0 else None,
            norm_epsilon=self._epsilon(fields) if "layer_norm" in norms else None,
            terms="both" if len(found) == 2 else _TERMS[found[0]],
        )

    def _write(self, spec: EncoderSpec) -> dict[str, Any]:
        config, bias = super()._write(spec), _bias_of(spec)
        kinds = [name for name, term in _TERMS.items() if bias.terms in (term, "both")]
        return config | {
            "type_vocab_size": spec.embedding.num_segments or 0,
            "position_biased_input": spec.embedding.positions.kind == "learned",
            "relative_attention": True,
            "pos_att_type": kinds,
            "position_buckets": -1 if bias.max_distance is None else bias.num_buckets,
            "max_relative_positions": bias.max_distance or bias.num_buckets,
            "norm_rel_ebd": "none" if bias.norm_epsilon is None else "layer_norm",
            # Without maps of their own the distances would need those of contents.
            "share_att_key": False,
            "pooler_hidden_act": "gelu",
            "pooler_hidden_size": spec.width,
        }

    def _table(self, spec: EncoderSpec, names: Names) -> Table:
        table, bias = super()._table(spec, names), _bias_of(spec)
        prefix = prefix_of(names, self.prefix) if names or spec.heads else ""
        blocks = [f"encoder.blocks.{number}." for number in range(spec.encoder.num_layers)]
        stack, biases = f"{prefix}encoder.", [f"{block}{_BIAS}" for block in blocks]
        tables = [f"{own}.weight" for own in biases]
        rules: list[Rule] = [repeated(f"{stack}rel_embeddings.weight", tables)]
        if bias.norm_epsilon is not None:
            rules += [
                repeated(f"{stack}LayerNorm.{part}", [f"{own}.norm.{part}" for own in biases])
                for part in AFFINE
            ]
        maps = {"key": "content_to_position", "query": "position_to_content"}
        shares = bool(names) and not any(
            own in name for name in names for own in _OWN_MAPS.values()
        )
        for number, block in enumerate(blocks):
            theirs = f"{stack}layer.{number}.attention.self."
            for name, term in maps.items():
                if bias.terms not in (term, "both"):
                    continue
                own = f"{block}{_BIAS}.{name}"
                if not shares:
                    rules += renamed({_OWN_MAPS[name]: own}, theirs=theirs)
                    continue
                rules += [
                    repeated(
                        f"{theirs}{name}_proj.{part}",
                        [f"{block}self_attention.{name}.{part}", f"{own}.{part}"],
                    )
                    for part in AFFINE
                ]
        made = {name for rule in rules for name in rule.ours}
        kept = tuple(rule for rule in table.rules if not made.intersection(rule.ours))
        return replace(table, rules=(*kept, *rules))


def _bias_of(spec: EncoderSpec) -> DisentangledSpec:
    """Return the bias of a model; a default one, which differs, of a model with another."""
    bias: Any = spec.encoder.block.self_attention.position_bias
    return bias if bias is not None and bias.kind == "disentangled" else DisentangledSpec()


ARCHITECTURE = DebertaNames(
    model_type="deberta-v2",
    classes={
        "DebertaV2Model": (),
        "DebertaV2ForMaskedLM": ("masked_lm",),
        "DebertaV2ForSequenceClassification": ("sequence",),
        "DebertaV2ForTokenClassification": ("token",),
        "DebertaV2ForQuestionAnswering": ("span",),
    },
    prefix="deberta.",
    head_layers={
        "masked_lm": NAMES.head_layers["masked_lm"],
        "sequence": {"dense": "pooler.dense", "output": "classifier"},
        "token": {"output": "classifier"},
        "span": {"output": "qa_outputs"},
    },
    vocabulary="cls.predictions",
    sequence_source="first",
    sequence_activation="gelu",
    sequence_dropout="cls_dropout",
    lm_activation=None,
    padding_rows=False,
    layer={
        "attention.self.query_proj": "self_attention.query",
        "attention.self.key_proj": "self_attention.key",
        "attention.self.value_proj": "self_attention.value",
        "attention.output.dense": "self_attention.output",
        "attention.output.LayerNorm": "self_attention_norm",
        "intermediate.dense": "feedforward.up",
        "output.dense": "feedforward.down",
        "output.LayerNorm": "feedforward_norm",
    },
    pooler=None,
    usual={"layer_norm_eps": 1e-7, "type_vocab_size": 0},
    # Whether there are maps of distances is read from the tensors; dropout.
    inert=("share_att_key", "pooler_dropout", "cls_dropout"),
).architecture()
