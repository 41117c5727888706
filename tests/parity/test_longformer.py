"""Attention with global tokens beside that of `transformers`' Longformer, random weights."""

from __future__ import annotations

import torch
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from heedful.nn.attention.masks import AnyOf, Window
from heedful.nn.attention.sparse_masks import GlobalTokens
from heedful.nn.mixer import Context, build_part
from heedful.nn.positions import Positions
from heedful.nn.spec import AttentionSpec

WIDTH, HEADS, COUNT = 8, 2, 2


def test_windows_and_global_tokens_are_those_of_longformer() -> None:
    config = LongformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        attention_window=[4],
        num_hidden_layers=1,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(1)
    theirs = LongformerSelfAttention(config, layer_id=0).double().eval()
    mask = AnyOf(parts=(Window(size=3), GlobalTokens(count=COUNT)))
    spec = AttentionSpec(num_heads=HEADS, mask=mask, global_tokens=COUNT)
    ours = build_part(WIDTH, spec).double().eval()
    with torch.no_grad():
        for fused, ending in ((ours.projection, ""), (ours.global_projection, "_global")):
            linears = [getattr(theirs, name + ending) for name in ("query", "key", "value")]
            fused.weight.copy_(torch.cat([each.weight for each in linears]))
            fused.bias.copy_(torch.cat([each.bias for each in linears]))
        ours.output.weight.copy_(torch.eye(WIDTH))
        ours.output.bias.zero_()
        x = torch.randn(2, 12, WIDTH, dtype=torch.float64)
        is_global = torch.arange(12).expand(2, -1) < COUNT
        expected = theirs(
            x,
            attention_mask=is_global.double() * 10_000.0,
            is_index_masked=torch.zeros(2, 12, dtype=torch.bool),
            is_index_global_attn=is_global,
            is_global_attn=True,
        )[0]
        found = ours(x, Context(Positions.of_self(torch.arange(12).expand(2, -1))))
    torch.testing.assert_close(found, expected)
