"""The pages of the studio, with their texts.

A new page needs an entry below, a module in this folder with its calls, and a script in
`static/pages`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heedful.apps.studio.page import Call

MOST_IMAGE_BYTES = 8 << 20
"""Maximum size of an uploaded image in bytes."""


@dataclass(frozen=True)
class Page:
    """A page of the studio; its script is `static/pages/NAME.js`.

    Args:
        name: name in the address.
        title: title in the navigation and above the page.
        summary: purpose of the page, in one line.
        about: explanation in two or three sentences.
        limits: maximum size of the body in bytes, for calls that take more than others.
    """

    name: str
    title: str
    summary: str
    about: str
    limits: Mapping[str, int] = field(default_factory=dict)

    @functools.cached_property  # every call from a browser asks for it
    def calls(self) -> Mapping[str, Call]:
        """The calls of the page by name; their module, and PyTorch, are loaded at the first use."""
        from heedful.apps.studio.page import Call

        members = vars(import_module(f"{__name__}.{self.name}_page")).values()
        calls = [getattr(each, "call", None) for each in members if isfunction(each)]
        return {call.name: call for call in calls if isinstance(call, Call)}

    def plain(self) -> dict[str, str]:
        """Return the texts of the page for the shell, as JSON data."""
        return {name: getattr(self, name) for name in ("name", "title", "summary", "about")}


PAGES: tuple[Page, ...] = (
    Page(
        "tour",
        "The tour",
        "One sentence from its text to the next word.",
        "Open the whole model, then follow one sentence through it. Every colour is a number that "
        "the model computed.",
    ),
    Page(
        "paths",
        "Paths",
        "The steps from one token to another, and the influence that remains.",
        "Attention connects any two tokens in one step. A recurrent network takes a step for each "
        "token, and the signal fades.",
    ),
    Page(
        "steps",
        "Step by step",
        "One attention in numbers, on a model or on matrices you type.",
        "Follow a word through attention in small numbers: what it seeks, what matches, what it "
        "takes. Then follow one through a head of a model.",
    ),
    Page(
        "scale",
        "Scale",
        "The softmax with and without the division by √dₖ.",
        "Softmax turns scores into shares of attention. Wide heads have large scores: without the "
        "division by √dₖ one word takes everything, and training can hardly change that.",
    ),
    Page(
        "attention",
        "Attention",
        "Attention between words, in a model of yours.",
        "Every word gathers information from the words it attends to; the larger the attention "
        "weight, the stronger the line. Each head has a colour and a pattern of its own.",
    ),
    Page(
        "positions",
        "Positions",
        "The ways to give a model the positions of tokens.",
        "Attention by itself sees a set of words, not a sentence. Positions give it the order: as "
        "a vector added to each word, a rotation of queries and keys, or a number added to the "
        "score of a pair.",
    ),
    Page(
        "block",
        "Block",
        "A sentence through a block: shapes, sizes, and the residual stream beside it.",
        "Attention mixes the words, the feed-forward network works on each word alone. Both add "
        "what they find to a stream of vectors that runs past them, on the left.",
    ),
    Page(
        "masks",
        "Masks and biases",
        "The words that each word may look at, and the numbers that distance adds to scores.",
        "In training the whole text is there at once, and a word could copy the next one, which it "
        "has to predict. A mask hides it: its score becomes −∞, and its attention 0. A bias "
        "raises or lowers scores instead, of far words for example.",
    ),
    Page(
        "decoding",
        "Decoding",
        "Generation: the next token, sampling, and the beam as a tree.",
        "A model writes one token, a word or a piece of one, after the other. Taking the likeliest "
        "each time can miss the likeliest text: a beam keeps several, and finds it.",
    ),
    Page(
        "builder",
        "Builder",
        "A Transformer, part by part: what each does, what it costs, what breaks without it.",
        "Build the Transformer of 2017 part by part and watch words flow through it. Switch parts "
        "off to see what breaks.",
    ),
    Page(
        "without",
        "Without each part",
        "What a small translator loses without each of its parts.",
        "A small translator learned to write English dates in German: with everything, and "
        "without each of its parts. Choose some to see why they fail, and train one here to check.",
    ),
    Page(
        "schedule",
        "Schedule",
        "The learning rate over the steps of training.",
        "Why training begins with small steps: the learning rate rises at first, the warm-up, and "
        "then falls. A small translator was trained with six warm-ups. Click one.",
    ),
    Page(
        "results",
        "The paper's results",
        "Quality and training cost of the systems of 2017.",
        "In 2017 the big Transformer translated better than all systems before it, at a fraction "
        "of the best one's training. BLEU counts the words and phrases that a translation shares "
        "with a person's: more is better. All figures are the paper's own.",
    ),
    Page(
        "everywhere",
        "Transformers everywhere",
        "Pixels, music, acts, series and sounds: cut into tokens, completed, and looked into.",
        "Attention takes a sequence of vectors and does not ask what they stand for. Whatever can "
        "be cut into tokens can enter the same block.",
    ),
    Page(
        "image",
        "Image",
        "A picture in patches, the attention between them, and the labels of the picture.",
        "A vision Transformer cuts a picture into patches and reads them like the words of a "
        "sentence. Draw a digit, and click a patch to see which others it attends to.",
        # The file in base64, and room for the settings.
        limits={"look": MOST_IMAGE_BYTES * 4 // 3 + (1 << 16)},
    ),
    Page(
        "translate",
        "Translate",
        "A translation, the source of each word, and other words in its place.",
        "The lines show where each word of the translation looks in the text: its cross-attention. "
        "Click a word of the translation for others in its place, and go on from your choice.",
    ),
    Page(
        "runs",
        "Runs",
        "Curves of training runs as they grow, and texts of their models.",
        "Training lowers the loss: how surprised a model is by the next piece of a text. What "
        "counts is the loss on texts that it never learns from. Runs that train grow here as they "
        "write.",
    ),
)
"""All pages, in the order of the course."""
