"""Flags that check translations, and the checker that they describe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from heedful.cli.text_io import say
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.pipelines.translation import TranslationPipeline
    from heedful.quality.checker import Checker

_GROUP = Group("Checking", sort_key=40)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class CheckFlags:
    """Checks of translations; see the guide on checking."""

    check: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Check each translation, and write a tab and the names of the checks that failed "
            "after it (ok if none); with --json, a report with measures and places.",
        ),
    ] = False
    check_source: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Also check that the source makes each translation more probable; slower.",
        ),
    ] = False
    languages: Annotated[
        str | None,
        Parameter(
            help="Languages of the text and its translation, such as en-de, for the checks of "
            "numbers in words and of the language; those of the model's name or card if unset.",
        ),
    ] = None

    @property
    def is_on(self) -> bool:
        """True if translations are checked."""
        return self.check or self.check_source

    def plain(self) -> dict[str, Any]:
        """The flags as JSON data."""
        return {
            "check": self.is_on,
            "check_source": self.check_source,
            "languages": self.languages,
        }

    def checker(self, model: Path, pipeline: TranslationPipeline) -> Checker:
        """Return the checker that is asked for.

        Args:
            model: directory of the translator.
            pipeline: the translator.

        Raises:
            UserError: when the languages are not written as en-de.
        """
        from heedful.quality.checker import Checker

        languages = languages_of(model, self.languages)
        if None in languages:
            say(
                "The languages of the model are unknown: numbers in words, the script and the "
                "language are not checked. Give --languages, such as en-de."
            )
        return Checker(pipeline, languages, detached=self.check_source)


UNCHECKED = CheckFlags()


def languages_of(model: Path, words: str | None) -> tuple[str | None, str | None]:
    """Return the languages of a translator: those named, or those that its name or card says.

    Args:
        model: its directory.
        words: such as en-de or pt_BR-zh.

    Raises:
        UserError: when they are not written so.
    """
    if words is None:
        from heedful.serve.served_models import parse_model

        served = parse_model(str(model))
        return served.source or None, served.target or None
    codes = words.split("-")
    if len(codes) != 2 or not all(code.replace("_", "").isalpha() for code in codes):
        raise UserError(
            f"Languages are written as en-de, not {words!r}",
            where="--languages",
            remedy="Give the code of the source's language, a hyphen, and the target's",
        )
    return codes[0], codes[1]
