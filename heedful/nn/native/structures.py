"""The structures of the kernels in C, field by field."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_uint32, c_void_p

_SIGHT = (  # who sees whom, in attention that is learned
    ("visible", c_void_p),
    ("visible_batch", c_int64),
    ("visible_head", c_int64),
    ("visible_query", c_int64),
    ("query_starts", c_void_p),
    ("key_starts", c_void_p),
)


class Linear(Structure):
    """`Linear` of kernels.c."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("scale", c_void_p),
        ("correction", c_void_p),
        ("in_width", c_int64),
        ("out_width", c_int64),
    )


class Norm(Structure):
    """`Norm` of kernels.c."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_float))


class AttentionLayer(Structure):
    """`AttentionLayer` of kernels.c."""

    _fields_ = (
        ("projection", Linear),
        ("output", Linear),
        ("norm", Norm),
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("head_width", c_int64),
        ("scale", c_float),
    )


class Layer(Structure):
    """`Layer` of kernels.c."""

    _fields_ = (
        ("self", AttentionLayer),
        ("cross", AttentionLayer),
        ("up", Linear),
        ("gate", Linear),
        ("down", Linear),
        ("norm", Norm),
        ("width", c_int64),
        ("norm_first", c_int32),
        ("has_cross", c_int32),
        ("gated", c_int32),
        ("activation", c_int32),
    )


class Seen(Structure):
    """`Seen` of kernels.c."""

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
        ("query_rows", c_void_p),
        ("key_rows", c_void_p),
        ("weights_suffice", c_int64),
    )


class Turns(Structure):
    """`Turns` of step.h, and what its addresses are of."""

    held: object
    _fields_ = (
        ("cosine", c_void_p),
        ("sine", c_void_p),
        ("pairs", c_int64),
        ("neighbours", c_int64),
    )


class Pass(Structure):
    """`Pass` of step.h."""

    _fields_ = (
        ("layers", POINTER(POINTER(Layer))),
        ("count", c_int64),
        ("self", Seen),
        ("cross", Seen),
        ("keys", POINTER(c_void_p)),
        ("values", POINTER(c_void_p)),
        ("taken", c_int64),
        ("turns", Turns),
        ("memory_keys", POINTER(c_void_p)),
        ("memory_values", POINTER(c_void_p)),
    )


class Rows(Structure):
    """`Rows` of kernels.c, with its `Numbers`."""

    _fields_ = (
        ("at", c_void_p),
        ("is_half", c_int64),
        ("batch", c_int64),
        ("head", c_int64),
        ("row", c_int64),
    )


class Attended(Structure):
    """`Attended` of kernels.c."""

    _fields_ = (
        ("q", Rows),
        ("k", Rows),
        ("v", Rows),
        ("out", Rows),
        ("for_q", Rows),
        ("for_k", Rows),
        ("for_v", Rows),
        *_SIGHT,
        ("statistics", c_void_p),
        ("room", c_void_p),
        ("batch", c_int64),
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("num_queries", c_int64),
        ("num_keys", c_int64),
        ("width", c_int64),
        ("scale", c_float),
    )


class Numbers(Structure):
    """`Numbers` of kernels.c."""

    _fields_ = (("at", c_void_p), ("is_half", c_int64))


class LearnedMap(Structure):
    """`LearnedMap` of sublayer.h."""

    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("for_weight", c_void_p),
        ("for_bias", c_void_p),
        ("in_width", c_int64),
        ("out_width", c_int64),
    )


class Sublayer(Structure):
    """`Sublayer` of sublayer.h."""

    _fields_ = (
        ("first", LearnedMap),
        ("second", LearnedMap),
        ("x", Numbers),
        ("read", c_void_p),
        ("sum", Numbers),
        ("y", Numbers),
        ("norm_weight", c_void_p),
        ("norm_bias", c_void_p),
        ("kept", c_void_p),
        ("room", c_void_p),
        ("for_sum", Numbers),
        ("for_y", Numbers),
        ("for_x", Numbers),
        ("for_read", Numbers),
        ("for_norm_weight", c_void_p),
        ("for_norm_bias", c_void_p),
        ("memory", c_void_p),
        ("for_memory", c_void_p),
        *_SIGHT,
        ("rows", c_int64),
        ("memory_rows", c_int64),
        ("batch", c_int64),
        ("num_queries", c_int64),
        ("num_keys", c_int64),
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("seed", c_int64),
        ("least", c_uint32),
        ("kept_scale", c_float),
        ("epsilon", c_float),
        ("score_scale", c_float),
        ("halves", c_int32),
        ("activation", c_int32),
    )
