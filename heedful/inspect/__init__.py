"""Inspection of models: tensors of a pass, attention, heads, layers, the stream, alignment.

For example:

    from heedful import inspect

    model = inspect.load("RUN")
    reading = inspect.read(model, "A dog runs.")
    inspect.attention(model, reading, "cross", layers=[3]).weights
"""

from __future__ import annotations

from heedful.inspect.attention_maps import (
    AttentionMap,
    AttentionPart,
    AttentionSteps,
    attention,
    attention_steps,
    parts_of,
    usual_part,
)
from heedful.inspect.block_flow import BlockFlow, FlowPart, block_flow
from heedful.inspect.decoding_steps import NextToken, SearchRecord, follow_search, next_token
from heedful.inspect.head_measures import AttentionShare, HeadLabel, HeadMeasures, Measures, measure
from heedful.inspect.readings import ModelInput, StackTokens, read, read_all, see, tensors
from heedful.inspect.residual_stream import Contributions, Lens, contributions, lens
from heedful.inspect.silent_tokens import Influence, influence
from heedful.inspect.subject import Subject, capture, load, shapes
from heedful.inspect.tracing import Tracing, flow, rollout
from heedful.inspect.word_alignment import (
    AlignedPair,
    Alignments,
    HeadChoice,
    WordAttention,
    align_words,
    choose_both,
    choose_heads,
    word_attention,
)
from heedful.inspect.word_links import alignment_error_rate, parse_pharaoh, pharaoh, symmetrize

__all__ = [
    "AlignedPair",
    "Alignments",
    "AttentionMap",
    "AttentionPart",
    "AttentionShare",
    "AttentionSteps",
    "BlockFlow",
    "Contributions",
    "FlowPart",
    "HeadChoice",
    "HeadLabel",
    "HeadMeasures",
    "Influence",
    "Lens",
    "Measures",
    "ModelInput",
    "NextToken",
    "SearchRecord",
    "StackTokens",
    "Subject",
    "Tracing",
    "WordAttention",
    "align_words",
    "alignment_error_rate",
    "attention",
    "attention_steps",
    "block_flow",
    "capture",
    "choose_both",
    "choose_heads",
    "contributions",
    "flow",
    "follow_search",
    "influence",
    "lens",
    "load",
    "measure",
    "next_token",
    "parse_pharaoh",
    "parts_of",
    "pharaoh",
    "read",
    "read_all",
    "rollout",
    "see",
    "shapes",
    "symmetrize",
    "tensors",
    "usual_part",
    "word_attention",
]  # fmt: skip
