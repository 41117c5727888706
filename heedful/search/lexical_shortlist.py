"""Lexical shortlists: the target tokens of a translation are restricted by its source tokens.

The list of a sentence holds the most frequent target tokens, the likeliest translations of each of
its source tokens, the tokens of its prefix and the special tokens (Jean 2015; L'Hostis 2016). It
depends on that sentence alone, so a translation is the same in any batch. IBM model 1 is fitted to
a parallel corpus, and translations are ranked by p(target | source) alone: on Multi30k no other
order was better for the same size of a batch's union (the product with a power of
p(source | target), a threshold on the probability, the best sources of each target).
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
from heedful.data.encoded_pairs import encode_corpus
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
"""Sentences whose lists [rows, V] are built at once to measure coverage: 3 MB for V = 32,000."""


@dataclass(frozen=True, eq=False)
class Shortlist:
    """Target tokens of every list, and the likeliest translations of each source token.

    Args:
        common: target tokens on every list [F] int64.
        ends: [source vocabulary + 1] int64; the translations of source token i are `likely` from
            `ends[i]` to `ends[i + 1]`.
        likely: translations [n] int64, the likeliest first.
        size: size V of the target vocabulary.
        copies: flag of a joint vocabulary, in which a source token can be copied.
        fingerprint: fingerprint of the tokenizers.
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
            lexicon: translation probabilities, fitted to a corpus.
            tokenizers: tokenizers of the corpus.
            per_token: most translations on the list of each source token.
            frequent: number of the corpus's most frequent tokens, which are on every list.
        """
        likeliest = ranks(lexicon.source) < per_token
        # The lexicon is sorted by source token, so lists are ranges (compressed rows).
        counts = np.bincount(lexicon.source[likeliest], minlength=tokenizers.source.size)
        return cls(
            # A stable sort: tokens of equal frequency have the same order on every machine.
            common=np.sort(np.argsort(-lexicon.counts, kind="stable")[:frequent]),
            ends=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
            likely=lexicon.target[likeliest],
            size=tokenizers.target.size,
            copies=tokenizers.joint,
            fingerprint=tokenizers.fingerprint,
        )

    def write(self, path: Path) -> None:
        """Write the file in one step, or raise an `OSError` that names it."""
        # int32 takes half the bytes; no vocabulary comes near 2^31.
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
            path: shortlist file.
            tokenizers: tokenizers of the model that will use the shortlist.

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
                # Another version may name its arrays differently.
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
            sources: source ids of each sentence.
            prefixes: first ids of each translation.
            specials: special ids, which every search needs.
            device: device of the lists.
        """
        first = sorted(specials.ids)
        listed = self._list_tokens(sources)  # [B, V]
        for row, prefix in zip(listed, prefixes, strict=True):
            row[list(prefix)] = True
        # Special tokens are left out here: they come first in every list, at the same indices.
        listed[:, first] = False
        sizes = len(first) + listed.sum(1)
        rows, tokens = listed.nonzero()
        listed[:, first] = True
        # Ascending, which `searchsorted` below relies on.
        union = np.flatnonzero(listed.any(0))
        # Padding is a token of the union, too, so that every entry has a column.
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
            The share of all target tokens that are on their sentence's list, and the mean number of
            tokens of a list.
        """
        covered = sizes = 0
        for first in range(0, len(sources), _COVERAGE_ROWS):
            listed = self._list_tokens(sources[first : first + _COVERAGE_ROWS])
            sizes += int(listed.sum())
            covered += sum(
                int(row[list(target)].sum())
                for row, target in zip(listed, targets[first : first + _COVERAGE_ROWS], strict=True)
            )
        return covered / max(1, sum(map(len, targets))), sizes / max(1, len(sources))

    def _list_tokens(self, sources: Sequence[Sequence[int]]) -> npt.NDArray[np.bool_]:
        """Return flags [B, V] of the tokens on each list, without special tokens and prefixes."""
        listed = np.zeros((len(sources), self.size), dtype=np.bool_)
        listed[:, self.common] = True
        rows = np.repeat(np.arange(len(sources)), [len(source) for source in sources])
        tokens = np.array([token for source in sources for token in source], dtype=np.int64)
        # The ranges of all source tokens at once, without a Python loop over tokens.
        counts = self.ends[tokens + 1] - self.ends[tokens]
        listed[np.repeat(rows, counts), self.likely[ragged(self.ends[tokens], counts)]] = True
        # A name may be in no pair of the corpus, and its translation is often a copy.
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
        choice: False for none, True for the file in the model's directory, or another file.
        model: directory of a model or of a run.
        tokenizers: tokenizers of the model.

    Raises:
        ModelError: when the shortlist is missing, damaged, or made for other tokenizers.
    """
    if choice is False:
        return None
    path = shortlist_path(model) if choice is True else Path(choice)
    return Shortlist.read(path, tokenizers)


def _digest(arrays: dict[str, Any]) -> str:
    """Return the SHA-256 of the names, types, shapes and contents of arrays."""
    digest = hashlib.sha256()
    for name in _ARRAYS:
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


_COVERAGE_PAIRS = 1000
"""Pairs on which coverage is measured: spread over a corpus that may hold millions."""


@dataclass(frozen=True)
class LearnedShortlist:
    """A shortlist, and facts about its corpus.

    Args:
        shortlist: new shortlist, not written to a file yet.
        pairs: number of pairs of the corpus.
        skipped: number of pairs that were too long.
        coverage: share of the corpus's target tokens that are on their sentence's list.
        size: mean number of tokens of a list.
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
    """Estimate the likeliest target tokens of each source token from a parallel corpus.

    Args:
        source: text file with a sentence in each line.
        target: text file with the translation of each line.
        tokenizers: tokenizers of the model that will use the shortlist.
        per_token: most translations on the list of each source token.
        frequent: number of the corpus's most frequent tokens, which are on every list.
        progress: function of the work done, the whole work, and the name of the stage.

    Raises:
        DataError: when the files differ in their number of lines or have no text.
        RunError: when the token ids of the corpus do not fit into the folder of temporary files.
    """
    spec = CorpusSpec(source=str(source), target=str(target))
    # The encoded corpus is stored on the disk, as its ids may be larger than memory.
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
        # Pairs spread over the whole corpus, whose beginning may be of another kind than the rest.
        rows = np.linspace(0, len(corpus) - 1, min(_COVERAGE_PAIRS, len(corpus))).astype(np.int64)
        sources = [ids.tolist() for ids in corpus.ids["source"].rows(rows)]
        targets = [ids.tolist() for ids in corpus.ids["target"].rows(rows)]
        coverage, size = shortlist.coverage(sources, targets)
        return LearnedShortlist(shortlist, len(corpus), lexicon.skipped, coverage, size)
