"""Looking into models: tensors of a pass, attention, heads, layers, the stream, alignment.

For example:

    from heedful import inspect

    model = inspect.load("RUN")
    seen = inspect.read(model, "A dog runs.")
    inspect.attention(model, seen, "cross", layers=[3]).weights
"""

from __future__ import annotations

from heedful.inspect.aligning import AlignedPair, Alignments, align_words
from heedful.inspect.captures import capture, shapes
from heedful.inspect.head_choice import HeadChoice, choose_both, choose_heads
from heedful.inspect.layer_lens import Lens, lens
from heedful.inspect.links import alignment_error_rate, parse_pharaoh, pharaoh, symmetrize
from heedful.inspect.maps import AttentionMap, Part, attention, parts_of
from heedful.inspect.measures import HeadMeasures, Label, Measures, measure
from heedful.inspect.reading import Reading, Tokens, read, read_all, see, tensors
from heedful.inspect.residual import Contributions, contributions
from heedful.inspect.subject import Subject, load
from heedful.inspect.tally import Share
from heedful.inspect.tracing import Tracing, flow, rollout
from heedful.inspect.word_maps import WordAttention, word_attention

__all__ = [
    "AlignedPair",
    "Alignments",
    "AttentionMap",
    "Contributions",
    "HeadChoice",
    "HeadMeasures",
    "Label",
    "Lens",
    "Measures",
    "Part",
    "Reading",
    "Share",
    "Subject",
    "Tokens",
    "Tracing",
    "WordAttention",
    "align_words",
    "alignment_error_rate",
    "attention",
    "capture",
    "choose_both",
    "choose_heads",
    "contributions",
    "flow",
    "lens",
    "load",
    "measure",
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
    "word_attention",
]
