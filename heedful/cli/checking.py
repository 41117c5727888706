"""Checks of translations: reports, second tries, marks and errors, as the flags ask for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heedful.cli.flags import CheckFlags, languages_of
from heedful.cli.text_io import say
from heedful.errors import RunError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heedful.apps.quality.checker import Checker
    from heedful.apps.quality.reports import TranslationReport
    from heedful.pipelines.glossary import Glossary
    from heedful.pipelines.text_splitting import Translation, Warn
    from heedful.pipelines.translation import TranslationPipeline
    from heedful.search.search_settings import SearchSettings

_LINES_NAMED = 50


class CheckedTranslations:
    """Checker of translations, which replaces or marks those in doubt.

    Args:
        flags: flags of checking.
        model: directory of the translator.
        pipeline: the translator.
        settings: settings of the search.
        glossary, protect: terms and kinds of text that translations keep.

    Attributes:
        doubted: numbers of the lines whose translation is in doubt.
        replaced: number of translations that the second try replaced.
    """

    def __init__(
        self,
        flags: CheckFlags,
        model: Path,
        pipeline: TranslationPipeline,
        settings: SearchSettings,
        *,
        glossary: Glossary | None = None,
        protect: Sequence[str] | None = None,
    ) -> None:
        _verify(flags)
        self.flags = flags
        self.settings = settings
        self.glossary = glossary
        self.protect = protect
        self.checker = _checker(flags, model, pipeline)
        self.doubted: list[int] = []
        self.replaced = 0

    def settle(
        self, texts: Sequence[str], translations: list[Translation], first_line: int, warn: Warn
    ) -> tuple[list[Translation], list[TranslationReport]]:
        """Check translations; return those to write, and a report on each.

        Args:
            texts: translated lines.
            translations: a translation of each.
            first_line: number of the first line.
            warn: receiver of warnings.
        """
        reports = self.checker.reports(texts, translations, warn=warn)
        if self.flags.second_try:
            from heedful.apps.quality.second_try import try_again

            first = translations
            translations, reports = try_again(
                self.checker,
                texts,
                first,
                reports,
                self.settings,
                glossary=self.glossary,
                protect=self.protect,
                warn=warn,
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
        """Fail if translations are in doubt and --on-doubt is fail.

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
            remedy="All translations were written; --check names the failed checks of each",
        )

    def _in_doubt(self, text: str, translation: Translation) -> Translation:
        from heedful.pipelines.text_splitting import Translation, one_line

        if self.flags.on_doubt == "mark":
            return Translation(self.flags.mark + translation, **vars(translation))
        if self.flags.on_doubt == "source":
            return Translation(one_line(text), **vars(translation))
        return translation


def _verify(flags: CheckFlags) -> None:
    """Refuse a mark with a line break or a tab, which would break the format of the output.

    Raises:
        UserError: naming the flag.
    """
    if len(flags.mark.splitlines()) != 1 or "\t" in flags.mark:
        raise UserError("A mark must be one line without tabs", where="--mark")


def _checker(flags: CheckFlags, model: Path, pipeline: TranslationPipeline) -> Checker:
    """Return the checker that the flags ask for.

    Args:
        flags: flags of checking.
        model: directory of the translator.
        pipeline: the translator.

    Raises:
        UserError: when the languages are not written as en-de.
    """
    from heedful.apps.quality.calibration import Calibration, calibration_path
    from heedful.apps.quality.checker import Checker

    stored = calibration_path(model)
    calibration = Calibration.read(stored) if stored.exists() else None
    languages = languages_of(model, flags.languages)
    if None in languages:
        say(
            "The languages of the model are unknown: numbers in words, the script and the "
            "language are not checked. Give --languages, such as en-de."
        )
    return Checker(pipeline, languages, detached=flags.check_source, calibration=calibration)
