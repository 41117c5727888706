"""Structures and functions of `csrc/heedful.h`; made by `tools/kernel_bindings.py`."""

from __future__ import annotations

# ruff: noqa
# fmt: off

from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64
from ctypes import c_uint32, c_uint64, c_void_p
from typing import Any


class Array(Structure):
    __slots__ = ()
    _fields_ = (
        ("data", c_void_p),
        ("is_bf16", c_int64),
    )


class Linear(Structure):
    __slots__ = ()
    _fields_ = (
        ("packed_weight", c_void_p),
        ("bias", c_void_p),
        ("scale", c_void_p),
        ("correction", c_void_p),
        ("in_width", c_int64),
        ("out_width", c_int64),
    )


class Norm(Structure):
    __slots__ = ()
    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("epsilon", c_float),
    )


class AttentionLayer(Structure):
    __slots__ = ()
    _fields_ = (
        ("projection", Linear),
        ("output", Linear),
        ("norm", Norm),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_width", c_int64),
        ("scale", c_float),
    )


class RecurrentLayer(Structure):
    __slots__ = ()
    _fields_ = (
        ("value", Linear),
        ("up", Linear),
        ("down", Linear),
        ("gate", Linear),
        ("norm", Norm),
    )


class Layer(Structure):
    __slots__ = ()
    _fields_ = (
        ("self", AttentionLayer),
        ("recurrent", RecurrentLayer),
        ("cross", AttentionLayer),
        ("up", Linear),
        ("gate", Linear),
        ("down", Linear),
        ("norm", Norm),
        ("width", c_int64),
        ("mixer", c_int32),
        ("norm_first", c_int32),
        ("has_cross", c_int32),
        ("gated", c_int32),
        ("activation", c_int32),
    )


class AttentionArgs(Structure):
    __slots__ = ()
    _fields_ = (
        ("queries", c_void_p),
        ("query_batch", c_int64),
        ("query_row", c_int64),
        ("keys", c_void_p),
        ("key_batch", c_int64),
        ("key_head", c_int64),
        ("key_slot", c_int64),
        ("values", c_void_p),
        ("value_batch", c_int64),
        ("value_head", c_int64),
        ("value_slot", c_int64),
        ("visible", c_void_p),
        ("visible_batch", c_int64),
        ("visible_query", c_int64),
        ("bias", c_void_p),
        ("bias_batch", c_int64),
        ("bias_head", c_int64),
        ("bias_query", c_int64),
        ("weights", c_void_p),
        ("batch", c_int64),
        ("num_queries", c_int64),
        ("num_keys", c_int64),
        ("query_starts", c_void_p),
        ("key_starts", c_void_p),
        ("weights_only", c_int64),
    )


class RotaryTable(Structure):
    __slots__ = ()
    _fields_ = (
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("num_pairs", c_int64),
        ("interleaved", c_int64),
    )


class RecurrenceArgs(Structure):
    __slots__ = ()
    _fields_ = (
        ("before", c_void_p),
        ("after", c_void_p),
        ("positions", c_void_p),
        ("starts", c_void_p),
        ("num_texts", c_int64),
    )


class StackArgs(Structure):
    __slots__ = ()
    _fields_ = (
        ("layers", POINTER(POINTER(Layer))),
        ("num_layers", c_int64),
        ("self", AttentionArgs),
        ("cross", AttentionArgs),
        ("keys", POINTER(c_void_p)),
        ("values", POINTER(c_void_p)),
        ("num_cached", c_int64),
        ("recurrence", RecurrenceArgs),
        ("states", POINTER(c_void_p)),
        ("next_states", POINTER(c_void_p)),
        ("rotary", RotaryTable),
        ("memory_keys", POINTER(c_void_p)),
        ("memory_values", POINTER(c_void_p)),
    )


class HeadTensor(Structure):
    __slots__ = ()
    _fields_ = (
        ("array", Array),
        ("batch_stride", c_int64),
        ("head_stride", c_int64),
        ("row_stride", c_int64),
    )


class AttentionTraining(Structure):
    __slots__ = ()
    _fields_ = (
        ("q", HeadTensor),
        ("k", HeadTensor),
        ("v", HeadTensor),
        ("out", HeadTensor),
        ("grad_q", HeadTensor),
        ("grad_k", HeadTensor),
        ("grad_v", HeadTensor),
        ("visible", c_void_p),
        ("visible_batch", c_int64),
        ("visible_head", c_int64),
        ("visible_query", c_int64),
        ("query_starts", c_void_p),
        ("key_starts", c_void_p),
        ("softmax_stats", c_void_p),
        ("workspace", c_void_p),
        ("batch", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("num_queries", c_int64),
        ("num_keys", c_int64),
        ("head_width", c_int64),
        ("scale", c_float),
    )


class LinearTraining(Structure):
    __slots__ = ()
    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("grad_weight", c_void_p),
        ("grad_bias", c_void_p),
        ("in_width", c_int64),
        ("out_width", c_int64),
    )


class Sublayer(Structure):
    __slots__ = ()
    _fields_ = (
        ("first", LinearTraining),
        ("second", LinearTraining),
        ("x", Array),
        ("input", c_void_p),
        ("sum", Array),
        ("y", Array),
        ("norm_weight", c_void_p),
        ("norm_bias", c_void_p),
        ("saved", c_void_p),
        ("workspace", c_void_p),
        ("grad_sum", Array),
        ("grad_y", Array),
        ("grad_x", Array),
        ("grad_input", Array),
        ("grad_norm_weight", c_void_p),
        ("grad_norm_bias", c_void_p),
        ("memory", c_void_p),
        ("grad_memory", c_void_p),
        ("visible", c_void_p),
        ("visible_batch", c_int64),
        ("visible_head", c_int64),
        ("visible_query", c_int64),
        ("query_starts", c_void_p),
        ("key_starts", c_void_p),
        ("rows", c_int64),
        ("memory_rows", c_int64),
        ("batch", c_int64),
        ("num_queries", c_int64),
        ("num_keys", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("dropout_seed", c_uint64),
        ("drop_threshold", c_uint32),
        ("keep_scale", c_float),
        ("epsilon", c_float),
        ("score_scale", c_float),
        ("is_bf16", c_int32),
        ("activation", c_int32),
    )


class LayoutEntry(Structure):
    __slots__ = ()
    _fields_ = (
        ("name", c_char_p),
        ("bytes", c_int64),
    )


STRUCTS: tuple[type[Structure], ...] = (
    Array, Linear, Norm, AttentionLayer, RecurrentLayer, Layer, AttentionArgs, RotaryTable,
    RecurrenceArgs, StackArgs, HeadTensor, AttentionTraining, LinearTraining, Sublayer, LayoutEntry,
)

FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "heedful_select": (c_int, [c_int]),
    "heedful_layout": (POINTER(LayoutEntry), [c_void_p]),
    "heedful_instructions": (c_char_p, []),
    "heedful_build": (c_char_p, []),
    "heedful_lanes": (c_int, []),
    "heedful_has_amx": (c_int, []),
    "heedful_has_fast_bf16": (c_int, []),
    "heedful_packed_size": (c_int64, [c_int64, c_int64, c_int]),
    "heedful_pack_f32": (None, [c_void_p, c_int64, c_int64, c_void_p]),
    "heedful_pack_int8": (None, [c_void_p, c_int64, c_int64, c_void_p]),
    "heedful_linear_workspace": (c_int64, [POINTER(Linear), c_int64]),
    "heedful_linear": (None, [POINTER(Linear), c_void_p, c_int64, c_void_p, c_int, c_void_p]),
    "heedful_norm": (None, [POINTER(Norm), c_void_p, c_int64, c_int64, c_void_p]),
    "heedful_layer_workspace": (c_int64, [POINTER(Layer), c_int64, c_int64]),
    "heedful_project": (None, [POINTER(Layer), c_void_p, c_int64, c_void_p, c_void_p]),
    "heedful_layer": (None, [
        POINTER(Layer), c_void_p, c_int64, POINTER(AttentionArgs), POINTER(AttentionArgs), c_void_p,
        c_void_p,
    ]),
    "heedful_stack_workspace": (c_int64, [POINTER(StackArgs), c_int64]),
    "heedful_stack": (None, [POINTER(StackArgs), c_void_p, c_int64, c_void_p, c_void_p]),
    "heedful_embed": (c_int, [
        c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_float, c_void_p, c_int64, c_int64,
        c_int64, c_void_p,
    ]),
    "heedful_rotary_table": (None, [
        c_void_p, c_int64, c_void_p, c_int64, c_float, c_void_p, c_void_p,
    ]),
    "heedful_rotate": (None, [POINTER(RotaryTable), c_void_p, c_int64, c_int64, c_int64, c_int64]),
    "heedful_visible": (c_int, [
        c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int, c_void_p,
    ]),
    "heedful_logsumexp": (c_int, [c_void_p, c_int64, c_int64, c_void_p]),
    "heedful_topk": (None, [
        c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_void_p,
        c_void_p, c_void_p, c_void_p,
    ]),
    "heedful_residual_norm": (None, [
        c_int64, c_int64, c_void_p, c_int, c_void_p, c_int, c_void_p, c_void_p, c_int, c_void_p,
        c_void_p, c_float, c_void_p, c_int64, c_uint32, c_float,
    ]),
    "heedful_residual_norm_backward": (None, [
        c_int64, c_int64, c_void_p, c_int, c_void_p, c_int, c_void_p, c_int, c_void_p, c_void_p,
        c_void_p, c_int64, c_uint32, c_float, c_void_p, c_int, c_void_p, c_int, c_void_p, c_void_p,
        c_void_p,
    ]),
    "heedful_attention_workspace": (c_int64, [POINTER(AttentionTraining)]),
    "heedful_attention": (None, [POINTER(AttentionTraining), c_int]),
    "heedful_packed_b_size": (c_int64, [c_int64, c_int64, c_int]),
    "heedful_pack_b": (None, [
        c_void_p, c_int, c_int64, c_int64, c_int64, c_int64, c_int, c_void_p,
    ]),
    "heedful_gemm_workspace": (c_int64, [c_int64, c_int64, c_int64, c_int, c_int, c_int]),
    "heedful_gemm": (None, [
        c_void_p, c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int, c_void_p, c_int,
        c_void_p, c_int, c_void_p, c_int, c_void_p,
    ]),
    "heedful_gemm_transposed": (None, [
        c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int, c_int, c_void_p, c_void_p,
    ]),
    "heedful_sublayer_saved": (c_int64, [POINTER(Sublayer)]),
    "heedful_sublayer_workspace": (c_int64, [POINTER(Sublayer), c_int]),
    "heedful_sublayer": (None, [POINTER(Sublayer)]),
    "heedful_sublayer_backward": (None, [POINTER(Sublayer)]),
}
"""Result and parameters of each function."""
