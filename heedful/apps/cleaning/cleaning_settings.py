"""Settings of the rules that check and clean pairs; light, for the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config, PositiveInt

Switchable = Literal[
    "control_character",
    "replacement_character",
    "mojibake",
    "lost_letters",
    "lost_spaces",
    "markup",
    "too_long",
    "length_ratio",
    "copied",
    "numbers",
    "language",
    "leak",
    "near_leak",
    "model",
    "shifted",
    "duplicate",
    "many_targets",
    "many_sources",
]
"""Rules that can be switched off; the others find pairs that cannot be trained on."""

RuleName = Literal["no_pair", "undecodable", "empty"] | Switchable


class CleaningSettings(Config):
    """Limits of the rules; a pair that exceeds any of them is removed."""

    off: tuple[Switchable, ...] | None = Field(
        None, description="rules to switch off, such as numbers duplicate"
    )
    # A tuple of any length: `LanguageCheck` reports a wrong number of languages more clearly.
    languages: tuple[str, ...] | None = Field(
        None,
        description="language codes of source and target, such as en de; detected from the first "
        "pairs if unset",
    )
    max_characters: PositiveInt = Field(
        2000, description="maximum number of characters on a side (rule too_long)"
    )
    max_length_ratio: Annotated[float, Field(gt=1)] = Field(
        2.0,
        description="maximum ratio of the lengths of the two sides in letters, after adding 10 to "
        "each; an ideograph counts as 3 (rule length_ratio)",
    )
    max_overlap: Annotated[float, Field(gt=0, le=1)] = Field(
        0.7,
        description="minimum share of the longer side's words that both sides have (at least 4 "
        "words, without code) at which a target counts as a copy (rule copied)",
    )
    min_language_probability: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.01,
        description="minimum probability that a side of at least 15 letters is in its language "
        "(rule language)",
    )
    min_model_gain: Annotated[float, Field(gt=0)] = Field(
        1.5,
        description="minimum mean gain in log-probability of a target token when the "
        "model sees the source instead of a full stop (rule model)",
    )
    near: Annotated[float, Field(gt=0, le=1)] = Field(
        0.7,
        description="Jaccard similarity of word bigrams at which two sources count as near "
        "duplicates (rule near_leak)",
    )
    max_targets: PositiveInt = Field(
        20,
        description="maximum number of different targets of one source; the first ones are kept "
        "(rule many_targets)",
    )
    max_sources: PositiveInt = Field(
        20,
        description="maximum number of different sources of one target; the first ones are kept "
        "(rule many_sources)",
    )

    def is_on(self, rule: RuleName) -> bool:
        """Return True unless the rule is switched off."""
        # None and an empty tuple mean the same; None is left out of saved settings.
        return rule not in (self.off or ())


def is_memory(path: Path) -> bool:
    """Return True for a translation memory in TMX, plain or gzip, by its name."""
    return path.name.lower().removesuffix(".gz").endswith(".tmx")
