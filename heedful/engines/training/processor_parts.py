"""Parts of blocks in training on a processor, and the table of the engine's classes.

The attribute `rows` of a part says how it takes rows without padding: "tokens" if it treats every
token by itself, "maps" if its first linear map unpacks and its last one packs. A part without the
attribute gets the padded batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from torch import Tensor, nn

from heedful.engines.host_parts import HOST_KINDS
from heedful.engines.training.processor_attention import (
    ProcessorCrossAttention,
    ProcessorSelfAttention,
)
from heedful.engines.training.products import ProcessorFusedLinear, ProcessorLinear
from heedful.engines.training.residual_norm import CheapDropout
from heedful.engines.unpadding import rows_in_use
from heedful.nn.attention.global_tokens import GlobalSelfAttention
from heedful.nn.attention.multi_head import CrossAttention, SelfAttention
from heedful.nn.attention.score_attention import ScoreAttention
from heedful.nn.linear_layers import FusedLinear
from heedful.nn.mixers.linear_attention import LinearAttention
from heedful.nn.mixers.linear_scan import LinearRecurrence
from heedful.nn.mixers.linformer import Linformer


class ProcessorGlobalAttention(GlobalSelfAttention):
    """Self-attention with global tokens; its second projection fits no call in C."""

    # It uses the kernels, but not `fuse`, which would project all tokens by the first projection.
    kernels = ProcessorSelfAttention.kernels
    rows = "maps"


class ProcessorScoreAttention(ScoreAttention):
    """Attention of one head, whose weights are computed from padded sequences."""

    rows = "maps"

    def step(self, x: Tensor, state: Any, context: Any) -> tuple[Tensor, Any]:
        rows = rows_in_use.get()
        # Scores are computed from the input itself, so there is no first map to unpack it.
        if rows is not None:
            x, embedding = rows.unpack(x), context.embedding
            if embedding is not None:
                context = replace(context, embedding=rows.unpack(embedding))
        return super().step(x, state, context)


class ProcessorRecurrence(LinearRecurrence):
    """A linear recurrence whose maps take rows without padding, and whose scan takes sequences."""

    rows = "maps"

    def terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        terms, rows = super().terms(x), rows_in_use.get()
        if rows is None:
            return terms
        # The scan runs along the length, so each sequence needs a row of its own.
        return cast("tuple[Tensor, Tensor]", tuple(map(rows.unpack, terms)))

    def result(self, x: Tensor, state: Tensor, context: Any) -> Tensor:
        rows = rows_in_use.get()
        # The output map takes rows again, so the states of the scan are packed for it.
        return super().result(x, state if rows is None else rows.pack(state), context)


def _with_rows(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a class of mixers that differs only in taking rows without padding."""
    return type(f"Processor{kind.__name__}", (kind,), {"rows": "maps"})


PART_KINDS = {
    **HOST_KINDS,
    SelfAttention: ProcessorSelfAttention,
    GlobalSelfAttention: ProcessorGlobalAttention,
    CrossAttention: ProcessorCrossAttention,
    LinearAttention: _with_rows(LinearAttention),
    Linformer: _with_rows(Linformer),
    ScoreAttention: ProcessorScoreAttention,
    LinearRecurrence: ProcessorRecurrence,
    FusedLinear: ProcessorFusedLinear,
    nn.Linear: ProcessorLinear,
    nn.Dropout: CheapDropout,
}
"""The engine's classes by the definition's; a subclass of the definition's is served too."""
