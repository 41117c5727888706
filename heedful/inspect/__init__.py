"""Inspection of models: tensors of a pass, attention, heads, layers, the stream, alignment.

For example:

    from heedful import inspect

    model = inspect.load("RUN")
    reading = inspect.read(model, "A dog runs.")
    inspect.attention(model, reading, "cross", layers=[3]).weights
"""

from __future__ import annotations

from heedful.inspect.ablation import AblationMode, ablated, heads, mean_outputs, parts
from heedful.inspect.attention_maps import (
    AttentionMap,
    AttentionPart,
    AttentionSteps,
    attention,
    attention_steps,
    parts_of,
)
from heedful.inspect.block_flow import BlockFlow, FlowPart, block_flow
from heedful.inspect.decoding_steps import NextToken, SearchRecord, follow_search, next_token
from heedful.inspect.examples import (
    AnsweredInput,
    Answers,
    answer,
    examples_of_images,
    examples_of_tags,
    examples_of_text,
)
from heedful.inspect.head_measures import AttentionShare, HeadLabel, HeadMeasures, Measures, measure
from heedful.inspect.path_lengths import (
    Costs,
    Network,
    Reach,
    costs,
    model_reach,
    network,
    recurrent_reach,
    transformer_reach,
)
from heedful.inspect.pruning import (
    Bleu,
    Bound,
    Effect,
    Point,
    Pruning,
    by_importance,
    effects,
    importance,
    prune,
    pruned,
)
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
    "AblationMode",
    "AlignedPair",
    "Alignments",
    "AnsweredInput",
    "Answers",
    "AttentionMap",
    "AttentionPart",
    "AttentionShare",
    "AttentionSteps",
    "Bleu",
    "BlockFlow",
    "Bound",
    "Contributions",
    "Costs",
    "Effect",
    "FlowPart",
    "HeadChoice",
    "HeadLabel",
    "HeadMeasures",
    "Influence",
    "Lens",
    "Measures",
    "ModelInput",
    "Network",
    "NextToken",
    "Point",
    "Pruning",
    "Reach",
    "SearchRecord",
    "StackTokens",
    "Subject",
    "Tracing",
    "WordAttention",
    "ablated",
    "align_words",
    "alignment_error_rate",
    "answer",
    "attention",
    "attention_steps",
    "block_flow",
    "by_importance",
    "capture",
    "choose_both",
    "choose_heads",
    "contributions",
    "costs",
    "effects",
    "examples_of_images",
    "examples_of_tags",
    "examples_of_text",
    "flow",
    "follow_search",
    "heads",
    "importance",
    "influence",
    "lens",
    "load",
    "mean_outputs",
    "measure",
    "model_reach",
    "network",
    "next_token",
    "parse_pharaoh",
    "parts",
    "parts_of",
    "pharaoh",
    "prune",
    "pruned",
    "read",
    "read_all",
    "recurrent_reach",
    "rollout",
    "see",
    "shapes",
    "symmetrize",
    "tensors",
    "transformer_reach",
    "word_attention",
]  # fmt: skip
