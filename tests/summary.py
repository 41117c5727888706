"""What a run of the tests left out, for the lines that end it: green is not the same as tested."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from heedful.kernels.library import instructions

NOT_RUN = "not run"
"""Name of the user property by which a test that passed says what it could not do here."""

SETS_OF_INSTRUCTIONS = ("AVX2", "AVX-512", "AMX", "NEON")


def not_run(reports: Iterable[Any], browser: str | None) -> Iterator[str]:
    """The lines of the summary.

    Args:
        reports: of tests, as pytest collects them.
        browser: where the one is that pages were tested in.
    """
    yield from _machine(instructions(), browser)
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for report in reports:
        for reason in _reasons(report):
            files[reason][report.nodeid.split("::")[0]] += 1
    for reason, counts in sorted(files.items(), key=lambda item: -item[1].total()):
        names = ", ".join(f"{file} ({count})" for file, count in sorted(counts.items()))
        yield f"{counts.total()}: {reason}: {names}"


def _machine(kernels: str | None, browser: str | None) -> Iterator[str]:
    if kernels is None:
        yield "No kernel in C was tested: none were compiled, or HEEDFUL_NATIVE=off is set."
    else:
        lacking = [name for name in SETS_OF_INSTRUCTIONS if name not in _below(kernels)]
        yield f"Kernels in C ran with {kernels}; this processor cannot test {', '.join(lacking)}."
    if browser is None:
        yield "No page was tested in a browser: there is none here."


def _below(kernels: str) -> str:
    """The sets of instructions that a processor has which has these."""
    return kernels if "AVX-512" not in kernels else f"AVX2, {kernels}"


def _reasons(report: Any) -> Iterator[str]:
    """Why a test was skipped, and what it said it could not do."""
    if report.skipped and isinstance(report.longrepr, tuple):
        yield f"skipped, {report.longrepr[2].removeprefix('Skipped: ')}"
    yield from (text for name, text in report.user_properties if name == NOT_RUN)
