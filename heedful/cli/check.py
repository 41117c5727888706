"""`heedful check`: checks of given translations."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.flags import STANDARD, Running, languages_of
from heedful.cli.text_io import (
    PLAIN,
    Output,
    Report,
    output_to,
    read_parallel,
    say,
    show_table,
    terminal,
)
from heedful.errors import RunError


def check(
    source: Annotated[Path, Parameter(help="File of source text, one item a line.")],
    target: Annotated[Path, Parameter(help="File of translations to check, line by line.")],
    /,
    *,
    model: Annotated[
        Path | None,
        Parameter(
            help="Translator of the two languages, or the name of a model that comes with Heedful, "
            "which finds texts that do not belong together, missing ends and other names."
        ),
    ] = None,
    reverse_model: Annotated[
        Path | None,
        Parameter(help="Translator in the other direction, whose opinion is added."),
    ] = None,
    languages: Annotated[
        str | None,
        Parameter(
            help="Language codes of source and target, such as en-de; those of the model, or as "
            "detected, if unset."
        ),
    ] = None,
    fail: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="End with exit status 1 if one is in doubt."
        ),
    ] = False,
    running: Running = STANDARD,
    output: Output = PLAIN,
) -> None:
    """Check given translations.

    Each pair gives one output line: the names of the failed checks, or ok; with --json, a report
    with values and positions. A table of all checks goes to standard error.

    For example:

        heedful check test.en test.de --model en-de
        heedful check test.en test.de --languages en-de --fail
    """
    named = {"model": model, "reverse_model": reverse_model}
    flags = {name: None if path is None else str(path) for name, path in named.items()}
    files = {"source": str(source), "target": str(target), "languages": languages, "fail": fail}
    report = Report("check", output, {**files, **flags, **running.plain()})
    sources, targets = read_parallel(source, target)
    codes = _languages(model, languages, sources, targets)
    pipelines = [None if each is None else running.load(each) for each in (model, reverse_model)]
    from heedful.apps.quality.checker import Checker
    from heedful.apps.quality.text_checks import CHECKS

    forward, backward = pipelines
    with closing(terminal()) as events:
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
    if not output.json:
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
    """Return the languages that are named, those of the model, or those that are detected."""
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
