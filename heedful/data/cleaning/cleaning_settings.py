"""Settings of the rules by which pairs are checked and cleaned; light, for the command line."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config, PositiveInt

Switchable = Literal[
    "control_character",
    "replacement_character",
    "mojibake",
    "too_long",
    "length_ratio",
    "copied",
    "numbers",
    "language",
    "leak",
    "near_leak",
    "model",
    "duplicate",
    "many_targets",
]
"""Rules that can be switched off; the others find what nobody can train on."""

RuleName = Literal["no_pair", "undecodable", "empty"] | Switchable


class CleaningSettings(Config):
    """Limits of the rules; a pair past any of them is removed."""

    off: tuple[Switchable, ...] | None = Field(
        None, description="rules that are switched off, such as numbers duplicate"
    )
    languages: tuple[str, ...] | None = Field(
        None,
        description="codes of the source's and the target's language, such as en de; if unset "
        "those that most of the first pairs are in",
    )
    max_characters: PositiveInt = Field(2000, description="too_long: most characters on a side")
    max_length_ratio: Annotated[float, Field(gt=1)] = Field(
        2.0,
        description="length_ratio: most times that one side is longer than the other, in letters, "
        "10 added to each; an ideograph counts as 3 letters",
    )
    max_overlap: Annotated[float, Field(gt=0, le=1)] = Field(
        0.7,
        description="copied: share of the words of the longer side, at least 4 without code, that "
        "both sides have; at this share the target counts as a copy",
    )
    min_language_probability: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.01,
        description="language: a side of 15 letters or more is less probably in its language",
    )
    min_model_gain: Annotated[float, Field(gt=0)] = Field(
        1.5,
        description="model: gain in the mean log-probability of a target token by its source, "
        "beside a full stop as the source",
    )
    near: Annotated[float, Field(gt=0, le=1)] = Field(
        0.7,
        description="near_leak: share of the word pairs of two sources that both have, from which "
        "they are nearly the same",
    )
    max_targets: PositiveInt = Field(
        20, description="many_targets: most different targets of a source; the first ones stay"
    )

    def is_on(self, rule: RuleName) -> bool:
        """Return True unless the rule is switched off."""
        return rule not in (self.off or ())
