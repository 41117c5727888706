"""Cleaning of a corpus: pairs that a rule finds are removed and listed with the reasons."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.apps.cleaning.cleaning_settings import RuleName
from heedful.apps.cleaning.examination import Progress, Tools, examine, rules_of
from heedful.apps.cleaning.pair_judge import RULES
from heedful.apps.cleaning.raw_pairs import PairWriter, RawCorpus, file_names
from heedful.durable import whole_folder
from heedful.errors import DataError

REMOVED_FILE = "removed.tsv"
_REPORT_EVERY = 10_000  # pairs between two reports of progress


@dataclass(frozen=True)
class CleanedCorpus:
    """The outcome of cleaning.

    Args:
        files: paths of the cleaned files.
        removed_file: path of the table of removed lines and their rules.
        pairs: number of lines of the corpus.
        kept: number of pairs that are left.
        removed: number of removed pairs by the first rule that found them; rules that removed none
            are left out.
        languages: codes of the languages of source and target; None if they were not judged.
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
    """Write the pairs that no rule finds, byte for byte, and a table of the removed pairs.

    `removed.tsv` has a line for each removed pair: its line number from 1, and the rules that found
    it, in their order, separated by commas. Cleaning the result again removes nothing if the
    languages are the same, whether they are named or detected.

    Args:
        corpus: pairs of the corpus.
        tools: tools of the rules, from `check_report.prepare`.
        out: folder to make; it appears when everything is written, or not at all.
        progress: function that is called while the corpus is read and written.

    Raises:
        DataError: when no pair would be left, or as for `examine`.
        OSError: when the files cannot be written.
    """
    examination = examine(corpus, tools, progress)
    counts = {rule: examination.removed_by(rule) for rule in RULES}
    removed = {rule: count for rule, count in counts.items() if count}
    # An empty corpus would only fail later, in training, with a less useful message.
    if examination.kept == 0:
        reasons = ", ".join(f"{count:,} by {rule}" for rule, count in removed.items())
        raise DataError(
            f"No pair would be left: {reasons}",
            where=", ".join(map(str, corpus.paths)),
            remedy="Look at them with heedful data check; switch rules off by --off, or change "
            "their limits",
        )
    names = file_names(corpus)
    with whole_folder(out) as folder, ExitStack() as stack:
        writer = PairWriter.open(folder, names, stack)
        reasons_file = stack.enter_context((folder / REMOVED_FILE).open("w", encoding="utf-8"))
        # The corpus is read again: the examination stores one bit for each rule, not the texts.
        for pair, bits in zip(corpus, examination.found.tolist(), strict=True):
            # Line numbers are those of the corpus, so that the removed lines can be looked up
            # there.
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
