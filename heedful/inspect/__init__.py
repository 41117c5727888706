"""Inspection of models: tensors of a pass, attention, heads, layers, the stream, alignment.

For example:

    from heedful import inspect

    model = inspect.load("RUN")
    reading = inspect.read(model, "A dog runs.")
    inspect.attention(model, reading, "cross", layers=[3]).weights
"""

from __future__ import annotations

from heedful.inspect.ablation import AblationMode, ablated, mean_outputs
from heedful.inspect.alignment_heads import (
    HeadChoice,
    WordAttention,
    choose_both,
    choose_heads,
    word_attention,
)
from heedful.inspect.attention_maps import AttentionMap, AttentionPart, attention, parts_of
from heedful.inspect.attention_steps import AttentionSteps, attention_steps
from heedful.inspect.block_flow import BlockFlow, FlowPart, block_flow
from heedful.inspect.captures import capture, shapes
from heedful.inspect.contributions import Contributions, contributions
from heedful.inspect.decoding_steps import NextToken, SearchRecord, follow_search, next_token
from heedful.inspect.effects import Bleu, Effect, effects
from heedful.inspect.examples import (
    Answers,
    Example,
    answer,
    examples_of_images,
    examples_of_tags,
    examples_of_text,
)
from heedful.inspect.head_measures import HeadMeasures, Label, Measures, measure
from heedful.inspect.logit_lens import Lens, lens
from heedful.inspect.model_parts import heads, parts
from heedful.inspect.path_lengths import Costs, Network, costs, network
from heedful.inspect.pruning import (
    Bound,
    Point,
    Pruning,
    by_importance,
    importance,
    prune,
    pruned,
)
from heedful.inspect.reach import Reach, model_reach, recurrent_reach, transformer_reach
from heedful.inspect.readings import Reading, Tokens, read, read_all, see, tensors
from heedful.inspect.subject import Subject, load
from heedful.inspect.tally import Share
from heedful.inspect.tracing import Tracing, flow, rollout
from heedful.inspect.word_alignment import AlignedPair, Alignments, align_words
from heedful.inspect.word_links import alignment_error_rate, parse_pharaoh, pharaoh, symmetrize

__all__ = [
    "AblationMode",
    "AlignedPair",
    "Alignments",
    "Answers",
    "AttentionMap",
    "AttentionPart",
    "AttentionSteps",
    "Bleu",
    "BlockFlow",
    "Bound",
    "Contributions",
    "Costs",
    "Effect",
    "Example",
    "FlowPart",
    "HeadChoice",
    "HeadMeasures",
    "Label",
    "Lens",
    "Measures",
    "Network",
    "NextToken",
    "Point",
    "Pruning",
    "Reach",
    "Reading",
    "SearchRecord",
    "Share",
    "Subject",
    "Tokens",
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
]
