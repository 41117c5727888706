"""Cleaning: the pairs that no rule finds, in the form of the corpus, and why each other went."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.data.cleaning.cleaning_settings import RuleName
from heedful.data.cleaning.examination import RULES, Progress, Tools, examine, rules_of
from heedful.data.cleaning.raw_pairs import PairWriter, RawCorpus, file_names
from heedful.durable import whole_folder
from heedful.errors import DataError

REMOVED_FILE = "removed.tsv"
_REPORT_EVERY = 10_000


@dataclass(frozen=True)
class CleanedCorpus:
    """The outcome of cleaning.

    Args:
        files: paths of what is left.
        removed_file: path of the lines that went, with their rules.
        pairs: lines there were.
        kept: pairs that are left.
        removed: pairs that went, by the first rule that found them; only what occurs.
        languages: of source and target; None if they were not judged.
        not_applied: rules that were not applied.
    """

    files: tuple[str, ...]
    removed_file: str
    pairs: int
    kept: int
    removed: dict[RuleName, int]
    languages: tuple[str, ...] | None
    not_applied: tuple[RuleName, ...]

    def plain(self) -> dict[str, Any]:
        """The outcome as JSON data."""
        return dict(vars(self))


def clean_corpus(
    corpus: RawCorpus,
    tools: Tools,
    out: Path,
    progress: Progress = lambda done, total, label: None,
) -> CleanedCorpus:
    """Write the pairs that no rule finds, byte for byte, and a table of the others.

    `removed.tsv` has a line for each pair that went: its line number from 1, and the rules that
    found it, separated by commas, the first one first. Cleaning what is left removes nothing more,
    as long as languages are named or the first pairs are mostly in the same ones.

    Args:
        corpus: the pairs.
        tools: rules and what they need, from `check_report.prepare`.
        out: a folder, still to be made; it appears when everything is written, or not at all.
        progress: told about reading and writing.

    Raises:
        DataError: when nothing would be left, or as for `examine`.
        OSError: when the files cannot be written.
    """
    examination = examine(corpus, tools, progress)
    counts = {rule: examination.removed_by(rule) for rule in RULES}
    removed = {rule: count for rule, count in counts.items() if count}
    if examination.kept == 0:
        reasons = ", ".join(f"{count:,} by {rule}" for rule, count in removed.items())
        raise DataError(
            f"No pair would be left: {reasons}",
            where=", ".join(map(str, corpus.paths)),
            remedy="Look at them with heedful data check; switch rules off by --off, or change "
            "their limits",
        )
    names = file_names(corpus.paths)
    with whole_folder(out) as folder, ExitStack() as stack:
        writer = PairWriter.open(folder, names, stack)
        reasons_file = stack.enter_context((folder / REMOVED_FILE).open("w", encoding="utf-8"))
        for pair, bits in zip(corpus, examination.found.tolist(), strict=True):
            if bits:
                reasons_file.write(f"{pair.line}\t{','.join(rules_of(bits))}\n")
            else:
                writer.write(pair)
            if pair.line % _REPORT_EVERY == 0 or pair.line == corpus.pairs:
                progress(pair.line, corpus.pairs, "written")
    active = tools.active()
    return CleanedCorpus(
        tuple(str(out / name) for name in names),
        str(out / REMOVED_FILE),
        corpus.pairs,
        examination.kept,
        removed,
        tools.languages.languages if tools.languages else None,
        tuple(rule for rule in RULES if rule not in active),
    )
