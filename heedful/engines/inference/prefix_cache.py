"""Keys and values of the beginnings of prompts, shared between requests (prefix caching).

Requests often begin alike: with a system prompt, with examples, with the conversation so far. The
keys and values of a token depend on the tokens before it alone, so they are computed once and kept
in blocks, each found by its tokens and the block before it, as in vLLM (Kwon 2023).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor

from heedful.models.causal_lm import CachedLM, CausalLM, CausalLMState
from heedful.models.stack import StackState
from heedful.nn.attention.beam_cache import BeamCache, Lineage
from heedful.nn.attention.masks import Mask

BLOCK_TOKENS = 16
"""Tokens of a block, vLLM's default. Blocks are found whole: a shorter end is computed again."""

_FAR_QUERY = 1 << 20
"""A query position beyond the fixed prefix of any prefix language model."""


class PromptBlock(NamedTuple):
    """Keys and values of some tokens of a prompt.

    Args:
        number: number of the block, by which the blocks after it are found.
        layers: keys [K, 16, E] and values [K, 16, Ev] of each layer.
    """

    number: int
    layers: tuple[tuple[Tensor, Tensor], ...]

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values."""
        return sum(each.nbytes for layer in self.layers for each in layer)


Observe = Callable[[int, int], None]
"""Receiver of the number of tokens of a prompt, and of those that were at hand."""


class PrefixCache:
    """Blocks of the prompts that a model read last, for several threads.

    A model's weights must not change while blocks are kept; another model empties the cache.

    Args:
        most_bytes: maximum size of all blocks; the least recently used ones are dropped.
        observe: receiver of the counts of each prompt.
    """

    def __init__(self, most_bytes: int, observe: Observe = lambda asked, found: None) -> None:
        self.most_bytes = most_bytes
        self.observe = observe
        self._bytes = 0
        # The key is the number of the block before, and the tokens: equal hashes cannot mix texts.
        self._blocks: OrderedDict[tuple[int, tuple[int, ...]], PromptBlock] = OrderedDict()
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._model: Callable[[], CausalLM | None] = lambda: None

    @property
    def bytes(self) -> int:
        """Bytes of all blocks."""
        return self._bytes

    def reading(self, model: CachedLM) -> CachedLM:
        """Return a model that reads prompts with these blocks; the same model if it cannot."""
        # A ring forgets the beginning of a text, and a static cache has its own memory.
        if model.make_cache is not None or not _looks_back(model.model):
            return model
        with self._lock:
            if self._model() is not model.model:
                self._blocks.clear()
                self._bytes, self._model = 0, ref(model.model)
        return PrefixReader(model.model, None, None, self)

    def find(self, tokens: Sequence[int]) -> list[PromptBlock]:
        """Return the blocks of the longest known beginning of a prompt."""
        with self._lock:
            keys: list[tuple[int, tuple[int, ...]]] = []
            found: list[PromptBlock] = []
            for piece in _pieces(tokens):
                key = (found[-1].number if found else 0, piece)
                if key not in self._blocks:
                    break
                keys.append(key)
                found.append(self._blocks[key])
            self._touch(keys)
        self.observe(len(tokens), len(found) * BLOCK_TOKENS)
        return found

    def add(self, tokens: Sequence[int], make: Callable[[int], PromptBlock]) -> None:
        """Keep the blocks of a prompt that are not known yet.

        Args:
            tokens: ids of the prompt.
            make: function of a block's index that copies its keys and values.
        """
        with self._lock:
            keys: list[tuple[int, tuple[int, ...]]] = []
            parent = 0
            for index, piece in enumerate(_pieces(tokens)):
                key = (parent, piece)
                if key not in self._blocks:
                    block = make(index)._replace(number=next(self._numbers))
                    self._blocks[key] = block
                    self._bytes += block.bytes
                keys.append(key)
                parent = self._blocks[key].number
            self._touch(keys)
            while self._bytes > self.most_bytes:
                _, oldest = self._blocks.popitem(last=False)
                self._bytes -= oldest.bytes

    def _touch(self, keys: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        # From the last block to the first: a block is dropped before those that lead to it.
        for key in reversed(keys):
            self._blocks.move_to_end(key)


def _pieces(tokens: Sequence[int]) -> Iterable[tuple[int, ...]]:
    for first in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        yield tuple(tokens[first : first + BLOCK_TOKENS])


@dataclass(frozen=True)
class PrefixReader(CachedLM):
    """A language model that takes the known beginnings of prompts from a cache.

    Args:
        prefixes: cache of the model.

    Attributes:
        cached: number of tokens of each prompt that were at hand, after `start`.
    """

    prefixes: PrefixCache
    cached: list[int] = field(default_factory=list)

    def start(self, source: Tensor, source_positions: Tensor) -> CausalLMState:
        """Read prompts [B, L] with positions [B, L]; see `CausalLM.start`."""
        rows = zip(source.tolist(), source_positions.tolist(), strict=True)
        # The tokens of a row stand in order, with padding on either side.
        prompts = [
            [token for token, place in zip(ids, places, strict=True) if place >= 0]
            for ids, places in rows
        ]
        empty = self.model.start(source[:, :0], source_positions[:, :0])
        if not _is_cache_of_keys(empty.decoder):
            self.cached[:] = [0] * len(prompts)
            return super().start(source, source_positions)
        found = [self.prefixes.find(prompt) for prompt in prompts]
        self.cached[:] = [len(blocks) * BLOCK_TOKENS for blocks in found]
        state = self._begun(empty, found)
        lengths = torch.tensor([[len(prompt)] for prompt in prompts], device=source.device)
        rest = [p[known:] for p, known in zip(prompts, self.cached, strict=True)]
        width = max(map(len, rest))
        ids = source.new_zeros((len(rest), width))
        places = torch.full_like(ids, -1)
        for row, (tokens, known) in enumerate(zip(rest, self.cached, strict=True)):
            ids[row, : len(tokens)] = source.new_tensor(tokens)
            places[row, : len(tokens)] = torch.arange(known, known + len(tokens))
        if width:
            _, state = self.model.extend(state, ids, places)
        self._keep(prompts, state.decoder)
        return CausalLMState(state.decoder, lengths)

    def _begun(self, empty: CausalLMState, found: Sequence[Sequence[PromptBlock]]) -> CausalLMState:
        """Return the state after the tokens of the blocks that were found for each prompt."""
        width = max(self.cached)
        if not width:
            return empty
        device = empty.next_positions.device
        places = torch.arange(width, device=device).repeat(len(found), 1)
        # Padding comes first, so that the tokens of a prompt stand without a gap.
        places -= width - torch.tensor(self.cached, device=device)[:, None]
        places.clamp_(min=-1)
        first = next(blocks[0] for blocks in found if blocks)
        caches = iter(
            [
                BeamCache.holding(*(_side_by_side(found, layer, side, width) for side in (0, 1)))
                for layer in range(len(first.layers))
            ]
        )
        blocks = tuple(
            tuple(None if state is None else next(caches) for state in states)
            for states in empty.decoder.blocks
        )
        decoder = replace(empty.decoder, blocks=blocks, lineage=Lineage(places))
        return replace(empty, decoder=decoder)

    def _keep(self, prompts: Sequence[Sequence[int]], state: StackState) -> None:
        assert state.lineage is not None
        caches = [(cache.keys, cache.values) for cache in _caches(state)] if any(prompts) else []
        starts = (state.lineage.positions >= 0).int().argmax(1).tolist() if caches else []
        for row, (prompt, start) in enumerate(zip(prompts, starts, strict=False)):

            def copied(index: int, row: int = row, start: int = start) -> PromptBlock:
                first = start + index * BLOCK_TOKENS
                part = slice(first, first + BLOCK_TOKENS)
                # Copies: a view would keep the memory of the whole batch.
                layers = [(k[row, :, part].clone(), v[row, :, part].clone()) for k, v in caches]
                return PromptBlock(0, tuple(layers))

            self.prefixes.add(prompt, copied)


def _side_by_side(
    found: Sequence[Sequence[PromptBlock]], layer: int, side: int, width: int
) -> Tensor:
    """Return the keys (side 0) or values (side 1) of a layer, [B, K, width, E], padded in front."""
    like = next(blocks[0] for blocks in found if blocks).layers[layer][side]
    together = like.new_zeros((len(found), like.shape[0], width, like.shape[2]))
    for row, blocks in enumerate(found):
        place = width - len(blocks) * BLOCK_TOKENS
        for block in blocks:
            together[row, :, place : place + BLOCK_TOKENS] = block.layers[layer][side]
            place += BLOCK_TOKENS
    return together


def _caches(state: StackState) -> list[BeamCache]:
    return [each for states in state.blocks for each in states if isinstance(each, BeamCache)]


def _is_cache_of_keys(state: StackState) -> bool:
    """Return True if the state of every layer is keys and values, and no recurrent state."""
    every = [each for states in state.blocks for each in states if each is not None]
    return state.lineage is not None and len(every) == len(_caches(state))


def _looks_back(model: CausalLM) -> bool:
    """Return True if no token sees a later one, as in the prefix of a prefix language model."""
    masks: list[Mask] = [attention.mask for attention in model.spec.decoder.attentions()]
    return all(
        last <= query
        for mask in masks
        for query in (0, _FAR_QUERY)
        for _, last in mask.bounds(query, query)
    )
