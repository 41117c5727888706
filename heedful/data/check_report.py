"""What a check of corpora found: plain data, and lines for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Role = Literal["train", "valid"]


@dataclass(frozen=True)
class Finding:
    """Something odd about pairs of a corpus.

    Args:
        what: what it is.
        count: pairs concerned.
        left_out: whether training leaves them out.
        lines: where the first of them stand; for aligned files, in the source's.
    """

    what: str
    count: int
    left_out: bool
    lines: tuple[int, ...]


@dataclass(frozen=True)
class CorpusReport:
    """What was found in one corpus.

    Args:
        name: its first file.
        role: what it is used for.
        pairs: pairs in it.
        used: pairs that are not left out.
        source_tokens, target_tokens: tokens on a side.
        source_unknown, target_unknown: share of unknown tokens on a side, 0 to 1.
        encodings: how each file is written, a sentence part for each.
        findings: everything odd; only what occurs.
    """

    name: str
    role: Role
    pairs: int
    used: int
    source_tokens: int
    target_tokens: int
    source_unknown: float
    target_unknown: float
    encodings: dict[str, str]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class BatchReport:
    """The batches of the first epoch.

    Args:
        batches: their number.
        pairs: pairs shown.
        positions: source and target positions computed, padding counted.
        padding: share of them that is padding, 0 to 1.
    """

    batches: int
    pairs: int
    positions: int
    padding: float


@dataclass(frozen=True)
class CheckReport:
    """Everything the check found.

    Args:
        corpora: a report for each corpus.
        batches: the batches of the first epoch.
    """

    corpora: tuple[CorpusReport, ...]
    batches: BatchReport

    def plain(self) -> dict[str, Any]:
        """The report as nested plain data."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The report for people, a line each."""
        lines = [line for corpus in self.corpora for line in _corpus_lines(corpus)]
        batches = self.batches
        lines.append(
            f"batches: {batches.batches:,} an epoch of {batches.pairs:,} pairs, "
            f"{batches.padding:.1%} of {batches.positions:,} positions are padding"
        )
        return lines


def _corpus_lines(corpus: CorpusReport) -> list[str]:
    lines = [
        f"{corpus.role} {corpus.name}: {corpus.used:,} of {corpus.pairs:,} pairs used; "
        f"{_side('source', corpus.source_tokens, corpus.source_unknown)}, "
        f"{_side('target', corpus.target_tokens, corpus.target_unknown)}"
    ]
    lines += [f"  {path}: {encoding}" for path, encoding in corpus.encodings.items()]
    for finding in corpus.findings:
        fate = "left out" if finding.left_out else "kept"
        more = ", …" if finding.count > len(finding.lines) else ""
        where = ", ".join(map(str, finding.lines)) + more
        lines.append(f"  {finding.count:,} {fate}: {finding.what} (line {where})")
    return lines


def _side(name: str, tokens: int, unknown: float) -> str:
    share = f" ({unknown:.2%} unknown)" if unknown else ""
    return f"{tokens:,} {name} tokens{share}"
