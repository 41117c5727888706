"""Whisper (Radford 2022): an encoder of log-mel frames, and a pre-norm decoder of text.

Its keys have no bias, and get one of zeros here: a bias of keys adds the same number to all scores
of a query, which the softmax takes away. An export may therefore leave it out, whatever it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from heedful.interop.architecture import Architecture, Names
from heedful.interop.architectures.translators.bart import layer_rules, read_stack, write_stacks
from heedful.interop.config_fields import Fields
from heedful.interop.tensor_table import RepeatedTensor, Rule, Table, prefix_of, renamed, same
from heedful.models.sounds.transcriber_spec import TranscriberSpec
from heedful.nn.spec import EmbeddingSpec, PositionSpec


def _read(fields: Fields, names: Names) -> TranscriberSpec:
    # Both fields are of classes without use here: its embeddings are never scaled.
    fields.refuse_unless("scale_embedding", [False], False)
    fields.refuse_unless("tie_word_embeddings", [True], True)
    fields.check_aliases(num_key_value_heads="encoder_attention_heads")
    positions = PositionSpec(kind="learned", max_length=fields.integer("max_target_positions", 448))
    return TranscriberSpec(
        width=fields.integer("d_model"),
        vocabulary=fields.integer("vocab_size"),
        bands=fields.integer("num_mel_bins", 80),
        # The second convolution makes one state of two frames.
        frames=2 * fields.integer("max_source_positions", 1500),
        embedding=EmbeddingSpec(
            scale=False, positions=positions, dropout=fields.number("dropout", 0.0)
        ),
        encoder=read_stack(fields, "encoder", pre_norm=True),
        decoder=read_stack(fields, "decoder", pre_norm=True),
    )


def _write(spec: TranscriberSpec) -> dict[str, Any]:
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        **write_stacks(spec),
        "vocab_size": spec.vocabulary,
        "num_mel_bins": spec.bands,
        "max_source_positions": spec.num_states,
        "max_target_positions": spec.embedding.positions.max_length,
        "tie_word_embeddings": True,
    }


def _table(spec: TranscriberSpec, names: Names) -> Table:
    prefix = prefix_of(names, "model.")
    table = f"{prefix}decoder.embed_tokens.weight"
    rules = [
        same(table, "target_embedding.weight"),
        same(f"{prefix}encoder.embed_positions.weight", "source_input.positions.weight"),
        same(f"{prefix}decoder.embed_positions.weight", "target_input.positions.weight"),
        *renamed(
            {"conv1": "first", "conv2": "second"},
            theirs=f"{prefix}encoder.",
            ours="source_input.",
        ),
    ]
    for rule in layer_rules(spec, prefix):
        (ours,) = rule.ours
        if ours.endswith(".key.weight"):
            bias = ours.replace(".weight", ".bias")
            rules.append(Rule(rule.theirs, (ours, bias), _with_zeros, lambda x: [x[0]]))
        elif not ours.endswith(".key.bias"):
            rules.append(rule)
    return Table(tuple(rules), (RepeatedTensor("proj_out.weight", table),))


def _with_zeros(weight: Sequence[Tensor]) -> list[Tensor]:
    """Return the weight of keys and a bias, in the type of the file."""
    return [weight[0], weight[0].new_zeros(len(weight[0]))]


ARCHITECTURE = Architecture(
    model_type="whisper",
    kind="transcriber",
    read=_read,
    write=_write,
    tensors=_table,
    # Tokens of a beginning stand in generation_config.json, see `heedful.interop.sound_processor`.
    compared=lambda spec: spec.model_copy(update={"prompt": None}),
    classes=("WhisperForConditionalGeneration", "WhisperModel"),
    inert=(
        # Noise in training, and a classifier and times of words that its classes do not have.
        *("apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks"),
        *("mask_feature_prob", "mask_feature_length", "mask_feature_min_masks"),
        *("use_weighted_layer_sum", "classifier_proj_size", "median_filter_width"),
        "forced_decoder_ids",  # read with generation_config.json
    ),
)
