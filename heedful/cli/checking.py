"""Flags that check translations, and the checker that they describe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from heedful.cli.text_io import say
from heedful.errors import RunError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heedful.pipelines.text_splitting import Translation, Warn
    from heedful.pipelines.translation import TranslationPipeline
    from heedful.quality.checker import Checker
    from heedful.quality.reports import TranslationReport
    from heedful.search.search_settings import SearchSettings

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

    second_try: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Search again, wider and with constraints, where a check failed; the translation "
            "is kept only if fewer checks fail.",
        ),
    ] = False
    on_doubt: Annotated[
        Literal["keep", "mark", "source", "fail"],
        Parameter(
            help="A translation that a check doubts is kept, marked, replaced by its source, or "
            "named at the end, with exit status 1.",
        ),
    ] = "keep"
    mark: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Before translations that are marked.")
    ] = "[?] "

    @property
    def is_on(self) -> bool:
        """True if translations are checked."""
        return self.is_shown or self.second_try or self.on_doubt != "keep"

    @property
    def is_shown(self) -> bool:
        """True if reports are written."""
        return self.check or self.check_source

    def plain(self) -> dict[str, Any]:
        """The flags as JSON data."""
        return {
            "check": self.is_on,
            "check_source": self.check_source,
            "languages": self.languages,
            "second_try": self.second_try,
            "on_doubt": self.on_doubt,
        }

    def verify(self) -> None:
        """Refuse a mark that would end the line.

        Raises:
            UserError: naming the flag.
        """
        if len(self.mark.splitlines()) != 1 or "\t" in self.mark:
            raise UserError("A mark is a few characters of one line, without tabs", where="--mark")

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

_LINES_NAMED = 50


class CheckedTranslations:
    """Translations as they are checked, tried again, and written.

    Args:
        flags: that say so.
        model: directory of the translator.
        pipeline: the translator.
        settings: of the search.

    Attributes:
        doubted: numbers of lines that are in doubt.
        replaced: translations that the second try replaced.
    """

    def __init__(
        self,
        flags: CheckFlags,
        model: Path,
        pipeline: TranslationPipeline,
        settings: SearchSettings,
    ) -> None:
        flags.verify()
        self.flags = flags
        self.settings = settings
        self.checker = flags.checker(model, pipeline)
        self.doubted: list[int] = []
        self.replaced = 0

    def settle(
        self, texts: Sequence[str], translations: list[Translation], first_line: int, warn: Warn
    ) -> tuple[list[Translation], list[TranslationReport]]:
        """Check translations, and return those to write and the reports on them.

        Args:
            texts: that were translated.
            translations: of each.
            first_line: number of the first.
            warn: receives warnings.
        """
        reports = self.checker.reports(texts, translations, warn=warn)
        if self.flags.second_try:
            from heedful.quality.second_try import try_again

            first = translations
            translations, reports = try_again(
                self.checker, texts, first, reports, self.settings, warn=warn
            )
            self.replaced += sum(a is not b for a, b in zip(first, translations, strict=True))
        written = []
        for line, (text, translation, report) in enumerate(
            zip(texts, translations, reports, strict=True), start=first_line
        ):
            if report.in_doubt:
                self.doubted.append(line)
                translation = self._in_doubt(text, translation)
            written.append(translation)
        return written, reports

    def finish(self, lines: int) -> None:
        """Fail if translations are in doubt and that is what was asked for.

        Raises:
            RunError: naming their lines.
        """
        if self.flags.on_doubt != "fail" or not self.doubted:
            return
        named = ", ".join(map(str, self.doubted[:_LINES_NAMED]))
        more = ", …" if len(self.doubted) > _LINES_NAMED else ""
        raise RunError(
            f"{len(self.doubted):,} of {lines:,} translations are in doubt: line {named}{more}",
            where="--on-doubt fail",
            remedy="All translations were written; --check says what is wrong with which",
        )

    def _in_doubt(self, text: str, translation: Translation) -> Translation:
        from heedful.pipelines.text_splitting import Translation, one_line

        if self.flags.on_doubt == "mark":
            return Translation(self.flags.mark + translation, **vars(translation))
        if self.flags.on_doubt == "source":
            return Translation(one_line(text), **vars(translation))
        return translation


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
