"""Decoders between GPT-2 and LLaMA: layer norms, plain networks, and names of their own.

GPT-J, GPT-NeoX, OPT, BLOOM, Falcon, Phi, StarCoder 2 and StableLM compute one block with other
settings. A `PlainDecoder` says what each of them calls its settings and its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heedful.config import Activation
from heedful.interop.architecture import Architecture, Names
from heedful.interop.config_fields import ACTIVATION_NAMES, ACTIVATIONS, Fields
from heedful.interop.rewrites import scaled_embeddings
from heedful.interop.tensor_table import (
    AFFINE,
    LINEAR,
    Rule,
    Table,
    output_projection,
    prefix_of,
    renamed,
    repeated,
    same,
)
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import Causal
from heedful.nn.spec import (
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
)

_MAPS = ("query", "key", "value")
LLAMA_LAYER = {
    "input_layernorm": "self_attention_norm",
    "post_attention_layernorm": "feedforward_norm",
    "self_attn.q_proj": "self_attention.query",
    "self_attn.k_proj": "self_attention.key",
    "self_attn.v_proj": "self_attention.value",
    "self_attn.o_proj": "self_attention.output",
}
"""Our names of a layer's norms and of its attention by LLaMA's, which later decoders keep."""


@dataclass(frozen=True)
class Part:
    """The settings of a model that its class decides, or further fields of its config.json.

    Args:
        attention: further settings of `AttentionSpec`.
        model: further settings of `CausalLMSpec`.
        norm: norm of the parts and of the stack; layer norm with the written epsilon if None.
        embedding: further settings of `EmbeddingSpec`.
        network: further settings of `FeedForwardSpec`.
        parallel: flag of a network that reads the block's input.
    """

    attention: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    norm: NormSpec | None = None
    embedding: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    parallel: bool = False


@dataclass(frozen=True, kw_only=True)
class PlainDecoder:
    """Names and settings of a decoder with layer norms.

    Args:
        model_type: name of the architecture in config.json.
        classes: classes of transformers, that with an output projection first.
        keys: names in config.json, with the values of missing ones, by what they are: `width`,
            `heads`, `layers`, `inner`, `length`, `vocabulary`, `epsilon`, `activation`, `dropout`,
            `attention_dropout`; what is left out is None here, 4 D for `inner`.
        tied: default of `tie_word_embeddings`.
        prefix: prefix of all tensors but the output projection's.
        modules: our names of modules outside of layers by their names.
        layers: name of the layers.
        layer: our names of a layer's modules by their names.
        norms: function from a spec to our names of a layer's norms by their names, where these
            depend on the block.
        further: function from config.json to what the class adds.
        write: function from a spec to the fields that `further` reads.
        usual_activation: name of the activation where no setting has it.
        fused: name in a layer of the matrix of queries, keys and values; None for three matrices.
        by_heads: flag of a fused matrix whose rows are the queries, the key and the value of each
            key head in turn; else all queries come first.
        head: name of the output projection.
        norms_shared: flag of a single norm for attention and network.
        activations: activations by their names.
        names_of_activations: their names of activations.
        inert: settings without effect.
        ignored: regular expressions of tensors without trained values, after the prefix.
    """

    model_type: str
    classes: tuple[str, ...]
    keys: Mapping[str, tuple[str, Any]]
    tied: bool
    prefix: str
    modules: Mapping[str, str]
    layers: str
    layer: Mapping[str, str]
    further: Callable[[Fields, int, int], Part]
    write: Callable[[CausalLMSpec], dict[str, Any]]
    usual_activation: str = "gelu_new"
    fused: str | None = None
    by_heads: bool = True
    head: str = "lm_head"
    norms: Callable[[CausalLMSpec], Mapping[str, str]] = lambda spec: {}
    norms_shared: Callable[[CausalLMSpec], bool] = lambda spec: False
    activations: Mapping[str, Activation] = field(default_factory=lambda: ACTIVATIONS)
    names_of_activations: Mapping[Activation, str] = field(default_factory=lambda: ACTIVATION_NAMES)
    inert: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def architecture(self) -> Architecture[CausalLMSpec]:
        """Return the architecture with these names."""
        return Architecture(
            model_type=self.model_type,
            kind="causal_lm",
            read=self._read,
            write=self._write,
            tensors=self._table,
            rewrites=(scaled_embeddings,),
            classes=self.classes,
            inert=self.inert,
        )

    def _integer(self, fields: Fields, what: str) -> int:
        name, default = self.keys[what]
        return fields.integer(name, default)

    def _share(self, fields: Fields, what: str) -> float:
        return fields.number(*self.keys[what]) if what in self.keys else 0.0

    def _read(self, fields: Fields, names: Names) -> CausalLMSpec:
        width, heads = self._integer(fields, "width"), self._integer(fields, "heads")
        length = self._integer(fields, "length") if "length" in self.keys else None
        own = self.further(fields, width // heads, length or 0)
        norm = NormSpec()
        if "epsilon" in self.keys:
            norm = NormSpec(epsilon=fields.number(*self.keys["epsilon"]))
        dropout = self._share(fields, "dropout")
        inner = fields.optional_integer(self.keys["inner"][0]) if "inner" in self.keys else None
        activation, usual = self.keys.get("activation", ("", self.usual_activation))
        norm = own.norm or norm
        block = BlockSpec.of(
            norm_placement="pre",
            norm=norm,
            dropout=dropout,
            self_attention=AttentionSpec(
                num_heads=heads,
                dropout=self._share(fields, "attention_dropout"),
                mask=Causal(),
            ).model_copy(update=dict(own.attention)),
            feedforward=FeedForwardSpec(
                # Missing or null means 4 D in most files.
                **{
                    "width": inner or self.keys.get("inner", ("", None))[1] or 4 * width,
                    "activation": fields.choice(activation, self.activations, usual)
                    if activation
                    else self.activations[usual],
                    **own.network,
                },
            ),
        )
        if own.parallel:
            attention, network = block.sublayers
            network = network.model_copy(update={"parallel": True})
            block = block.model_copy(update={"sublayers": (attention, network)})
        return CausalLMSpec(
            width=width,
            vocabulary=self._integer(fields, "vocabulary"),
            embedding=EmbeddingSpec(
                **{
                    "scale": False,
                    "positions": PositionSpec(kind="none"),
                    "dropout": dropout,
                    **own.embedding,
                }
            ),
            decoder=StackSpec.of(
                num_layers=self._integer(fields, "layers"),
                block=block,
                final_norm=norm,
            ),
            tied=fields.flag("tie_word_embeddings", self.tied),
            max_length=length,
            **own.model,
        )

    def _write(self, spec: CausalLMSpec) -> dict[str, Any]:
        block = spec.decoder.block
        attention = block.self_attention
        rotary = attention.rotary or RotarySpec()
        values = {
            "width": spec.width,
            "heads": attention.num_heads,
            "layers": spec.decoder.num_layers,
            "inner": block.feedforward.width,
            # The field is required there, while a model of ours need not have a longest sequence.
            "length": spec.max_length or max(2048, 2 * (rotary.original_length or 0)),
            "vocabulary": spec.vocabulary,
            "epsilon": block.norm.epsilon,
            "activation": self.names_of_activations.get(block.feedforward.activation),
            "dropout": block.dropout,
            "attention_dropout": attention.dropout,
        }
        return {
            "architectures": [self.classes[0]],
            **{name: values[what] for what, (name, _) in self.keys.items()},
            "tie_word_embeddings": spec.tied,
            **self.write(spec),
        }

    def _table(self, spec: CausalLMSpec, names: Names) -> Table:
        prefix = prefix_of(names, self.prefix)
        rules: list[Rule] = []
        norms = AFFINE if spec.decoder.block.norm.bias else LINEAR
        embedding = next(name for name, ours in self.modules.items() if ours == "embedding")
        for theirs, ours in self.modules.items():
            parts = LINEAR if ours in ("embedding", "input.positions") else norms
            rules += renamed({theirs: ours}, theirs=prefix, parts=parts)
        for number in range(spec.decoder.num_layers):
            layer, block = f"{prefix}{self.layers}.{number}.", f"decoder.blocks.{number}."
            rules += self._layer_rules(spec, layer, block)
        head, copies = output_projection(
            f"{self.head}.weight", f"{prefix}{embedding}.weight" if spec.tied else None
        )
        if spec.output_bias:
            head.append(same(f"{self.head}.bias", "output_bias"))
        ignored = tuple(f"({self.prefix})?{name}" for name in self.ignored)
        return Table((*rules, *head), tuple(copies), ignored)

    def _layer_rules(self, spec: CausalLMSpec, layer: str, block: str) -> list[Rule]:
        attention = spec.decoder.block.self_attention
        own_bias = AFFINE if attention.bias else LINEAR
        output_bias = attention.bias if attention.output_bias is None else attention.output_bias
        network = AFFINE if spec.decoder.block.feedforward.bias else LINEAR
        rules: list[Rule] = []
        for theirs, ours in {**self.layer, **self.norms(spec)}.items():
            parts: Sequence[str] = AFFINE if spec.decoder.block.norm.bias else LINEAR
            if ours.startswith("self_attention."):
                has_bias = output_bias if ours.endswith(".output") else attention.bias
                parts = AFFINE if has_bias else LINEAR
            if ours.startswith("feedforward."):
                parts = network
            if ours == "self_attention_norm" and self.norms_shared(spec):
                norms = ("self_attention_norm", "feedforward_norm")
                rules += [
                    repeated(
                        f"{layer}{theirs}.{part}",
                        [f"{block}{norm}.{part}" for norm in norms],
                        "gpt_neox has two norms",
                    )
                    for part in parts
                ]
                continue
            if ours == "feedforward_norm" and self.norms_shared(spec):
                continue
            rules += renamed({theirs: ours}, theirs=layer, ours=block, parts=parts)
        if self.fused is not None:
            heads = attention.num_heads, attention.num_kv_heads or attention.num_heads
            for part in own_bias:
                maps = [f"{block}self_attention.{name}.{part}" for name in _MAPS]
                name = f"{layer}{self.fused}.{part}"
                rules.append(_fused(name, maps, heads, self.by_heads))
        return rules


def is_parallel(spec: CausalLMSpec) -> bool:
    """Return True if the network of a block reads the block's input."""
    return spec.decoder.block.sublayers[-1].parallel


def _fused(theirs: str, ours: Sequence[str], heads: tuple[int, int], by_heads: bool) -> Rule:
    """Return the rule for queries, keys and values in one matrix [(H + 2 K) E, D].

    Args:
        theirs: name of the matrix, or of its bias.
        ours: names of the three parts.
        heads: numbers H of query heads and K of key heads.
        by_heads: flag of rows that are grouped by key head, [K, H / K + 2, E].
    """
    queries, keys = heads
    groups = keys if by_heads else 1
    sizes = [queries // groups, keys // groups, keys // groups]

    def split(tensors: Sequence[Tensor]) -> list[Tensor]:
        rows = tensors[0].unflatten(0, (groups, sum(sizes), -1))
        return [part.flatten(0, 2).contiguous() for part in rows.split(sizes, 1)]

    def join(tensors: Sequence[Tensor]) -> list[Tensor]:
        parts = [t.unflatten(0, (groups, n, -1)) for t, n in zip(tensors, sizes, strict=True)]
        return [torch.cat(parts, 1).flatten(0, 2)]

    return Rule((theirs,), tuple(ours), split, join)
