"""RWKV version 4 (Peng 2023): time mixing and channel mixing."""

from __future__ import annotations

from typing import Any

from heedful.interop.architecture import Architecture, Names
from heedful.interop.config_fields import Fields
from heedful.interop.rewrites import scaled_embeddings
from heedful.interop.tensor_table import (
    LINEAR,
    Table,
    output_projection,
    prefix_of,
    renamed,
    reshaped,
    same,
)
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.mixer_spec import ChannelMixSpec, RWKVSpec
from heedful.nn.spec import EmbeddingSpec, NormSpec, PositionSpec


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    width = fields.integer("hidden_size", 4096)
    fields.refuse_unless("attention_hidden_size", [width], width)
    norm = NormSpec(epsilon=fields.number("layer_norm_epsilon", 1e-5))
    network = ChannelMixSpec(width=fields.optional_integer("intermediate_size") or 4 * width)
    block = BlockSpec.of(
        norm_placement="pre", norm=norm, self_attention=RWKVSpec(), feedforward=network
    )
    return CausalLMSpec(
        width=width,
        vocabulary=fields.integer("vocab_size", 50277),
        # The norm of the embeddings is a part of their first block.
        embedding=EmbeddingSpec(scale=False, positions=PositionSpec(kind="none"), norm=norm),
        decoder=StackSpec.of(
            num_layers=fields.integer("num_hidden_layers", 32),
            block=block,
            final_norm=NormSpec(),  # their last norm has PyTorch's epsilon, whatever the setting
        ),
        tied=fields.flag("tie_word_embeddings", False),
    )


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    network: Any = spec.decoder.block.part("channel_mix")
    return {
        "architectures": ["RwkvForCausalLM"],
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.decoder.num_layers,
        "intermediate_size": network.width if network else 4 * spec.width,
        "layer_norm_epsilon": spec.decoder.block.norm.epsilon,
        "tie_word_embeddings": spec.tied,
    }


def _table(spec: CausalLMSpec, names: Names) -> Table:
    prefix = prefix_of(names, "rwkv.")
    embedding, width = f"{prefix}embeddings.weight", spec.width
    rules = [
        same(embedding, "embedding.weight"),
        *renamed({"ln_out": "decoder.final_norm", "blocks.0.pre_ln": "input.norm"}, theirs=prefix),
    ]
    for number in range(spec.decoder.num_layers):
        layer, block = f"{prefix}blocks.{number}.", f"decoder.blocks.{number}."
        rules += renamed({"ln1": "mixer_norm", "ln2": "channel_mix_norm"}, theirs=layer, ours=block)
        for module, part, mixed, maps in (
            ("attention.", "mixer.", ("key", "value", "receptance"), ("value", "output")),
            ("feed_forward.", "channel_mix.", ("key", "receptance"), ("value",)),
        ):
            theirs, ours = f"{layer}{module}", f"{block}{part}"
            shapes = ((1, 1, width), (width,))
            rules += [
                reshaped(f"{theirs}time_mix_{name}", f"{ours}{name}_mix", *shapes) for name in mixed
            ]
            both = dict.fromkeys(("key", "receptance", *maps))
            rules += renamed({name: name for name in both}, theirs=theirs, ours=ours, parts=LINEAR)
        time = {"attention.time_decay": "decay", "attention.time_first": "bonus"}
        rules += [same(f"{layer}{name}", f"{block}mixer.{own}") for name, own in time.items()]
    head, copies = output_projection("head.weight", embedding if spec.tied else None)
    return Table((*rules, *head), tuple(copies))


ARCHITECTURE = Architecture(
    model_type="rwkv",
    kind="causal_lm",
    read=_read,
    write=_write,
    tensors=_table,
    rewrites=(scaled_embeddings,),
    classes=("RwkvForCausalLM", "RwkvModel"),
    # Divisions against the overflow of float16, which the norms take away again; the length of
    # training, past which it reads on.
    inert=("rescale_every", "context_length"),
)
