"""A small translator from which parts are left out: settings, data and recorded runs.

It translates English dates to German, which it learns almost without a mistake in seconds of one
core. The data are generated, so anybody can train it again. What a part is for shows where it is
needed: norms and the warm-up in a deep encoder, the scale with wide keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from heedful.apps.demo_corpus import DemoCorpus, DemoItem, generate_demo
from heedful.config import Activation, AnyMixer, AnyPositions, Config
from heedful.models.shape import ConvolutionShape, RecurrentShape, TranslatorShape
from heedful.models.shape_to_spec import translator_spec

SOURCE, TARGET = "en", "de"
PAIRS, HELD_OUT = 4_000, 150
KIND = "date"
"""Kind of the generated items; prices and measures have digits that take much longer to learn."""
STEPS = 600
PEAK_RATE = 0.004
PIECES = 200
WIDTH, FEEDFORWARD = 64, 256
VALIDATE_EVERY = 50
VALIDATED_SENTENCES = 50
RECORDS_FILE = Path(__file__).with_name("components.json")
WARMUPS_FILE = Path(__file__).with_name("warmups.json")

Layers = Annotated[int, Field(ge=1, le=3)]


class Components(Config):
    """The parts of a small translator that can be left out or exchanged."""

    residual: bool = True
    norm: Literal["layer", "rms"] = "layer"
    norm_placement: Literal["post", "pre", "none"] = "pre"
    positions: AnyPositions = "sinusoidal"
    feedforward: bool = True
    activation: Activation = "relu"
    scale: bool = Field(True, description="divide scores by the square root of the head width")
    num_heads: Literal[1, 2, 4, 8] = 4
    encoder_layers: Layers = 2
    decoder_layers: Layers = 2
    mixer: AnyMixer = "attention"
    encoder_mixer: AnyMixer = "attention"
    features: Literal["elu", "cosine", "random"] | None = None
    attention_every: Annotated[int, Field(ge=2, le=3)] | None = None
    network: Literal["feedforward", "channel_mix"] = "feedforward"
    recurrent: RecurrentShape | None = Field(
        None, description="recurrent layers instead of attention blocks"
    )
    convolution: ConvolutionShape | None = Field(
        None, description="gated convolutions instead of attention blocks"
    )

    def check(self) -> None:
        """Refuse parts that do not make a translator.

        Raises:
            ConfigError: naming the parts that contradict each other.
        """
        translator_spec(TranslatorShape.parse(self._shape(), where="components"), PIECES, PIECES)

    def settings(self, seed: int, steps: int = STEPS) -> dict[str, Any]:
        """Return the settings of a run without its data, as in a settings file.

        Args:
            seed: random seed of the initial weights and of the order of batches.
            steps: number of updates, after which the learning rate is 0.
        """
        return {
            "seed": seed,
            "max_steps": steps,
            "precision": "fp32",
            "compile": "off",
            "device": "cpu",
            "model": self._shape(),
            "tokenizer": {"vocabulary_size": PIECES},
            "data": {"batch_tokens": 512, "max_length": 64},
            "objective": {"label_smoothing": 0.1},
            "schedule": {
                "kind": "cosine",
                "peak_learning_rate": PEAK_RATE,
                "warmup_steps": steps // 5,
            },
            "validation": {
                "every_steps": min(VALIDATE_EVERY, steps),
                "metrics": ["bleu"],
                "choose_by": "loss",
                "beam": 1,
                "max_sentences": VALIDATED_SENTENCES,
            },
            "checkpoint": {"every_steps": steps, "average": "none"},
        }

    def _shape(self) -> dict[str, Any]:
        shape: dict[str, Any] = {
            "width": WIDTH,
            "encoder_layers": self.encoder_layers,
            "decoder_layers": self.decoder_layers,
            "positions": self.positions,
            "dropout": 0.0,
            "max_length": 64,
        }
        for name in ("recurrent", "convolution"):
            if (section := getattr(self, name)) is not None:
                return shape | {name: section.plain()}
        names = ("mixer", "encoder_mixer", "features", "attention_every", "network")
        mixers = {name: getattr(self, name) for name in names}
        shape |= {name: value for name, value in mixers.items() if value is not None}
        shape |= {
            "num_heads": self.num_heads,
            "feedforward": FEEDFORWARD if self.feedforward else 0,
            "activation": self.activation,
            "norm": self.norm,
            "norm_placement": self.norm_placement,
            "residual": self.residual,
        }
        return shape if self.scale else shape | {"attention_scale": 1.0}


@dataclass(frozen=True)
class ReducedTranslator:
    """The small translator without one of its parts.

    Args:
        title: title on pages.
        components: parts of the translator.
        reason: explanation of the part's purpose, in two or three sentences.
        reference: name of the translator that it is compared with; empty for a reference.
        shape: settings of the model beside the components, which a page cannot train.
        steps: number of updates.
        rate: peak of the learning rate; deep stacks and wide keys bear less than small ones.
        warmup: false for a learning rate that is at its peak from the first update on.
    """

    title: str
    components: Components
    reason: str
    reference: str = "everything"
    shape: Mapping[str, Any] = field(default_factory=dict)
    steps: int = STEPS
    rate: float = PEAK_RATE
    warmup: bool = True

    @property
    def is_small(self) -> bool:
        """True if a page can train it: its components are all that it needs."""
        return not self.shape and self.warmup

    def settings(self, seed: int) -> dict[str, Any]:
        """Return the settings of a run without its data, as in a settings file.

        Args:
            seed: random seed of the initial weights and of the order of batches.
        """
        settings = self.components.settings(seed, self.steps)
        settings["model"] |= self.shape
        settings["schedule"]["peak_learning_rate"] = self.rate
        if not self.warmup:
            settings["schedule"]["warmup_steps"] = 0
        return settings


SLOW_RATE = 0.001
"""Peak of the learning rate of deep stacks and wide keys."""
DEEP: Mapping[str, Any] = {"shape": {"encoder_layers": 12}, "steps": 800, "rate": SLOW_RATE}
MIDDLE: Mapping[str, Any] = {"shape": {"encoder_layers": 6}, "steps": 800, "rate": SLOW_RATE}
"""Translators with more layers in the encoder."""
WIDE: Mapping[str, Any] = {
    "shape": {"num_heads": 1, "head_width": 512},
    "steps": 600,
    "rate": SLOW_RATE,
}
"""Translators with wide keys: the scores of 512 channels are added up."""

VARIANTS: Mapping[str, ReducedTranslator] = {
    "everything": ReducedTranslator(
        "with everything",
        Components(),
        "Two layers, 64 channels, four heads, and norms before each sub-layer, as most models have "
        "them today.",
        reference="",
    ),
    "residual": ReducedTranslator(
        "without residual connections",
        Components(residual=False),
        "Each sub-layer then replaces what came before it instead of adding to it. A word's own "
        "identity survives only if attention happens to copy it, and gradients reach the lower "
        "layers only through every softmax and every network in between.",
    ),
    "positions": ReducedTranslator(
        "without positions",
        Components(positions="none"),
        "Attention sees a set of words, not a sequence: 11/12/26 and 12/11/26 are the same to the "
        "encoder. The decoder's causal mask still hints at how much was written, which is why "
        "something is learned at all.",
    ),
    "feedforward": ReducedTranslator(
        "without the feed-forward network",
        Components(feedforward=False),
        "What is left mixes vectors by weighted sums. The network changes each word's vector by "
        "itself, and it holds two thirds of an encoder block's parameters.",
    ),
    "heads": ReducedTranslator(
        "with one head instead of four",
        Components(num_heads=1),
        "One head has one set of weights for each word: it cannot look at the day and at the month "
        "at once without mixing them. Layers and positions in the decoder must make up for it.",
    ),
    "deep": ReducedTranslator(
        "12 layers, with everything",
        Components(),
        "Twelve layers in the encoder, and norms before each sub-layer.",
        reference="",
        **DEEP,
    ),
    "norm": ReducedTranslator(
        "12 layers without norms",
        Components(norm_placement="none"),
        "Nothing keeps the size of the vectors in bounds: they grow from layer to layer, and "
        "scores and gradients with them. Two layers bear that; deep stacks are what norms are for.",
        reference="deep",
        **DEEP,
    ),
    "post": ReducedTranslator(
        "12 layers with norms after the sums, as in 2017",
        Components(norm_placement="post"),
        "The norm then stands on the stream itself, so every gradient passes through all of them "
        "(Xiong 2020). The learning rate warms up for 160 updates.",
        reference="deep",
        **DEEP,
    ),
    "six": ReducedTranslator(
        "6 layers with norms after the sums",
        Components(norm_placement="post"),
        "Six layers in the encoder, as the paper has them, with norms after the sums and a "
        "learning rate that warms up for 160 updates.",
        reference="",
        **MIDDLE,
    ),
    "warmup": ReducedTranslator(
        "6 layers with norms after the sums, without warm-up",
        Components(norm_placement="post"),
        "The learning rate is at its peak from the first update on, when Adam knows its gradients "
        "from a few batches alone.",
        reference="six",
        warmup=False,
        **MIDDLE,
    ),
    "wide": ReducedTranslator(
        "keys of 512 channels",
        Components(num_heads=1),
        "One head of 512 channels in each attention, eight times as wide as the stream.",
        reference="",
        **WIDE,
    ),
    "scale": ReducedTranslator(
        "keys of 512 channels without 1/√dₖ",
        Components(num_heads=1, scale=False),
        "Scores are larger by √512, 23 times, so that the softmax begins near to choosing one key, "
        "where its gradient is small. The wider the heads, the more this costs.",
        reference="wide",
        **WIDE,
    ),
}
"""Translators of the recorded runs, by name, in the order of the page: references first."""


def small_corpus(pairs: int = PAIRS, held_out: int = HELD_OUT) -> DemoCorpus:
    """Generate the data of the small translator, the same every time."""
    # Eight of 28 items are dates; some more are drawn, as the numbers vary.
    drawn, apart = (4 * count + 100 for count in (pairs, held_out))
    corpus = generate_demo(SOURCE, TARGET, pairs=drawn, held_out=apart, seed=1)

    def dates(items: Sequence[DemoItem], count: int) -> tuple[DemoItem, ...]:
        return tuple(item for item in items if item.kind == KIND)[:count]

    return replace(
        corpus,
        train=dates(corpus.train, pairs),
        valid=dates(corpus.valid, held_out),
        test=dates(corpus.test, held_out),
    )


def read_records() -> dict[str, Any]:
    """Read the recorded runs of the package.

    `benchmarks/pretrained/components.py` makes them.
    """
    records: dict[str, Any] = json.loads(RECORDS_FILE.read_text(encoding="utf-8"))
    return records


def read_warmups() -> dict[str, Any]:
    """Read the recorded runs with warm-ups of several lengths.

    `benchmarks/pretrained/warmups.py` makes them.
    """
    records: dict[str, Any] = json.loads(WARMUPS_FILE.read_text(encoding="utf-8"))
    return records
