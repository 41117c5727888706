"""Lexical shortlists: the target tokens a translation may be made of, by its source tokens.

A sentence's list holds the commonest target tokens, for each of its source tokens the likeliest
translations, and the tokens of its prefix and special ones (Jean 2015; L'Hostis 2016). It depends
on that sentence alone, so a translation is the same in any batch. Lists are learned from a parallel
corpus by IBM model 1 and ranked by p(target | source) alone: on Multi30k no other order did better
for the same size of a batch's union (the product with a power of p(source | target), a bar on the
probability, the best sources of each target).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from heedful.data.corpus_spec import CorpusSpec
from heedful.data.encoded_pairs import EncodedCorpus, encode_corpus
from heedful.data.lexicon import Integers, Lexicon, Progress, learn_lexicon, ragged, ranks
from heedful.durable import whole
from heedful.errors import DataError, ModelError
from heedful.models.model_directory import CONFIG_FILE, locate
from heedful.search.restricted_vocabulary import RestrictedVocabulary
from heedful.search.search_settings import FREQUENT, PER_TOKEN, Specials
from heedful.text.tokenizer_pair import TokenizerPair

SHORTLIST_FILE = "shortlist.safetensors"
SCHEMA_VERSION = 1

_ARRAYS = ("common", "ends", "likely")
_COVERAGE_ROWS = 100
"""Sentences whose lists are built together where their coverage is counted."""


@dataclass(frozen=True, eq=False)
class Shortlist:
    """Tokens that every list holds, and the likeliest translations of each source token.

    Args:
        common: target tokens on every list [F] int64.
        ends: [source vocabulary + 1] int64; the likeliest tokens of source token i are `likely`
            from `ends[i]` to `ends[i + 1]`.
        likely: [n] int64, the likeliest first.
        size: of the target vocabulary.
        copies: True where source tokens are target tokens too: each may be copied.
        fingerprint: of the tokenizers.
    """

    common: Integers
    ends: Integers
    likely: Integers
    size: int
    copies: bool
    fingerprint: str

    @classmethod
    def from_lexicon(
        cls, lexicon: Lexicon, tokenizers: TokenizerPair, *, per_token: int, frequent: int
    ) -> Self:
        """Take the likeliest tokens of a lexicon.

        Args:
            lexicon: learned from a corpus.
            tokenizers: of its ids.
            per_token: most tokens on the list for each source token.
            frequent: tokens on every list, the commonest of the corpus.
        """
        likeliest = ranks(lexicon.source) < per_token
        counts = np.bincount(lexicon.source[likeliest], minlength=tokenizers.source.size)
        return cls(
            common=np.sort(np.argsort(-lexicon.counts, kind="stable")[:frequent]),
            ends=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
            likely=lexicon.target[likeliest],
            size=tokenizers.target.size,
            copies=tokenizers.joint,
            fingerprint=tokenizers.fingerprint,
        )

    def write(self, path: Path) -> None:
        """Write the file in one step.

        Raises:
            OSError: naming the file, when it cannot be written.
        """
        arrays = {name: getattr(self, name).astype(np.int32) for name in _ARRAYS}
        facts = {
            "schema_version": SCHEMA_VERSION,
            "tokenizers": self.fingerprint,
            "sha256": _digest(arrays),
        }
        with whole(path) as file:
            file.write(save(arrays, metadata={"heedful": json.dumps({"shortlist": facts})}))

    @classmethod
    def read(cls, path: Path, tokenizers: TokenizerPair) -> Self:
        """Read what `write` wrote.

        Args:
            path: the file.
            tokenizers: of the model that is to use it.

        Raises:
            ModelError: when it is missing, damaged, of a newer version or for other tokenizers.
        """
        if not path.is_file():
            raise ModelError(
                "There is no such shortlist",
                where=str(path),
                remedy="Make one: heedful shortlist MODEL --source FILE --target FILE",
            )
        try:
            with safe_open(str(path), framework="numpy") as file:
                facts = json.loads(file.metadata()["heedful"])["shortlist"]
                version, fingerprint = facts["schema_version"], facts["tokenizers"]
                if version == SCHEMA_VERSION:
                    arrays = {name: file.get_tensor(name) for name in _ARRAYS}
                    if _digest(arrays) != facts["sha256"]:
                        raise ValueError("its content has changed")
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ModelError(
                f"The shortlist cannot be read: {error}",
                where=str(path),
                remedy="The file is damaged; copy it again, or make it anew with heedful shortlist",
            ) from None
        if version != SCHEMA_VERSION:
            raise ModelError(
                f"The shortlist has schema version {version}; this Heedful reads {SCHEMA_VERSION}",
                where=str(path),
                remedy="Install a newer Heedful",
            )
        if fingerprint != tokenizers.fingerprint:
            raise ModelError(
                "This shortlist was made for other tokenizers than this model's",
                where=str(path),
                remedy="Make one for this model: heedful shortlist MODEL --source FILE "
                "--target FILE",
            )
        common, ends, likely = (arrays[name].astype(np.int64) for name in _ARRAYS)
        return cls(common, ends, likely, tokenizers.target.size, tokenizers.joint, fingerprint)

    def restrict(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        specials: Specials,
        device: torch.device,
    ) -> RestrictedVocabulary:
        """Build the lists of a batch.

        Args:
            sources: ids of each sentence.
            prefixes: ids that its translation begins with.
            specials: ids that every search needs.
            device: of the lists.
        """
        first = sorted(specials.ids)
        listed = self._listed(sources)
        for row, prefix in zip(listed, prefixes, strict=True):
            row[list(prefix)] = True
        listed[:, first] = False
        sizes = len(first) + listed.sum(1)
        rows, tokens = listed.nonzero()
        listed[:, first] = True
        union = np.flatnonzero(listed.any(0))
        ids = np.full((len(sources), int(sizes.max())), first[0])
        ids[:, : len(first)] = first
        ids[rows, len(first) + ranks(rows)] = tokens
        mask = np.where(np.arange(ids.shape[1]) < sizes[:, None], 0, -np.inf)
        arrays = (union, ids, np.searchsorted(union, ids), mask.astype(np.float32))
        return RestrictedVocabulary(*(torch.from_numpy(array).to(device) for array in arrays))

    def coverage(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> tuple[float, float]:
        """Measure the lists of sentences on their reference translations.

        Returns:
            The share of all target tokens that are on their sentence's list, and how many tokens
            the mean list holds.
        """
        covered = sizes = 0
        for first in range(0, len(sources), _COVERAGE_ROWS):
            listed = self._listed(sources[first : first + _COVERAGE_ROWS])
            sizes += int(listed.sum())
            covered += sum(
                int(row[list(target)].sum())
                for row, target in zip(listed, targets[first : first + _COVERAGE_ROWS], strict=True)
            )
        return covered / max(1, sum(map(len, targets))), sizes / max(1, len(sources))

    def _listed(self, sources: Sequence[Sequence[int]]) -> npt.NDArray[np.bool_]:
        """Mark the tokens on each sentence's list [B, V], special tokens and prefixes left out."""
        listed = np.zeros((len(sources), self.size), dtype=np.bool_)
        listed[:, self.common] = True
        rows = np.repeat(np.arange(len(sources)), [len(source) for source in sources])
        tokens = np.array([token for source in sources for token in source], dtype=np.int64)
        counts = self.ends[tokens + 1] - self.ends[tokens]
        listed[np.repeat(rows, counts), self.likely[ragged(self.ends[tokens], counts)]] = True
        if self.copies:
            listed[rows, tokens] = True
        return listed


def shortlist_path(model: Path) -> Path:
    """Return the path of the shortlist of a model directory or a run directory."""
    model = locate(model)
    places = (model, model / "model")
    return next((p for p in places if (p / CONFIG_FILE).is_file()), model) / SHORTLIST_FILE


def load_shortlist(
    choice: bool | str | Path, model: Path, tokenizers: TokenizerPair
) -> Shortlist | None:
    """Read the shortlist to translate with, if any.

    Args:
        choice: False for none, True for the one in the model's directory, or another file.
        model: a directory of a model or of a run.
        tokenizers: of the model.

    Raises:
        ModelError: as `Shortlist.read`.
    """
    if choice is False:
        return None
    path = shortlist_path(model) if choice is True else Path(choice)
    return Shortlist.read(path, tokenizers)


def _digest(arrays: dict[str, Any]) -> str:
    """Return the SHA-256 of the names, types, shapes and contents of arrays."""
    total = hashlib.sha256()
    for name in _ARRAYS:
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        total.update(arrays[name].tobytes())
    return total.hexdigest()


_COVERAGE_PAIRS = 1000
"""Pairs of the corpus that coverage is measured on."""


@dataclass(frozen=True)
class LearnedShortlist:
    """A shortlist, and facts about the corpus it was learned from.

    Args:
        shortlist: not written yet.
        pairs: of the corpus.
        skipped: pairs among them that were too long to learn from.
        coverage: share of the corpus's target tokens that are on their sentence's list.
        size: tokens on the mean list.
    """

    shortlist: Shortlist
    pairs: int
    skipped: int
    coverage: float
    size: float


def make_shortlist(
    source: str | Path,
    target: str | Path,
    tokenizers: TokenizerPair,
    *,
    per_token: int = PER_TOKEN,
    frequent: int = FREQUENT,
    progress: Progress | None = None,
) -> LearnedShortlist:
    """Learn the likeliest target tokens of each source token.

    Args:
        source: a text, a sentence a line.
        target: its translations, line by line.
        tokenizers: of the model that is to use it.
        per_token: most tokens on the list for each source token.
        frequent: tokens on every list, the commonest.
        progress: called with how much is done, of how much, and the name of the stage.

    Raises:
        DataError: when the files are out of step or hold no text.
        RunError: when there is no room for the corpus as token ids, in the folder for temporary
            files.
    """
    spec = CorpusSpec(source=str(source), target=str(target))
    with tempfile.TemporaryDirectory(prefix="heedful-", ignore_cleanup_errors=True) as folder:

        def read(done: int, total: int) -> None:
            if progress is not None:
                progress(done, total, "reading")

        corpus = encode_corpus(spec, tokenizers, Path(folder) / "corpus", read)
        sizes = tokenizers.source.size, tokenizers.target.size
        lexicon = learn_lexicon(corpus, *sizes, progress=progress)
        if not len(lexicon.source):
            raise DataError(
                "The corpus holds no pair with text on both sides that can be learned from",
                where=f"{source} and {target}",
                remedy="Check that these are the right files",
            )
        shortlist = Shortlist.from_lexicon(
            lexicon, tokenizers, per_token=per_token, frequent=frequent
        )
        coverage, size = _coverage(shortlist, corpus)
        return LearnedShortlist(shortlist, len(corpus), lexicon.skipped, coverage, size)


def _coverage(shortlist: Shortlist, corpus: EncodedCorpus) -> tuple[float, float]:
    """Measure coverage and size of the lists on pairs spread over the corpus."""
    count = min(_COVERAGE_PAIRS, len(corpus))
    rows = np.linspace(0, len(corpus) - 1, count).astype(np.int64).tolist()
    return shortlist.coverage(
        [corpus.ids("source", row).tolist() for row in rows],
        [corpus.ids("target", row).tolist() for row in rows],
    )
