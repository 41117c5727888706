"""Which target tokens a translation may be made of, by the tokens of its source.

A sentence's list holds the commonest target tokens, for each of its source tokens the likeliest
ones, and what its prefix and the search need (Jean 2015; L'Hostis 2016). It depends on that
sentence alone. A batch is searched over the union of its sentences' lists, and what is not on a
sentence's own list has no probability for it, so that its translation is the same in any batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from heedful.data.lexicon import Integers, Lexicon, ragged, ranks
from heedful.decode.protocol import Hypothesis, Specials
from heedful.durable import whole
from heedful.errors import ModelError
from heedful.models.directory import CONFIG_FILE
from heedful.text.pair import TokenizerPair

SHORTLIST_FILE = "shortlist.safetensors"
SCHEMA_VERSION = 1

_ARRAYS = ("common", "ends", "likely")
_SHOWN = 100
"""Sentences whose lists are looked at together where their sizes are counted."""


@dataclass(frozen=True, eq=False)
class Lists:
    """What each sentence of a batch may be made of.

    A search knows a token by its place in its sentence's list. Special tokens come first, at the
    same places for all; the others ascend. Lists are filled up to the longest with places that can
    never be chosen.

    Args:
        union: [V'] int64, ascending: every token that is on any list.
        own: [B, K] int64, the lists.
        columns: [B, K] int64, where their tokens stand in the union.
        barrier: [B, K] float32, 0 for what is on a list and −∞ for what only fills it up.
    """

    union: Tensor
    own: Tensor
    columns: Tensor
    barrier: Tensor

    def specials(self, specials: Specials) -> Specials:
        """The places of the special tokens."""
        place = {token: place for place, token in enumerate(sorted(specials.ids))}
        return Specials(place[specials.pad], place[specials.bos], place[specials.eos])

    def places(self, targets: Sequence[Sequence[int]]) -> list[list[int]]:
        """For each sentence the places of some of its tokens."""
        found: list[list[int]] = []
        for own, target in zip(self.own, targets, strict=True):
            # Whatever fills a list up stands in its first place as well.
            listed = own.tolist() if target else []
            found.append([listed.index(token) for token in target])
        return found

    def select(self, sentences: Tensor) -> Lists:
        """The lists of some sentences ([B'] int64)."""
        own, columns, barrier = (
            t.index_select(0, sentences) for t in (self.own, self.columns, self.barrier)
        )
        return Lists(self.union, own, columns, barrier)

    def restored(self, found: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        """Each sentence's hypotheses with ids for places."""
        lists = self.own.tolist()
        return [
            [replace(h, tokens=tuple(own[place] for place in h.tokens)) for h in hypotheses]
            for own, hypotheses in zip(lists, found, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Shortlist:
    """The lists' parts.

    Args:
        common: target tokens on every list [F] int64.
        ends: [source vocabulary + 1] int64; the likeliest tokens of source token i are `likely`
            from `ends[i]` to `ends[i + 1]`.
        likely: [n] int64, the likeliest first.
        size: of the target vocabulary.
        copies: whether source tokens are target tokens too, so that each may be copied.
        fingerprint: of the tokenizers.
    """

    common: Integers
    ends: Integers
    likely: Integers
    size: int
    copies: bool
    fingerprint: str

    @classmethod
    def of(
        cls, lexicon: Lexicon, tokenizers: TokenizerPair, *, per_token: int, frequent: int
    ) -> Self:
        """Take the likeliest tokens of a lexicon.

        Args:
            lexicon: learned from a corpus.
            tokenizers: that its ids are of.
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

    def lists(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        specials: Specials,
        device: torch.device,
    ) -> Lists:
        """The lists of a batch.

        Args:
            sources: ids of each sentence.
            prefixes: ids that its translation begins with.
            specials: ids that every search needs.
            device: where the lists go.
        """
        first = sorted(specials.ids)
        listed = self._own(sources)
        for row, prefix in zip(listed, prefixes, strict=True):
            row[list(prefix)] = True
        listed[:, first] = False
        sizes = len(first) + listed.sum(1)
        rows, tokens = listed.nonzero()
        listed[:, first] = True
        union = np.flatnonzero(listed.any(0))
        own = np.full((len(sources), int(sizes.max())), first[0])
        own[:, : len(first)] = first
        own[rows, len(first) + ranks(rows)] = tokens
        barrier = np.where(np.arange(own.shape[1]) < sizes[:, None], 0, -np.inf)
        arrays = (union, own, np.searchsorted(union, own), barrier.astype(np.float32))
        return Lists(*(torch.from_numpy(array).to(device) for array in arrays))

    def coverage(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> tuple[float, float]:
        """How far the lists of sentences reach.

        Returns:
            The share of all target tokens that are on their sentence's list, and how many tokens
            the mean list holds.
        """
        held = sizes = 0
        for first in range(0, len(sources), _SHOWN):
            own = self._own(sources[first : first + _SHOWN])
            sizes += int(own.sum())
            held += sum(
                int(row[list(target)].sum())
                for row, target in zip(own, targets[first : first + _SHOWN], strict=True)
            )
        return held / max(1, sum(map(len, targets))), sizes / max(1, len(sources))

    def _own(self, sources: Sequence[Sequence[int]]) -> npt.NDArray[np.bool_]:
        """Which tokens are on each sentence's list [B, V]."""
        own = np.zeros((len(sources), self.size), dtype=np.bool_)
        own[:, self.common] = True
        rows = np.repeat(np.arange(len(sources)), [len(source) for source in sources])
        tokens = np.array([token for source in sources for token in source], dtype=np.int64)
        counts = self.ends[tokens + 1] - self.ends[tokens]
        own[np.repeat(rows, counts), self.likely[ragged(self.ends[tokens], counts)]] = True
        if self.copies:
            own[rows, tokens] = True
        return own


def shortlist_path(model: Path) -> Path:
    """Where the shortlist of a directory of a model or of a run stands."""
    places = (model, model / "model")
    return next((p for p in places if (p / CONFIG_FILE).is_file()), model) / SHORTLIST_FILE


def wanted_shortlist(
    wanted: bool | str | Path, model: Path, tokenizers: TokenizerPair
) -> Shortlist | None:
    """The shortlist to translate with.

    Args:
        wanted: False for none, True for the one in the model's directory, or another file.
        model: a directory of a model or of a run.
        tokenizers: of the model.

    Raises:
        ModelError: as `Shortlist.read`.
    """
    if wanted is False:
        return None
    path = shortlist_path(model) if wanted is True else Path(wanted)
    return Shortlist.read(path, tokenizers)


def _digest(arrays: dict[str, Any]) -> str:
    """SHA-256 of what is in arrays."""
    total = hashlib.sha256()
    for name in _ARRAYS:
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        total.update(arrays[name].tobytes())
    return total.hexdigest()
