"""Engines honour every field of every spec, or name it in their refusal.

Each field of the spec tree has a case that sets it to another value. The prepared model must give
what the definition gives; and where the engine says that kernels do not honour a part, it must say
so of that field. A field without a case fails.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch

from heedful.config import Config
from heedful.device import Precision
from heedful.engines.inference import support
from heedful.engines.inference.cpu_model import is_untouched, share_weights
from heedful.engines.inference.prepare import prepare
from heedful.engines.inference.support import cpu_refusals, explain, sentence_refusals
from heedful.engines.training import products
from heedful.engines.training.training_engine import prepare_training
from heedful.errors import ModelError
from heedful.kernels import library
from heedful.kernels.library import kernels
from heedful.models.build import build_model
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.images.autoencoder_spec import AutoencoderSpec
from heedful.models.images.two_towers_spec import TwoTowersSpec
from heedful.models.images.vision_spec import DenoiserSpec, VisionSpec
from heedful.models.model_spec import CausalLMSpec, TranslatorSpec, parse_spec
from heedful.models.sounds.transcriber_spec import TranscriberSpec
from heedful.nn.attention.masks import KINDS, Mask
from heedful.nn.spec import AttentionSpec
from heedful.registry import ON_USE

pytestmark = pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")

Plain = dict[str, Any]

SELF: Plain = {"kind": "attention", "num_heads": 2}
CROSS: Plain = {"kind": "attention", "num_heads": 2, "over": "memory"}
NETWORK: Plain = {"kind": "feedforward", "width": 48}


def stack(*, causal: bool, memory: bool = False, **own: Any) -> Plain:
    attention = SELF | ({"mask": {"kind": "causal"}} if causal else {}) | own
    parts = [("self_attention", attention), ("feedforward", NETWORK)]
    if memory:
        parts.insert(1, ("cross_attention", CROSS))
    block = {"sublayers": [{"name": name, "part": dict(part)} for name, part in parts]}
    return {"num_layers": 2, "pattern": [block]}


def base(kind: str, **own: Any) -> Plain:
    """A small model whose self-attention has these settings."""
    encoder = stack(causal=False, **own)
    if kind == "translator":
        decoder = stack(causal=True, memory=True, **own)
        sizes = {"source_vocabulary": 20, "target_vocabulary": 20}
        return {"kind": kind, "width": 32, **sizes, "encoder": encoder, "decoder": decoder}
    if kind == "causal_lm":
        decoder = stack(causal=True, **own)
        return {"kind": kind, "width": 32, "vocabulary": 20, "decoder": decoder}
    if kind == "encoder":
        heads = [
            {"kind": "masked_lm"},
            {"kind": "next_sentence"},
            {"kind": "sequence", "labels": ["a", "b"]},
            {"kind": "token", "labels": ["a", "b"]},
            {"kind": "span"},
            {"kind": "ctc", "vocabulary": 20},
            {"kind": "reward"},
        ]
        more = {"encoder": encoder, "pooler": True, "heads": heads}
        return {"kind": kind, "width": 32, "vocabulary": 20, **more}
    if kind == "denoiser":
        decoder = stack(causal=False, memory=True, **own)
        sizes = {"vocabulary": 20, "image_size": 8, "patch_size": 4}
        return {"kind": kind, "width": 32, **sizes, "encoder": encoder, "decoder": decoder}
    if kind == "transcriber":
        decoder = stack(causal=True, memory=True, **own)
        sizes = {"vocabulary": 20, "bands": 5, "frames": 12}
        return {"kind": kind, "width": 32, **sizes, "encoder": encoder, "decoder": decoder}
    pixels = {"mean": [0.5] * 3, "std": [0.5] * 3}
    if kind == "autoencoder":
        sizes = {"image_size": 8, "patch_size": 4, "channels": 3, "codes": 6, "pixels": pixels}
        return {"kind": kind, "width": 32, "encoder": encoder, "decoder": encoder, **sizes}
    sizes = {"image_size": 8, "patch_size": 4, "pixels": pixels}
    images = {"kind": "vision", "width": 32, "encoder": encoder, **sizes}
    if kind == "two_towers":
        texts = {"kind": "encoder", "width": 32, "vocabulary": 20, "encoder": encoder}
        return {"kind": kind, "width": 32, "images": images, "texts": texts}
    return images | {"labels": ["a", "b"]}


ROTARY: Plain = {"scaling": "yarn", "factor": 4.0, "original_length": 4}
LEARNED: Plain = {"kind": "learned", "max_length": 40}
OFFSET: Plain = {"kind": "rms", "unit_offset": True}
EXPERTS: Plain = {"num_experts": 4}
RANDOM: Plain = {"kind": "random", "size": 2, "count": 1, "length": 8, "seed": 3}
LINFORMER: Plain = {"kind": "linformer", "rank": 3, "length": 12}
POOLING = {
    "num_layers": 1,
    "pattern": [
        {"sublayers": [{"name": "cross_attention", "part": CROSS, "residual": False}]},
    ],
}
GRID: Plain = {"kind": "window_2d", "columns": 3, "height": 1, "width": 1}
BOTH = ("encoder", "decoder")
OWN, CROSSED, FED = (f"pattern.0.sublayers.{number}" for number in range(3))

# A case: the base, and the changes by path. `*` is both stacks of a translator, or the only one.
Case = tuple[Plain, Plain]


def case(kind: str = "translator", of: Plain | None = None, **changes: Any) -> Case:
    return base(kind, **(of or {})), {k.replace("__", "."): v for k, v in changes.items()}


def at(path: str, value: Any, kind: str = "translator", **of: Any) -> Case:
    return base(kind, **of), {path: value}


def own(name: str, value: Any, **of: Any) -> Case:
    return at(f"*.{OWN}.part.{name}", value, **of)


def linear(**own: Any) -> Case:
    mixer = {"kind": "linear_attention", "num_heads": 2} | own
    return at(f"encoder.{OWN}.part", mixer)


def other(kind: str, **own: Any) -> Case:
    return at(f"decoder.{OWN}.part", {"kind": kind} | own)


def mamba2(**own: Any) -> Case:
    return other("mamba2", **{"num_heads": 4, "head_width": 8, "state_size": 6} | own)


def recurrence(kind: str, **own: Any) -> Case:
    sublayer = {"name": "mixer", "part": {"kind": kind} | own}
    return at(f"decoder.{OWN}", sublayer)


def instead(place: str, kind: str, **own: Any) -> Case:
    """Another part in the place of an attention."""
    return at(f"{place}.part", {"kind": kind} | own)


def recurrent(**own: Any) -> Case:
    return instead(f"encoder.{OWN}", "recurrent", **own)


def recurrent_decoder(**own: Any) -> Case:
    return instead(f"decoder.{CROSSED}", "recurrent_decoder", **own)


def score(**own: Any) -> Case:
    return instead(f"decoder.{CROSSED}", "score_attention", **own)


def triangle(kind: str, **own: Any) -> Case:
    # Of six tokens the first and the last are no pairs; shorter rows lack pairs.
    return instead(f"encoder.{OWN}", f"triangle_{kind}", **{"side": 2} | own)


def convolution(**own: Any) -> Case:
    return instead(f"*.{OWN}", "convolution", causal=True, **own)


ADDITIVE: Plain = {"attention": {"score": "additive"}, "feeding": "context"}


def remembering() -> Case:
    parts = [{"kind": "causal"}, {"kind": "segment"}, {"kind": "window", "size": 4}]
    plain = base("causal_lm", mask={"kind": "all_of", "parts": parts})
    return plain, {"memory": 3, "embedding.positions": {"kind": "none"}}


def mask(**spec: Any) -> Case:
    return own("mask", spec)


def latent(**settings: Any) -> Case:
    own = {"latent": {"width": 12, "value_width": 8} | settings, "head_width": 16}
    places = {f"*.{OWN}.part.{name}": value for name, value in own.items()}
    return base("translator"), places | {f"*.{OWN}.part.rotary": {"width": 6}}


def disentangled(**settings: Any) -> Case:
    few = {"kind": "disentangled", "num_buckets": 4, "max_distance": 5}
    return own("position_bias", few | settings)


def rotary(name: str, value: Any) -> Case:
    return own("rotary", {**ROTARY, name: value})


def network(name: str, value: Any) -> Case:
    return at(f"encoder.{CROSSED}.part.{name}", value)  # the encoder's second sub-layer


def experts(**spec: Any) -> Case:
    return network("experts", {**EXPERTS, **spec})


def positions(**spec: Any) -> Case:
    return at("embedding.positions", spec)


def prompt(name: str, value: Any) -> Case:
    known = {"start": 3, "languages": [["de", 5]], "tasks": [["transcribe", 6]]}
    return at("prompt", known | {name: value}, "transcriber")


def head(number: int, name: str, value: Any) -> Case:
    return at(f"heads.{number}.{name}", value, "encoder")


NOT_PAIRED = {"source_vocabulary": 30, "share_embeddings": "target"}

CASES: Mapping[str, Mapping[str, Case]] = {
    "TranslatorSpec": {
        "kind": case(),
        "width": at("width", 64),
        "source_vocabulary": (base("translator"), NOT_PAIRED),
        "target_vocabulary": (
            base("translator"),
            {"target_vocabulary": 30, "share_embeddings": "target"},
        ),
        "share_embeddings": at("share_embeddings", "none"),
        "embedding": at("embedding", {"scale": False, "norm": {"kind": "rms"}}),
        "encoder": at("encoder.num_layers", 1),
        "decoder": at("decoder.num_layers", 3),
        "output_bias": at("output_bias", True),
        "output_scale": at("output_scale", 0.7),
        "logits_softcap": at("logits_softcap", 0.5),
        "max_length": at("max_length", 12),
    },
    "EmbeddingSpec": {
        "scale": at("embedding.scale", False),
        "num_segments": at("embedding.num_segments", 2),
        "row_size": (base("translator"), {"share_embeddings": "none", "embedding.row_size": 2}),
        "positions": positions(kind="none"),
        "norm": at("embedding.norm", {"kind": "layer"}),
        "width": at("embedding.width", 16, "encoder"),
        "dropout": at("embedding.dropout", 0.5),
    },
    "PositionSpec": {
        "kind": positions(kind="none"),
        "max_length": positions(**LEARNED),
        "unused_rows": positions(**LEARNED, unused_rows=2),
        "layout": positions(layout="halves"),
        "axes": positions(kind="axes", axes=[[1], [4, 5], [3]], max_length=24),
    },
    "NormSpec": {
        "kind": at(f"*.{OWN}.norm", {"kind": "rms"}),
        "epsilon": at(f"*.{OWN}.norm", {"epsilon": 0.5}),
        "bias": at(f"*.{OWN}.norm", {"bias": False}),
        "unit_offset": (
            base("translator"),
            {
                "embedding.norm": OFFSET,
                f"*.{OWN}.norm": OFFSET,
                "*.final_norm": OFFSET,
            },
        ),
    },
    "StackSpec": {
        "num_layers": at("*.num_layers", 3),
        "pattern": at("encoder.pattern.1", stack(causal=False, num_kv_heads=1)["pattern"][0]),
        "final_norm": at("*.final_norm", {"kind": "layer"}),
        "final_dropout": at("*.final_dropout", 0.5),
        "shared_position_bias": at("encoder.shared_position_bias", {"kind": "t5"}),
    },
    "BlockSpec": {
        "sublayers": at(f"encoder.{OWN}.part.num_kv_heads", 1),
    },
    "SubLayerSpec": {
        "name": at(f"encoder.{OWN}.name", "attention"),
        "part": at(f"encoder.{CROSSED}.part", NETWORK | {"activation": "swiglu"}),
        "norm": at(f"encoder.{CROSSED}.norm", {"kind": "rms"}),
        "norm_placement": at(f"encoder.{OWN}.norm_placement", "both"),
        "dropout": at(f"*.{OWN}.dropout", 0.5),
        "residual": at(f"encoder.{OWN}.residual", False),
        "residual_scale": at(f"*.{OWN}.residual_scale", 0.7),
        "parallel": at(f"encoder.{CROSSED}.parallel", True),
    },
    "AttentionSpec": {
        "kind": case(),
        "over": case(),  # a translator's decoder has both
        "num_heads": own("num_heads", 1),
        "num_kv_heads": own("num_kv_heads", 1),
        "head_width": own("head_width", 24),
        "bias": own("bias", False),
        "output_bias": own("output_bias", False),
        "scale": own("scale", 0.9),
        "softcap": own("softcap", 0.5),
        "query_key_norm": own("query_key_norm", {"kind": "rms"}),
        "query_key_norm_over": (
            base("translator"),
            {
                f"*.{OWN}.part.query_key_norm": {"kind": "rms"},
                f"*.{OWN}.part.query_key_norm_over": "all_heads",
            },
        ),
        "dropout": own("dropout", 0.5),
        "mask": mask(kind="window", size=2),
        "rotary": own("rotary", {}),
        "position_bias": own("position_bias", {"kind": "alibi"}),
        "relative_values": own("relative_values", 3),
        "global_tokens": own("global_tokens", 2),
        "kept_heads": own("kept_heads", [1]),
        "latent": latent(),
    },
    "LatentSpec": {
        "width": latent(width=5),
        "value_width": latent(value_width=10),
        "query_width": latent(query_width=9),
        "norm": latent(norm={"kind": "layer"}),
    },
    "LinearAttentionSpec": {
        "kind": linear(),
        "num_heads": linear(num_heads=4),
        "head_width": linear(head_width=24),
        "bias": linear(bias=False),
        "causal": linear(causal=True),
        "features": linear(features={"kind": "cosine"}),
    },
    "EluFeaturesSpec": {"kind": linear(features={"kind": "elu"})},
    "CosineFeaturesSpec": {
        "kind": linear(features={"kind": "cosine"}),
        "length": linear(features={"kind": "cosine", "length": 9}),
    },
    "RandomFeaturesSpec": {
        "kind": linear(features={"kind": "random"}),
        "num_features": linear(features={"kind": "random", "num_features": 12}),
        "redraw_every": linear(features={"kind": "random", "redraw_every": 2}),
        "seed": linear(features={"kind": "random", "seed": 3}),
    },
    "LinformerSpec": {
        "kind": linear(**LINFORMER),
        "num_heads": linear(**LINFORMER, num_heads=4),
        "head_width": linear(**LINFORMER, head_width=24),
        "bias": linear(**LINFORMER, bias=False),
        "causal": linear(**LINFORMER, causal=False),
        "rank": linear(**LINFORMER | {"rank": 2}),
        "length": linear(**LINFORMER | {"length": 9}),
        "sharing": linear(**LINFORMER, sharing="none"),
    },
    "AverageAttentionSpec": {
        "kind": recurrence("average_attention"),
        "feedforward": recurrence("average_attention", feedforward=20),
        "gate": recurrence("average_attention", gate=False),
        "causal": recurrence("average_attention", causal=True),
    },
    "SSRUSpec": {
        "kind": recurrence("ssru"),
        "bias": recurrence("ssru", bias=False),
        "causal": recurrence("ssru", causal=True),
    },
    "S4DSpec": {
        "kind": other("s4d"),
        "state_size": other("s4d", state_size=8),
        "initialization": other("s4d", initialization="inv"),
        "discretization": other("s4d", discretization="bilinear"),
        "bias": other("s4d", bias=False),
    },
    "MambaSpec": {
        "kind": other("mamba"),
        "state_size": other("mamba", state_size=4),
        "expansion": other("mamba", expansion=3),
        "convolution": other("mamba", convolution=1),
        "rank": other("mamba", rank=5),
        "bias": other("mamba", bias=True),
    },
    "Mamba2Spec": {
        "kind": mamba2(),
        "num_heads": mamba2(num_heads=2),
        "head_width": mamba2(head_width=4),
        "num_groups": mamba2(num_groups=2),
        "state_size": mamba2(state_size=3),
        "convolution": mamba2(convolution=1),
        "bias": mamba2(bias=True),
        "norm_epsilon": mamba2(norm_epsilon=0.1),
    },
    "RWKVSpec": {"kind": other("rwkv")},
    "ChannelMixSpec": {
        "kind": other("channel_mix", width=48),
        "width": other("channel_mix", width=40),
    },
    "RecurrentSpec": {
        "kind": recurrent(),
        "cell": recurrent(cell="gru"),
        "direction": recurrent(direction="both"),
        "keep_bias": recurrent(keep_bias=2.0),
    },
    "RecurrentDecoderSpec": {
        "kind": recurrent_decoder(),
        "over": recurrent_decoder(over="memory"),
        "cell": recurrent_decoder(cell="gru"),
        "num_layers": recurrent_decoder(num_layers=2),
        "summary": recurrent_decoder(summary="both"),
        "attention": recurrent_decoder(**ADDITIVE),
        "feeding": recurrent_decoder(feeding="context"),
        "readout": recurrent_decoder(readout="maxout"),
        "dropout": recurrent_decoder(num_layers=2, dropout=0.5),
        "residual": recurrent_decoder(num_layers=2, residual=True),
        "keep_bias": recurrent_decoder(keep_bias=2.0),
    },
    "ScoreAttentionSpec": {
        "kind": score(),
        "over": score(over="memory"),
        "score": score(score="general"),
        "width": score(width=24),
        "scale": score(scale=0.5),
        "window": score(window=2),
        "embeddings": score(score="dot", embeddings=True),
        "dropout": score(dropout=0.5),
    },
    "ConvolutionSpec": {
        "kind": convolution(),
        "kernel_width": convolution(kernel_width=2),
        "causal": instead(f"encoder.{OWN}", "convolution"),
        "dropout": convolution(dropout=0.5),
        "columns": instead(f"decoder.{OWN}", "convolution", causal=True, columns=4),
        "first": instead(f"decoder.{OWN}", "convolution", causal=True, columns=4, first=1),
    },
    "TriangleMultiplicationSpec": {
        "kind": triangle("multiplication"),
        "side": triangle("multiplication", side=1),
        "first": triangle("multiplication", first=2),
        "bias": triangle("multiplication", bias=False),
        "causal": triangle("multiplication", causal=False),
        "edges": triangle("multiplication", edges="incoming"),
        "width": triangle("multiplication", width=24),
    },
    "TriangleAttentionSpec": {
        "kind": triangle("attention", num_heads=2),
        "side": triangle("attention", num_heads=2, side=1),
        "first": triangle("attention", num_heads=2, first=2),
        "bias": triangle("attention", num_heads=2, bias=False),
        "causal": triangle("attention", num_heads=2, causal=False),
        "node": triangle("attention", num_heads=2, node="ending"),
        "num_heads": triangle("attention", num_heads=4),
        "head_width": triangle("attention", num_heads=2, head_width=24),
    },
    "Everything": {"kind": mask(kind="everything")},
    "Causal": {"kind": mask(kind="causal")},
    "Window": {"kind": mask(kind="window", size=2), "size": mask(kind="window", size=3)},
    "Prefix": {"kind": mask(kind="prefix", length=2), "length": mask(kind="prefix", length=3)},
    "SameSegment": {"kind": mask(kind="segment")},
    "Dilated": {
        "kind": mask(kind="dilated", size=2),
        "size": mask(kind="dilated", size=3),
        "dilation": mask(kind="dilated", size=2, dilation=3),
    },
    "Strided": {
        "kind": mask(kind="strided", stride=2),
        "stride": mask(kind="strided", stride=3),
    },
    "Fixed": {
        "kind": mask(kind="fixed", stride=2, summary=1),
        "stride": mask(kind="fixed", stride=3, summary=1),
        "summary": mask(kind="fixed", stride=3, summary=2),
    },
    "GlobalTokens": {"kind": mask(kind="global"), "count": mask(kind="global", count=2)},
    "RandomBlocks": {
        "kind": mask(**RANDOM),
        "size": mask(**RANDOM | {"size": 1}),
        "count": mask(**RANDOM | {"count": 2}),
        "length": mask(**RANDOM | {"length": 12}),
        "seed": mask(**RANDOM | {"seed": 4}),
    },
    "Window2d": {
        "kind": mask(**GRID),
        "columns": mask(**GRID | {"columns": 4}),
        "height": mask(**GRID | {"height": 2}),
        "width": mask(**GRID | {"width": 2}),
        "first": mask(**GRID | {"first": 1}),
    },
    "AllOf": {
        "kind": mask(kind="all_of", parts=[{"kind": "causal"}]),
        "parts": mask(kind="all_of", parts=[{"kind": "causal"}, {"kind": "window", "size": 2}]),
    },
    "AnyOf": {
        "kind": mask(kind="any_of", parts=[{"kind": "causal"}]),
        "parts": mask(kind="any_of", parts=[{"kind": "causal"}, {"kind": "prefix", "length": 2}]),
    },
    "RotarySpec": {
        "base": rotary("base", 50.0),
        "layout": rotary("layout", "pairs"),
        "width": rotary("width", 6),
        "scaling": rotary("scaling", "ntk"),
        "factor": rotary("factor", 2.0),
        "original_length": rotary("original_length", 8),
        "beta_fast": rotary("beta_fast", 2.0),
        "beta_slow": rotary("beta_slow", 0.1),
        "temperature": rotary("temperature", 1.3),
    },
    "AlibiSpec": {"kind": own("position_bias", {"kind": "alibi"})},
    "T5BiasSpec": {
        "kind": own("position_bias", {"kind": "t5"}),
        "num_buckets": own("position_bias", {"kind": "t5", "num_buckets": 4}),
        "max_distance": own("position_bias", {"kind": "t5", "max_distance": 20}),
        "bidirectional": own("position_bias", {"kind": "t5", "bidirectional": False}),
    },
    "KerpleSpec": {"kind": own("position_bias", {"kind": "kerple"})},
    "RelativeKeysSpec": {
        "kind": own("position_bias", {"kind": "relative_keys"}),
        "max_distance": own("position_bias", {"kind": "relative_keys", "max_distance": 2}),
    },
    "TransformerXLSpec": {"kind": own("position_bias", {"kind": "transformer_xl"})},
    "DisentangledSpec": {
        "kind": disentangled(),
        "num_buckets": disentangled(num_buckets=6),
        "max_distance": disentangled(max_distance=None),
        "norm_epsilon": disentangled(norm_epsilon=None),
        "terms": disentangled(terms="position_to_content"),
    },
    "FeedForwardSpec": {
        "kind": case(),
        "width": network("width", 40),
        "activation": network("activation", "geglu_tanh"),
        "bias": network("bias", False),
        "dropout": network("dropout", 0.5),
        "experts": experts(),
    },
    "ExpertsSpec": {
        "num_experts": experts(num_experts=3),
        "per_token": experts(per_token=3),
        "renormalize": experts(renormalize=False),
        "balance_weight": experts(balance_weight=0.5),
        "scoring": experts(scoring="sigmoid", num_groups=2),
        "num_groups": experts(num_groups=2),
        "groups_per_token": experts(num_groups=4, groups_per_token=3),
        "scale": experts(scale=2.5),
        "shared_width": experts(shared_width=24),
    },
    "CausalLMSpec": {
        "kind": case("causal_lm"),
        "width": at("width", 64, "causal_lm"),
        "vocabulary": at("vocabulary", 30, "causal_lm"),
        "embedding": at("embedding", {"positions": LEARNED}, "causal_lm"),
        "decoder": at("decoder.num_layers", 1, "causal_lm"),
        "tied": at("tied", False, "causal_lm"),
        "output_bias": at("output_bias", True, "causal_lm"),
        "logits_softcap": at("logits_softcap", 0.5, "causal_lm"),
        "max_length": at("max_length", 12, "causal_lm"),
        "memory": remembering(),
    },
    "EncoderSpec": {
        "kind": case("encoder"),
        "width": at("width", 64, "encoder"),
        "vocabulary": at("vocabulary", 30, "encoder"),
        "embedding": at("embedding", {"num_segments": 2}, "encoder"),
        "encoder": at("encoder.num_layers", 1, "encoder"),
        "pooler": (base("encoder"), {"pooler": False, "heads": []}),
        "heads": at("heads", [], "encoder"),
        "max_length": at("max_length", 12, "encoder"),
    },
    "MaskedLMHeadSpec": {
        "kind": case("encoder"),
        "activation": head(0, "activation", "relu"),
        "norm": head(0, "norm", {"kind": "rms"}),
        "tied": head(0, "tied", False),
    },
    "NextSentenceHeadSpec": {"kind": case("encoder")},
    "SequenceHeadSpec": {
        "kind": case("encoder"),
        "labels": head(2, "labels", ["a", "b", "c"]),
        "source": head(2, "source", "first"),
        "activation": (
            base("encoder"),
            {"heads.2.source": "first", "heads.2.activation": "relu"},
        ),
        "dropout": head(2, "dropout", 0.5),
    },
    "TokenHeadSpec": {
        "kind": case("encoder"),
        "labels": head(3, "labels", ["a", "b", "c"]),
        "dropout": head(3, "dropout", 0.5),
    },
    "SpanHeadSpec": {"kind": case("encoder"), "unanswerable": head(4, "unanswerable", True)},
    "CTCHeadSpec": {"kind": case("encoder"), "vocabulary": head(5, "vocabulary", 12)},
    "RewardHeadSpec": {
        "kind": case("encoder"),
        "source": case("encoder"),
        "dropout": head(6, "dropout", 0.5),
    },
    "VisionSpec": {
        "kind": case("vision"),
        "width": at("width", 64, "vision"),
        "image_size": at("image_size", 12, "vision"),
        "patch_size": at("patch_size", 2, "vision"),
        "channels": (base("vision"), {"channels": 1, "pixels": None}),
        "encoder": at("encoder.num_layers", 1, "vision"),
        "patch_bias": at("patch_bias", False, "vision"),
        "input_norm": at("input_norm", {"kind": "layer"}, "vision"),
        "pooling": at("pooling", "mean", "vision"),
        "pooling_head": (base("vision"), {"pooling": "attention", "pooling_head": POOLING}),
        "distillation": at("distillation", "classifier", "vision"),
        "pooler": at("pooler", True, "vision"),
        "labels": at("labels", ["a", "b", "c"], "vision"),
        "num_classes": (base("vision"), {"labels": [], "num_classes": 4}),
        "dropout": at("dropout", 0.5, "vision"),
        "pixels": at("pixels", None, "vision"),
    },
    "TwoTowersSpec": {
        "kind": case("two_towers"),
        "width": at("width", 24, "two_towers"),
        "images": at("images.pooling", "mean", "two_towers"),
        "texts": at("texts.embedding.scale", False, "two_towers"),
        "text_pooling": at("text_pooling", "last", "two_towers"),
        "image_projection": at("image_projection", False, "two_towers"),
        "text_projection_bias": at("text_projection_bias", True, "two_towers"),
        "score_bias": at("score_bias", True, "two_towers"),
        "bounded_scale": at("bounded_scale", False, "two_towers"),
        "padded_length": at("padded_length", 12, "two_towers"),
    },
    "DenoiserSpec": {
        "kind": case("denoiser"),
        "width": at("width", 64, "denoiser"),
        "vocabulary": at("vocabulary", 24, "denoiser"),
        "embedding": at("embedding.scale", False, "denoiser"),
        "encoder": at("encoder.num_layers", 1, "denoiser"),
        "decoder": at("decoder.num_layers", 1, "denoiser"),
        "image_size": at("image_size", 12, "denoiser"),
        "patch_size": at("patch_size", 2, "denoiser"),
        "channels": at("channels", 1, "denoiser"),
        "max_length": at("max_length", 9, "denoiser"),
        "words": at("words", ["a"], "denoiser"),
    },
    "TranscriberSpec": {
        "kind": case("transcriber"),
        "width": at("width", 64, "transcriber"),
        "vocabulary": at("vocabulary", 24, "transcriber"),
        "bands": at("bands", 6, "transcriber"),
        "frames": at("frames", 8, "transcriber"),
        "embedding": at("embedding.positions", LEARNED, "transcriber"),
        "encoder": at("encoder.num_layers", 1, "transcriber"),
        "decoder": at("decoder.num_layers", 1, "transcriber"),
        "prompt": prompt("start", 3),
    },
    "PromptSpec": {
        "start": prompt("start", 4),
        "languages": prompt("languages", [["de", 5]]),
        "tasks": prompt("tasks", [["transcribe", 6]]),
        "without_times": prompt("without_times", 7),
        "language": prompt("language", "de"),
        "task": prompt("task", "transcribe"),
        "suppressed": prompt("suppressed", [8, 9]),
        "suppressed_first": prompt("suppressed_first", [8, 9]),
    },
    "AutoencoderSpec": {
        "kind": case("autoencoder"),
        "width": at("width", 64, "autoencoder"),
        "image_size": at("image_size", 12, "autoencoder"),
        "patch_size": at("patch_size", 2, "autoencoder"),
        "channels": (
            base("autoencoder"),
            {"channels": 1, "pixels": {"mean": [0.5], "std": [0.5]}},
        ),
        "encoder": at("encoder.num_layers", 1, "autoencoder"),
        "decoder": at("decoder.num_layers", 1, "autoencoder"),
        "codes": at("codes", 9, "autoencoder"),
        "code_width": at("code_width", 3, "autoencoder"),
        "dropout": at("dropout", 0.5, "autoencoder"),
        "pixels": at("pixels.mean", [0.4] * 3, "autoencoder"),
    },
    "PixelSpec": {
        "resample": at("pixels.resample", "bilinear", "vision"),
        "shorter_side": (
            base("vision"),
            {"pixels.resample": "bicubic", "pixels.shorter_side": 9},
        ),
        "rescale": at("pixels.rescale", 1.0, "vision"),
        "mean": at("pixels.mean", [0.4] * 3, "vision"),
        "std": at("pixels.std", [0.4] * 3, "vision"),
    },
}


def spec_classes() -> dict[str, type[Config] | type[Mask]]:
    """Every class of the spec tree."""
    classes: dict[str, type[Config] | type[Mask]] = {}

    def visit(kind: type[Config] | type[Mask]) -> None:
        if kind.__name__ in classes:
            return
        classes[kind.__name__] = kind
        for annotation in fields_of(kind).values():
            for inner in configs_in(annotation):
                visit(inner)

    of_texts = (TranslatorSpec, TranscriberSpec, CausalLMSpec, EncoderSpec)
    of_images = (VisionSpec, TwoTowersSpec, DenoiserSpec, AutoencoderSpec)
    for kind in (*of_texts, *of_images):
        visit(kind)
    for family in ("mixer", "position bias"):
        for address in ON_USE[family].values():
            visit(resolve_name(address))
    return classes


def fields_of(kind: type[Config] | type[Mask]) -> dict[str, Any]:
    """The fields of a spec with their annotations, or those of a mask: numbers, and other masks."""
    if issubclass(kind, Config):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return dict.fromkeys(("kind", *kind.setting_names()))


def configs_in(annotation: Any) -> Iterator[type[Config] | type[Mask]]:
    if annotation is Mask:
        yield from map(resolve_name, KINDS.values())
    elif isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
    for part in typing.get_args(annotation):
        yield from configs_in(part)


FIELDS = [(name, field) for name, kind in spec_classes().items() for field in fields_of(kind)]


def changed(plain: Plain, changes: Plain) -> Plain:
    for path, value in changes.items():
        if path.startswith("*."):
            stacks = [name for name in BOTH if name in plain]
            changed(plain, {f"{name}{path[1:]}": value for name in stacks})
            continue
        *way, last = path.split(".")
        part: Any = plain
        for step in way:
            part = part[int(step)] if isinstance(part, list) else part.setdefault(step, {})
        if isinstance(part, list) and int(last) == len(part):
            part.append(value)
        elif isinstance(part, list):
            part[int(last)] = value
        else:
            part[last] = value
    return plain


def sounds(spec: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames of three sounds, and the positions of their states; the last is shorter."""
    frames = torch.randn(3, spec.frames, spec.bands, generator=torch.Generator().manual_seed(2))
    places = torch.arange(spec.num_states).repeat(3, 1)
    places[2, 3:] = -1
    return frames, places


def outputs(model: Any, images: torch.Tensor) -> list[torch.Tensor]:
    """The outputs of every call of a model that engines serve."""
    ids = torch.randint(4, 20, (3, 6), generator=torch.Generator().manual_seed(1))
    places = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, -1, -1], [0, -1, -1, -1, -1, -1]])
    real = places >= 0
    if model.spec.reads == "images":
        states = model(images)
        if model.spec.kind == "autoencoder":
            return [states.images, states.vectors, model.encode(images), model.decode(states.codes)]
        return [states, *([model.class_logits(states)] if model.classifier else [])]
    if model.spec.reads == "captions":
        return [model(images, torch.tensor([0.3, 0.8]), ids[:2], places[:2])]
    if model.spec.reads == "images_and_texts":
        return [model(images, ids, places)]
    if not model.spec.generates:
        states = model(ids, places)
        found = [states[real]]
        if "masked_lm" in model.heads:
            found.append(model.masked_lm_logits(states)[real])
            found.append(model.sequence_logits(states, places))
            found.append(model.next_sentence_logits(states, places))
            found += [model.token_logits(states)[real], model.span_logits(states)[real]]
        return found
    source = sounds(model.spec) if model.spec.reads == "sounds" else (ids, places)
    state, found = model.start(*source), []
    tokens = torch.full((3, 1), 2)
    if getattr(model.spec, "memory", None):
        before = model.empty_memory(3)
        for part in (slice(0, 4), slice(4, 6)):
            texts = torch.where(real, 0, -1)[:, part]
            columns = torch.arange(texts.shape[1]).where(texts >= 0, -1)
            states, before = model.read_segment(ids[:, part], columns, texts, before)
            found.append(states[texts >= 0])
    if model.spec.reads in ("pairs", "sounds"):
        memory = model.encode(*source)
        found.append(model.logits(model.decode(memory, ids, places))[real])
    for step in range(3):
        logits, state = model.step(state, tokens)
        found.append(logits)
        if step == 0:
            rows = torch.tensor([[0, 0], [1, 1], [2, 2]])
            state, tokens = model.reorder(state, rows), torch.tensor([[5, 6], [7, 5], [6, 8]])
    return found


def test_every_field_has_a_case() -> None:
    cases = {(name, field) for name, fields in CASES.items() for field in fields}
    assert set(FIELDS) - cases == set(), "add a case that sets this field to another value"
    assert cases - set(FIELDS) == set()


@pytest.mark.parametrize(("name", "field"), FIELDS, ids=[".".join(each) for each in FIELDS])
@torch.inference_mode()
def test_an_engine_honours_the_field_or_names_it(name: str, field: str) -> None:
    if field not in CASES.get(name, {}):
        pytest.fail(f"{name}.{field} has no case")
    spec = parse_spec(changed(*CASES[name][field]), where="a case")
    try:
        torch.manual_seed(0)
        model = build_model(spec).eval()
    except ModelError:
        pytest.skip("the definition does not build it")
    for parameter in model.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))
    engine = prepare(model, Precision("fp32", "cpu"))
    pictures = getattr(spec, "images", spec)
    images = None
    if pictures.reads in ("images", "captions"):
        images = torch.randn(2, pictures.channels, pictures.image_size, pictures.image_size)
    for one, two in zip(outputs(engine, images), outputs(model, images), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=2e-5)
    for refusals in (cpu_refusals(spec), sentence_refusals(spec)):
        if refusals and spec.generates and spec.reads == "pairs":
            assert any(concerns(each.field, name, field) for each in refusals), explain(spec)
    if not sentence_refusals(spec):
        compare_sentence(engine)


def learned(model: Any) -> list[torch.Tensor]:
    """States of real tokens in training, and the gradients of every parameter."""
    places = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, -1, -1], [0, -1, -1, -1, -1, -1]])
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 20, places.shape, generator=generator)
    model.zero_grad()
    torch.manual_seed(5)
    pictures = getattr(model.spec, "images", model.spec)
    if pictures.reads in ("images", "captions"):
        size = pictures.image_size
        images = torch.rand(2, pictures.channels, size, size, generator=generator)
        captions = (torch.tensor([0.3, 0.8]), ids[:2], places[:2])
        more = {"captions": captions, "images_and_texts": (ids, places)}
        states = model(images, *more.get(model.spec.reads, ()))
        if model.spec.kind == "autoencoder":
            states = states.images
    else:
        own = (ids, places) if model.spec.reads == "pairs" else ()
        if model.spec.reads == "sounds":
            own = sounds(model.spec)
        states = model(*own, ids, places)[places >= 0]
    (states * torch.randn(states.shape, generator=generator)).sum().backward()
    gradients = [
        torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()
    ]
    return [states.detach(), *gradients]


@pytest.fixture
def narrow_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in C multiply matrices however small they are."""
    monkeypatch.setattr(library, "min_gemm_width", lambda kind: 2)
    monkeypatch.setattr(library, "_MIN_FUSED_WIDTH", 2)
    monkeypatch.setattr(products, "_FEWEST_ROWS", 1)


@pytest.mark.usefixtures("narrow_matrices")
def test_an_activation_without_a_kernel_is_left_to_the_definition() -> None:
    spec = parse_spec(changed(*network("activation", "quick_gelu")), where="a case")
    torch.manual_seed(0)
    model = build_model(spec)
    assert "no such activation" in explain(spec)
    with torch.inference_mode():
        engine = prepare(model.eval(), Precision("fp32", "cpu"))
        for one, two in zip(outputs(engine, None), outputs(model, None), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=2e-5)
    definition = copy.deepcopy(model.train())
    with prepare_training(model, torch.device("cpu")).active():
        found = learned(model)
    for one, two in zip(found, learned(definition), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("narrow_matrices")
@pytest.mark.parametrize(("name", "field"), FIELDS, ids=[".".join(each) for each in FIELDS])
def test_training_honours_the_field(name: str, field: str) -> None:
    """Outputs and gradients by the processor's engine are those of the definition."""
    spec = parse_spec(changed(*CASES[name][field]), where="a case")
    try:
        torch.manual_seed(0)
        model = build_model(spec).train()
    except ModelError:
        pytest.skip("the definition does not build it")
    engine = prepare_training(model, torch.device("cpu"))
    if "dropout" in field:  # by other random numbers than the definition's
        with engine.active():
            dropped = learned(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0  # type: ignore[assignment]
    definition = copy.deepcopy(model)  # random features count the passes
    with engine.active():
        found = learned(model)
    if "dropout" in field and "Head" not in name:  # heads are not part of the pass
        assert not torch.equal(dropped[0], found[0])
    for one, two in zip(found, learned(definition), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    assert engine.explain()


def concerns(path: str, name: str, field: str) -> bool:
    """Whether a refused path is that of a field, or of the part that it describes."""
    parts = {
        "ExpertsSpec": "experts",
        "LinearAttentionSpec": "part",
        "S4DSpec": "part",
        "MambaSpec": "part",
        "Mamba2Spec": "part",
        "RWKVSpec": "part",
        "ChannelMixSpec": "part",
        "EluFeaturesSpec": "part",
        "CosineFeaturesSpec": "part",
        "RandomFeaturesSpec": "part",
        "LinformerSpec": "part",
        "RecurrentSpec": "part",
        "RecurrentDecoderSpec": "part",
        "ScoreAttentionSpec": "part",
        "ConvolutionSpec": "part",
        "TriangleMultiplicationSpec": "part",
        "TriangleAttentionSpec": "part",
        "RotarySpec": "rotary",
        "AlibiSpec": "position_bias",
        "T5BiasSpec": "position_bias",
        "KerpleSpec": "position_bias",
        "RelativeKeysSpec": "position_bias",
        "TransformerXLSpec": "position_bias",
        "DisentangledSpec": "position_bias",
        "LatentSpec": "latent",
    }
    part = "mask" if CASES[name][field][1].keys() == {f"*.{OWN}.part.mask"} else parts.get(name)
    return path.split(".")[-1] in (field, part, "sublayers", "part")


def compare_sentence(engine: Any) -> None:
    """The NumPy runtime gives the engine's logits, bit for bit."""
    assert is_untouched(engine)
    ids, places = torch.tensor([[5, 6, 7, 8, 9]]), torch.arange(5)[None]
    state = engine.start(ids, places)
    sentence = share_weights(engine).begin(ids[0].tolist())
    for step, tokens in enumerate(([2], [5, 6], [7, 8])):
        logits, state = engine.step(state, torch.tensor([tokens]))
        assert np.array_equal(sentence.step(tokens), logits[0].numpy()), step
        if step == 0:
            state = engine.reorder(state, torch.tensor([[0, 0]]))
            sentence.choose([0, 0])


def test_a_field_that_no_table_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = dict(support._BLOCKS[AttentionSpec])
    del rules["scale"]
    monkeypatch.setitem(support._BLOCKS, AttentionSpec, rules)
    assert not cpu_refusals(parse_spec(changed(*case()), where=""))
    scaled = parse_spec(changed(*own("scale", 0.9)), where="")
    assert {str(each).split(".part.")[1] for each in cpu_refusals(scaled)} == {
        "scale: unknown to the engine"
    }


def test_people_are_told_which_engine_and_why() -> None:
    spec = parse_spec(changed(*case()), where="")
    assert explain(spec).splitlines() == [
        "kernels in C, a stack in one call",
        "a single sentence: NumPy, also without PyTorch",
    ]
    recurs = explain(parse_spec(changed(*recurrence("ssru")), where=""))
    assert recurs == explain(spec)
    text = explain(parse_spec(changed(*own("softcap", 3.0)), where=""))
    assert "part.softcap: kernels have no soft cap" in text
    assert "a single sentence: as a batch" in text
