"""A small translator from which parts are left out: settings, data and recorded runs.

It translates English dates, times, prices, measures and durations to German. The data are
generated, so anybody can train it again, in less than a minute on one core.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from heedful.apps.demo_corpus import DemoCorpus, generate_demo
from heedful.config import Activation, AnyMixer, AnyPositions, Config
from heedful.models.shape import ConvolutionShape, RecurrentShape, TranslatorShape
from heedful.models.shape_to_spec import translator_spec

SOURCE, TARGET = "en", "de"
PAIRS, HELD_OUT = 20_000, 500
STEPS = 400
PIECES = 400
WIDTH, FEEDFORWARD = 64, 256
VALIDATE_EVERY = 40
VALIDATED_SENTENCES = 100
RECORDS_FILE = Path(__file__).with_name("components.json")

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
            "data": {"batch_tokens": 1024, "max_length": 64},
            "objective": {"label_smoothing": 0.1},
            "schedule": {
                "kind": "cosine",
                "peak_learning_rate": 0.004,
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
    """

    title: str
    components: Components
    reason: str


VARIANTS: Mapping[str, ReducedTranslator] = {
    "everything": ReducedTranslator(
        "with everything",
        Components(),
        "Two layers, 64 channels, four heads, and norms before each sub-layer, as most models have "
        "them today.",
    ),
    "residual": ReducedTranslator(
        "without residual connections",
        Components(residual=False),
        "Each sub-layer then replaces what came before it instead of adding to it. A word's own "
        "identity survives only if attention happens to copy it, and gradients reach the lower "
        "layers only through every softmax and every network in between.",
    ),
    "norm": ReducedTranslator(
        "without norms",
        Components(norm_placement="none"),
        "Nothing keeps the size of the vectors in bounds: they grow from layer to layer, scores "
        "with them. Two layers bear that, and can even learn faster without. That deep stacks "
        "become unstable is what norms were made for; it was not measured here.",
    ),
    "post": ReducedTranslator(
        "with norms after the sums, as in 2017",
        Components(norm_placement="post"),
        "The norm then stands on the stream itself, so every gradient passes through all of them. "
        "It learns more slowly at first. That deep models then depend on the warm-up is Xiong's "
        "result of 2020, not measured here.",
    ),
    "positions": ReducedTranslator(
        "without positions",
        Components(positions="none"),
        "Attention sees a set of words, not a sequence: 12 and 21, or 3/4 and 4/3, are the same "
        "to the encoder. The decoder's causal mask still hints at how much was written, which is "
        "why something is learned at all.",
    ),
    "feedforward": ReducedTranslator(
        "without the feed-forward network",
        Components(feedforward=False),
        "What is left mixes vectors by weighted sums. The network changes each word's vector by "
        "itself, for example to turn an hour with PM into a later one, and it holds two thirds of "
        "an encoder block's parameters.",
    ),
    "scale": ReducedTranslator(
        "without 1/√dₖ",
        Components(scale=False),
        "Scores are larger by √dₖ, here 4 times, so that the softmax begins nearer to choosing "
        "one key, where its gradient is small. The wider the heads, the more this costs.",
    ),
    "heads": ReducedTranslator(
        "with one head instead of four",
        Components(num_heads=1),
        "One head has one set of weights for each word: it cannot look at the day and at the month "
        "at once without mixing them. Layers and positions in the decoder must make up for it.",
    ),
}
"""Translators of the recorded runs, by name, in the order of the page."""


def small_corpus(pairs: int = PAIRS, held_out: int = HELD_OUT) -> DemoCorpus:
    """Generate the data of the small translator, the same every time."""
    return generate_demo(SOURCE, TARGET, pairs=pairs, held_out=held_out, seed=1)


def read_records() -> dict[str, Any]:
    """Read the recorded runs of the package.

    `benchmarks/pretrained/components.py` makes them.
    """
    records: dict[str, Any] = json.loads(RECORDS_FILE.read_text(encoding="utf-8"))
    return records
