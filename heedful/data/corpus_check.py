"""The check of corpora before training: oddities are reported, hopeless corpora refused.

Pairs that cannot be trained on are left out and reported with their lines. A corpus with mostly
unknown tokens, or without a usable pair, is an error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from heedful.data.batch_plan import NO_PAIR, Indices
from heedful.data.corpus_spec import DataSpec
from heedful.data.encoded_pairs import (
    EncodedCorpus,
    EncodedPairs,
    PairSelection,
    epoch_batches,
    select_pairs,
    unknown_share,
)
from heedful.data.pair_corpus import SIDES
from heedful.errors import DataError

MOST_UNKNOWN = 0.5
"""Share of unknown tokens on a side past which a corpus is refused."""

OUTLIER_RATIO = 3.0
"""Factor by which a pair's length ratio may differ from its corpus's median without a report."""

# Ratios of very short pairs vary too much to tell anything.
_OUTLIER_TOKENS = 10
_EXAMPLES = 5

Role = Literal["train", "valid"]


Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Finding:
    """An oddity of some pairs of a corpus.

    Args:
        what: description of the oddity.
        count: number of pairs concerned.
        left_out: flag that training leaves the pairs out.
        lines: lines of the first such pairs; for aligned files, lines of the source.
    """

    what: str
    count: int
    left_out: bool
    lines: tuple[int, ...]


@dataclass(frozen=True)
class CorpusReport:
    """The report on one corpus.

    Args:
        name: path of its first file.
        role: use of the corpus, training or validation.
        pairs: number of pairs in it.
        used: number of pairs that are not left out.
        source_tokens, target_tokens: number of tokens on each side.
        source_unknown, target_unknown: share of unknown tokens on each side, 0 to 1.
        encodings: part of a sentence about the encoding of each file, by its path.
        findings: oddities that occur.
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
        batches: number of batches.
        pairs: number of pairs shown.
        positions: source and target positions in all, padding counted.
        padding: share of the positions that are padding, 0 to 1.
        shape: rows of a batch and positions of a row where pairs are packed; otherwise None.
    """

    batches: int
    pairs: int
    positions: int
    padding: float
    shape: tuple[int, int] | None = None


@dataclass(frozen=True)
class CheckReport:
    """The findings about all corpora, and the batches.

    Args:
        corpora: report for each corpus.
        batches: the batches of the first epoch; None without training data.
        notes: sentences about the corpora as wholes.
    """

    corpora: tuple[CorpusReport, ...]
    batches: BatchReport | None
    notes: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = [line for corpus in self.corpora for line in _corpus_lines(corpus)]
        if (batches := self.batches) is not None:
            shape = batches.shape
            packed = "" if shape is None else f" in {shape[0]:,} rows of {shape[1]:,} positions"
            lines.append(
                f"batches: {batches.batches:,} an epoch of {batches.pairs:,} pairs{packed}, "
                f"{batches.padding:.1%} of {batches.positions:,} positions are padding"
            )
        return [*lines, *self.notes]


def check_corpora(
    train: EncodedPairs | None, valid: EncodedPairs | None, spec: DataSpec, *, seed: int = 1
) -> CheckReport:
    """Check the corpora before training.

    Args:
        train: the encoded training corpora; None if they are streamed.
        valid: the encoded validation corpora, if there are any.
        spec: limits on pairs and token budget.
        seed: seed of the run, which decides the batches of the first epoch.

    Raises:
        DataError: when more than half of a side's tokens are unknown, when no pair is left, or
            when source and target of the validation data are exchanged.
    """
    reports, batches = [], None
    if train is not None:
        selection = select_pairs(train, spec)
        reports = _role_reports(train, selection, "train", None)
        batches = _batch_report(train, selection, spec, seed)
    if valid is not None and len(valid):
        reports += _role_reports(valid, select_pairs(valid, spec), "valid", train)
    # Unknown tokens are checked first: they point to a wrong tokenizer, which also makes pairs too
    # long.
    for report in reports:
        for side, share in (("source", report.source_unknown), ("target", report.target_unknown)):
            refuse_unknown(share, side, report.name)
    for role in ("train", "valid"):
        _refuse_nothing_left([report for report in reports if report.role == role])
    notes = check_order(train, valid) if train is not None else ()
    return CheckReport(tuple(reports), batches, notes)


def _role_reports(
    pairs: EncodedPairs, selection: PairSelection, role: Role, train: EncodedPairs | None
) -> list[CorpusReport]:
    """Return reports on the corpora of one role; validation should not overlap with `train`."""
    total = len(pairs)
    # Everything is compared by the stored 64-bit digests, so no text is read again.
    results: dict[str, Mask] = {}
    kept = _mask(selection.kept, total)
    sources, keys = pairs.digests("source"), _pair_keys(pairs)
    results["the same pair as an earlier one"] = kept & _repeats(keys)
    results["source and target are the same"] = kept & (sources == pairs.digests("target"))
    results["one side unusually long for the other"] = _outliers(pairs, kept)
    if train is not None:
        results["the pair is in the training data"] = kept & np.isin(keys, _pair_keys(train))
        # A known source with another target leaks, too: the model was trained on the sentence.
        known = np.isin(sources, train.digests("source"))
        results["the source is in the training data"] = kept & known
    left_out = {str(reason): _mask(rows, total) for reason, rows in selection.left_out.items()}
    reports = []
    for number, corpus in enumerate(pairs.corpora):
        # Masks cover the pairs of all corpora, a report those of one corpus.
        part = slice(pairs.starts[number], pairs.starts[number + 1])
        findings = [_finding(what, True, mask[part]) for what, mask in left_out.items()]
        findings += [_finding(what, False, mask[part]) for what, mask in results.items()]
        reports.append(_corpus_report(pairs, corpus, role, int(kept[part].sum()), findings))
    return reports


def _corpus_report(
    pairs: EncodedPairs, corpus: EncodedCorpus, role: Role, used: int, findings: list[Finding]
) -> CorpusReport:
    source_ids, target_ids = corpus.ids["source"].ids, corpus.ids["target"].ids
    return CorpusReport(
        name=next(iter(corpus.facts)),
        role=role,
        pairs=len(corpus),
        used=used,
        source_tokens=len(source_ids),
        target_tokens=len(target_ids),
        source_unknown=unknown_share(source_ids, pairs.tokenizers.source.unk),
        target_unknown=unknown_share(target_ids, pairs.tokenizers.target.unk),
        encodings={path: facts.describe() for path, facts in corpus.facts.items()},
        findings=tuple(finding for finding in findings if finding.count),
    )


def _finding(what: str, left_out: bool, mask: Mask) -> Finding:
    rows = np.flatnonzero(mask)
    return Finding(what, len(rows), left_out, tuple(int(row) + 1 for row in rows[:_EXAMPLES]))


def refuse_unknown(share: float, side: str, where: str) -> None:
    """Refuse a corpus with a large share of unknown tokens.

    Args:
        share: share of the tokens that are unknown, 0 to 1.
        side: `source` or `target`.
        where: name of the corpus.

    Raises:
        DataError: when the share is more than `MOST_UNKNOWN`.
    """
    if share > MOST_UNKNOWN:
        raise DataError(
            f"{share:.0%} of the {side} tokens are unknown to the tokenizer",
            where=where,
            remedy="Check that the files are text in the languages the tokenizer was trained "
            "on, or use tokenizer.kind = byte-bpe, to which nothing is unknown",
        )


def _refuse_nothing_left(reports: list[CorpusReport]) -> None:
    if not reports or any(report.used for report in reports):
        return
    reasons = [f"{f.count:,} {f.what}" for report in reports for f in report.findings if f.left_out]
    raise DataError(
        f"No pair is left to use: {', '.join(reasons)}",
        where=", ".join(report.name for report in reports),
        remedy="Check the files, and data.max_length, data.max_length_ratio and data.batch_tokens",
    )


def _batch_report(
    pairs: EncodedPairs, selection: PairSelection, spec: DataSpec, seed: int
) -> BatchReport:
    batches = epoch_batches(pairs, selection, spec, seed=seed, epoch=0)
    positions = real = shown = 0
    for rows in batches:
        numbers = rows[rows != NO_PAIR]
        # One more on each side: the source's eos, the target's bos or eos.
        for lengths in (pairs.source_lengths[numbers] + 1, pairs.target_lengths[numbers] + 1):
            # The memory-relevant size: every row is as long as the longest, or has the packed
            # length.
            positions += len(rows) * (spec.packed_length or int(lengths.max()))
            real += int(lengths.sum())
        shown += len(numbers)
    shape = None if spec.packed_length is None else (spec.batch_rows, spec.packed_length)
    return BatchReport(len(batches), shown, positions, 1 - real / max(positions, 1), shape)


def _outliers(pairs: EncodedPairs, kept: Mask) -> Mask:
    """Return a mask of the kept pairs whose length ratio is far from the median of their corpus."""
    # Ratios are compared as logarithms, so that a long source and a long target count alike.
    ratios = np.log((pairs.source_lengths + 1) / (pairs.target_lengths + 1))
    for start, end in zip(pairs.starts[:-1], pairs.starts[1:], strict=True):
        # The median, not 1, since languages and tokenizers differ in tokens for the same content.
        usual = ratios[start:end][kept[start:end]]
        ratios[start:end] -= np.median(usual) if len(usual) else 0
    long_enough = np.maximum(pairs.source_lengths, pairs.target_lengths) >= _OUTLIER_TOKENS
    outliers: Mask = kept & long_enough & (np.abs(ratios) > np.log(OUTLIER_RATIO))
    return outliers


def _repeats(keys: Numbers) -> Mask:
    """Return a mask of the keys that occurred before."""
    repeats = np.ones(len(keys), dtype=bool)
    repeats[np.unique(keys, return_index=True)[1]] = False
    return repeats


def _pair_keys(pairs: EncodedPairs) -> Numbers:
    """Return a 64-bit key for each pair [n]; exchanging source and target gives another key."""
    # An odd multiplier (2^64 / golden ratio) loses no bits; overflow wraps, as is intended.
    return pairs.digests("source") * np.uint64(0x9E3779B97F4A7C15) + pairs.digests("target")


def _mask(indices: Indices, total: int) -> Mask:
    mask = np.zeros(total, dtype=bool)
    mask[indices] = True
    return mask


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


_SAMPLE = 500
"""Number of pairs of a corpus that are read."""

_CLEARLY = 1.5
"""Factor by which exchanged sides must be more alike. In 240 draws of 5 to 100 pairs of Tatoeba
(English with German, with French) the right order was at least twice as alike. Both sides of a task
in one language (summaries, a toy language) are about as alike either way round."""

_LETTERS = 3  # trigrams, which need no words, so that scripts without spaces are compared, too


def check_order(train: EncodedPairs, valid: EncodedPairs | None) -> tuple[str, ...]:
    """Compare the order of the sides of all corpora.

    Args:
        train: training corpora. One may be in the other order, as for a model of both directions.
        valid: validation corpora, if there are any.

    Returns:
        A sentence about each training corpus in another order than the first.

    Raises:
        DataError: when a validation corpus is in another order than every training corpus.
    """
    known = list(map(_sides, train.corpora))
    for corpus in valid.corpora if valid is not None else ():
        sides = _sides(corpus)
        if known and all(_are_exchanged(each, sides) for each in known):
            raise DataError(
                "Source and target are exchanged: these sources look like the targets of the "
                "training data, and the targets like its sources",
                where=_name(corpus),
                remedy="Name the source first, as for training: --valid SOURCE TARGET",
            )
    return tuple(
        f"{_name(corpus)}: source and target are exchanged, as compared with "
        f"{_name(train.corpora[0])}"
        for corpus, sides in zip(train.corpora, known, strict=True)
        if _are_exchanged(known[0], sides)
    )


def _name(corpus: EncodedCorpus) -> str:
    return ", ".join(corpus.facts)


def _sides(corpus: EncodedCorpus) -> list[Counter[str]]:
    rows = range(0, len(corpus), max(1, len(corpus) // _SAMPLE))
    return [_trigrams(corpus.text(side, row) for row in rows) for side in SIDES]


def _are_exchanged(one: Sequence[Counter[str]], other: Sequence[Counter[str]]) -> bool:
    straight = _likeness(one[0], other[0]) + _likeness(one[1], other[1])
    return _likeness(one[0], other[1]) + _likeness(one[1], other[0]) > _CLEARLY * straight


def _likeness(one: Counter[str], other: Counter[str]) -> float:
    """Return the cosine of the angle between two counts, 0 to 1."""
    product = sum(count * other[letters] for letters, count in one.items())
    squares = (sum(count * count for count in each.values()) for each in (one, other))
    return product / max(1e-9, math.sqrt(math.prod(squares)))


def _trigrams(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        padded = f" {text.lower()} "
        counts.update(padded[i : i + _LETTERS] for i in range(len(padded) - _LETTERS + 1))
    return counts
