"""What a model of a type that is not read has and no architecture here, told by its settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_PARTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("encoder_attention_type", "local_radius"), "attention in blocks with a token for each block"),
    (("num_random_blocks", "block_size"), "attention over blocks of which some are drawn"),
    (("attention_window",), "attention in windows whose global tokens have maps of their own"),
    (("lsh_attn_chunk_length",), "attention among tokens of equal hashes, in reversible layers"),
    (("num_hash_functions", "downsampling_rate"), "characters by hashes, in shorter sequences"),
    (("num_landmarks",), "attention by way of landmarks"),
    (("num_latents", "d_latents"), "latent vectors that read an input of any kind"),
    (("use_tpu_fourier_optimizations",), "Fourier transforms in the place of attention"),
    (("tpu_short_seq_length",), "Fourier transforms in the place of attention"),
    (("bi_data", "same_length"), "attention over permuted orders of the tokens"),
    (("block_sizes", "pooling_type"), "blocks that shorten the sequence, and restore it"),
    (("ngram", "disable_ngram_loss"), "prediction of several tokens ahead by streams of attention"),
    (("head_ratio", "conv_kernel_size"), "convolutions whose kernels depend on the tokens"),
    (("q_groups", "k_groups"), "maps of queries, keys and values in groups of channels"),
    (("intra_bottleneck_size",), "bottlenecks around each layer"),
    (("max_2d_position_embeddings",), "positions of words on a page"),
    (("attn_layer_period", "mamba_d_state"), "state spaces and attention in turn, with experts"),
    (("mask_decoder_config",), "a decoder of masks, asked by points and boxes"),
    (("flow_size", "spectrogram_bins"), "flows from text to the samples of speech"),
    (("conv_stride", "feat_extract_norm"), "convolutions over the samples of a sound"),
    (("depths", "window_size"), "windows of patches that move from layer to layer, in stages"),
    (("sr_ratios",), "stages of images whose keys and values are fewer than their queries"),
    (("hidden_sizes", "depths"), "stages of convolutions over images"),
)
"""Settings that only models with a part have, and the part."""

_NETWORK = "_config"
_NEAR = 4
"""Most settings in which a model of the same family differs; with more they share names alone."""
_MOST_SHOWN = 4


def unread_type(
    model_type: str,
    config: Mapping[str, Any],
    unread: Callable[[Mapping[str, Any]], Iterable[tuple[str, Sequence[str]]]],
) -> str:
    """Return a sentence on the part that a model has and no architecture here.

    Args:
        model_type: type that no architecture reads.
        config: content of its config.json.
        unread: function from a config.json to the architectures that its settings fit, the usual
            ones first, each with the settings that it does not know.
    """
    told = f"Models of type {model_type!r} cannot be imported"
    for keys, part in _PARTS:
        if all(config.get(key) is not None for key in keys):
            return f"{told}: Heedful reads no model with {part} ({_shown(config, keys)})"
    networks = [key for key, value in config.items() if key.endswith(_NETWORK) and value]
    if networks:
        return (
            f"{told}: it joins several networks ({', '.join(networks)}) in a way of its own, and "
            "Heedful reads such pairs only as clip and siglip"
        )
    found = [(name, [*keys]) for name, keys in unread(config)]
    if not found:
        return f"{told}: no architecture here has settings like {_names(config)}"
    name, other = min(found, key=lambda each: len(each[1]))
    if len(other) > _NEAR:
        return f"{told}: no architecture here has its {_shown(config, other[:_MOST_SHOWN])}"
    if not other:
        return (
            f"{told}: its settings are those of {name!r}, and what it computes otherwise stands in "
            "its code alone"
        )
    return f"{told}: its settings are those of {name!r} but for {_shown(config, other)}"


def _shown(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    shown = [f"{key} = {json.dumps(config.get(key), default=str)[:40]}" for key in keys]
    return ", ".join(shown)


def _names(config: Mapping[str, Any]) -> str:
    return ", ".join([key for key in config if key != "model_type"][:_MOST_SHOWN]) or "none"
