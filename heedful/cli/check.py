"""`heedful check`: checks of given translations; also the checks of `heedful translate --check`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from heedful.cli.flags import Running, TranslationRequest, languages_of
from heedful.cli.text_io import (
    Output,
    Report,
    output_to,
    read_parallel,
    say,
    show_table,
    terminal,
)
from heedful.errors import RunError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heedful.apps.quality.reports import TranslationReport
    from heedful.pipelines.glossary import Glossary
    from heedful.pipelines.text_splitting import Translation, Warn
    from heedful.pipelines.translation import TranslationPipeline


def check(
    source: Path,
    target: Path,
    /,
    *,
    model: Path | None = None,
    reverse_model: Path | None = None,
    languages: str | None = None,
    fail: bool = False,
    running: Running = Running(),
    output: Output = Output(),
) -> None:
    """Check given translations.

    Each pair gives one output line: the names of the failed checks, or ok; with --json, a report
    with values and positions. A table of the failed checks goes to standard error.

    For example:

        heedful check test.en test.de --model en-de
        heedful check test.en test.de --languages en-de --fail

    Args:
        source: File of source text, one item a line.
        target: File of translations to check, line by line.
        model: Translator of the two languages, or the name of a model that comes with Heedful; it
            finds unrelated texts, missing ends and wrong names.
        reverse_model: Translator in the opposite direction, for a second opinion.
        languages: Language codes of source and target, such as en-de; if unset, those of the model,
            or detected ones.
        fail: End with exit status 1 if a translation is in doubt.
    """
    flags = {"source": source, "target": target, "model": model, "reverse_model": reverse_model}
    report = Report("check", output, flags, running, languages=languages, fail=fail)
    sources, targets = read_parallel(source, target)
    codes = _languages(model, languages, sources, targets)
    pipelines = [None if each is None else running.load(each) for each in (model, reverse_model)]
    from heedful.apps.quality.checker import Checker
    from heedful.apps.quality.text_checks import CHECKS

    forward, backward = pipelines
    with terminal() as events:
        reports = Checker(forward, codes, reverse=backward).report_pairs(
            sources, targets, warn=events.warn
        )
    with output_to(None) as stream:
        for each in reports:
            plain = json.dumps(each.plain(), ensure_ascii=False)
            stream.write((plain if output.json else ",".join(each.failed) or "ok") + "\n")
    counts = Counter(result.name for each in reports for result in each.checks if result.failed)
    advice = {result.name for each in reports[:1] for result in each.checks if result.advisory}
    doubted = sum(each.in_doubt for each in reports)
    if not output.json and not counts:
        pairs = "1 pair" if len(reports) == 1 else f"{len(reports):,} pairs"
        say(f"{pairs} checked, nothing found.")
    elif not output.json:
        rows = [
            [name + " (advice only)" * (name in advice), CHECKS[name], f"{counts[name]:,}"]
            for name in CHECKS
            if counts[name]
        ]
        title = f"{doubted:,} of {len(reports):,} translations are in doubt"
        show_table(title, ["check", "a translation passes if", "failed"], rows, numbers=1)
    facts = {"lines": len(reports), "in_doubt": doubted, "failed": dict(counts)}
    report.finish({**facts, "languages": list(codes)}, summary=False)
    if fail and doubted:
        raise RunError(
            f"{doubted:,} of {len(reports):,} translations are in doubt",
            where="--fail",
            remedy="The lines of the output name the checks",
        )


def _languages(
    model: Path | None, words: str | None, sources: list[str], targets: list[str]
) -> tuple[str | None, str | None]:
    """Return the given languages, or else those of the model, or else the detected languages."""
    known = (
        (None, None) if model is None and words is None else languages_of(model or Path(), words)
    )
    if None not in known:
        return known
    from heedful.apps.cleaning.language_check import guess_languages

    found = guess_languages(zip(sources, targets, strict=True))
    if found is None:
        say(
            "The languages are unknown: numbers in words, negation, the script and the language "
            "are not checked. Give --languages, such as en-de."
        )
        return None, None
    say(f"The languages seem to be {found[0]}-{found[1]}; --languages names others.")
    return found


_LINES_NAMED = 50


class CheckedTranslations:
    """Checker of translations, which replaces or marks doubtful translations.

    Args:
        request: the translator and its options, with the flags of checking.
        pipeline: the loaded translator.
        glossary: terms that translations keep.

    Attributes:
        doubted: numbers of the lines with doubtful translations.
        replaced: number of translations that the second try replaced.

    Raises:
        UserError: when the mark is not one line, or the languages are not written as en-de.
    """

    def __init__(
        self, request: TranslationRequest, pipeline: TranslationPipeline, glossary: Glossary | None
    ) -> None:
        from heedful.apps.quality.calibration import Calibration, calibration_path
        from heedful.apps.quality.checker import Checker

        flags = self.flags = request.checks
        # A line break or a tab would break the lines and columns of the output.
        if len(flags.mark.splitlines()) != 1 or "\t" in flags.mark:
            raise UserError("A mark must be one line without tabs", where="--mark")
        stored = calibration_path(request.model)
        calibration = Calibration.read(stored) if stored.exists() else None
        languages = languages_of(request.model, flags.languages)
        if None in languages:
            say(
                "The languages of the model are unknown: numbers in words, the script and the "
                "language are not checked. Give --languages, such as en-de."
            )
        self.request = request
        self.glossary = glossary
        self.checker = Checker(
            pipeline, languages, detached=flags.check_source, calibration=calibration
        )
        self.doubted: list[int] = []
        self.replaced = 0

    def settle(
        self, texts: Sequence[str], translations: list[Translation], first_line: int, warn: Warn
    ) -> tuple[list[Translation], list[TranslationReport]]:
        """Check translations; return the translations to write, and a report on each.

        Args:
            texts: translated lines.
            translations: translation of each line.
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
                self.request.settings,
                glossary=self.glossary,
                protect=self.request.protect,
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
            RunError: naming the lines of doubtful translations.
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
