"""Splitting of a corpus into train, valid and test, with all pairs of a source in one of them.

Each source sentence has a key, a hash of the seed and of its letters and digits. Sentences with the
lowest keys form the test set, and sentences with the next keys the validation set. So the split
depends on the pairs and the seed, not on the order of the pairs. It takes at most 33 bytes of
memory per pair.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.apps.cleaning.raw_pairs import PairWriter, RawCorpus, file_names
from heedful.apps.cleaning.text_keys import letters_of, text_key
from heedful.data.corpus_spec import CorpusSpec
from heedful.durable import whole_folder
from heedful.errors import DataError

Progress = Callable[[int, int, str], None]
"""Receiver of the number of finished pairs, the number of all pairs, and the name of the step."""

PARTS = ("train", "valid", "test")
REPORT_EVERY = 10_000
"""Pairs between two reports of progress."""


@dataclass(frozen=True)
class SplitPart:
    """One part of a split.

    Args:
        name: `train`, `valid` or `test`.
        files: paths of the files.
        pairs: number of pairs.
        sources: number of different source sentences.
    """

    name: str
    files: tuple[str, ...]
    pairs: int
    sources: int

    def plain(self) -> dict[str, Any]:
        """The part as JSON data."""
        return asdict(self)


def split_corpus(
    spec: CorpusSpec,
    out: Path,
    *,
    valid: int,
    test: int,
    seed: int = 1,
    progress: Progress = lambda done, total, label: None,
) -> list[SplitPart]:
    """Write a corpus as train, valid and test in its own file format; lines keep their order.

    Sources that differ only in case, punctuation or spaces count as one sentence. A sentence with
    more pairs than a part still needs goes to another part, so the requested sizes are reached
    exactly wherever that is possible.

    Args:
        spec: files of the corpus.
        out: folder to make for the parts.
        valid, test: sizes of these parts in pairs; 0 leaves the part out.
        seed: seed of the keys.
        progress: function that is called while the corpus is read.

    Raises:
        DataError: when a line is no pair, or the corpus is too small.
        OSError: when the files cannot be written.
    """
    corpus = RawCorpus(spec)
    salt = seed.to_bytes(8, "little", signed=True)
    keys = array("Q")  # 8 bytes a pair, where a list of integers would take 40
    for pair in corpus:
        if pair.fault is not None:
            raise DataError(
                pair.why,
                where=f"{corpus.paths[0]}:{pair.line}",
                remedy="Correct the line, or name the keys: --source-key and --target-key",
            )
        keys.append(text_key(letters_of(pair.source), salt))
        if pair.line % REPORT_EVERY == 0 or pair.line == corpus.pairs:
            progress(pair.line, corpus.pairs, "read")
    # `unique` sorts: sentence 0 has the lowest key.
    _, sentence_of_pair, counts = np.unique(
        np.frombuffer(keys, np.uint64), return_inverse=True, return_counts=True
    )
    # Test first, so that the test set stays the same when the validation set is made larger.
    part_of_sentence = _parts(counts, {2: test, 1: valid})
    part_of_pair = part_of_sentence[sentence_of_pair]
    sizes = np.bincount(part_of_pair, minlength=len(PARTS))
    _refuse_empty(corpus, sizes, {0: 1, 1: valid, 2: test})
    _write(corpus, out, part_of_pair, progress)
    sources = np.bincount(part_of_sentence, minlength=len(PARTS))
    return [
        SplitPart(
            name,
            tuple(str(out / file) for file in file_names(corpus, name)),
            int(sizes[number]),
            int(sources[number]),
        )
        for number, name in enumerate(PARTS)
        if sizes[number]
    ]


def _parts(counts: npt.NDArray[np.int64], wanted: dict[int, int]) -> npt.NDArray[np.uint8]:
    """Assign sentences to parts.

    Args:
        counts: number of pairs of each sentence, in the order of the keys.
        wanted: number of pairs of each part except train, by the index of the part.
    """
    parts = np.zeros(len(counts), np.uint8)
    for part, size in wanted.items():
        for sentence in range(len(counts)):
            if size == 0:
                break
            if parts[sentence] == 0 and counts[sentence] <= size:  # 0 is train
                parts[sentence] = part
                size -= int(counts[sentence])
    return parts


def _refuse_empty(corpus: RawCorpus, sizes: npt.NDArray[np.int64], wanted: dict[int, int]) -> None:
    for part, size in wanted.items():
        if size and not sizes[part]:
            raise DataError(
                f"The corpus of {corpus.pairs:,} pairs leaves none for {PARTS[part]}",
                where=", ".join(map(str, corpus.paths)),
                remedy="Ask for smaller parts, or give more pairs",
            )


def _write(
    corpus: RawCorpus, out: Path, part_of_pair: npt.NDArray[np.uint8], progress: Progress
) -> None:
    with whole_folder(out) as folder, ExitStack() as stack:
        writers = {
            # Parts without pairs get no file: an empty file would look like a corpus.
            part: PairWriter.open(folder, file_names(corpus, PARTS[part]), stack)
            for part in np.unique(part_of_pair).tolist()
        }
        for pair, part in zip(corpus, part_of_pair, strict=True):
            writers[int(part)].write(pair)
            if pair.line % REPORT_EVERY == 0 or pair.line == corpus.pairs:
                progress(pair.line, corpus.pairs, "written")
