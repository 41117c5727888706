"""Texts as an encoder reads them: framed, of like length together, padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import ConfigError, DataError
from heedful.models.encoder import EncoderModel
from heedful.models.model_spec import EncoderSpec
from heedful.nn.positions import NOTHING_HERE
from heedful.pipelines.batching import plan_batches, split_on_oom
from heedful.text.text_tokenizer import TextTokenizer, framed

BATCH_TOKENS = 4096
"""Positions that are encoded together, padding counted, if nothing else is asked for."""


@dataclass(frozen=True)
class EncoderInput:
    """One text, or two that belong together, with the special tokens around them.

    Args:
        ids: all of them.
        first: index of the first text's first token.
        second: index of the second text's first token; the number of ids where there is none.
    """

    ids: tuple[int, ...]
    first: int
    second: int


def frame(
    tokenizer: TextTokenizer, ids: Sequence[int], other: Sequence[int] | None = None
) -> EncoderInput:
    """Put the special tokens around a text, or around two.

    Args:
        tokenizer: which knows them.
        ids: of the text.
        other: of the second text.

    Raises:
        ModelError: when there are two texts and the model takes no pairs.
    """
    whole = framed(tokenizer, ids, other)
    second = len(whole) if other is None else len(whole) - len(tokenizer.last) - len(other)
    return EncoderInput(tuple(whole), len(tokenizer.first), second)


def longest_input(spec: EncoderSpec) -> int | None:
    """Most tokens that a model can read at once, special ones included; None for any number."""
    bounds = (spec.max_length, spec.embedding.positions.max_length)
    return min((bound for bound in bounds if bound is not None), default=None)


def check_length(spec: EncoderSpec, item: EncoderInput, where: str) -> None:
    """Refuse what the model cannot read whole.

    Args:
        spec: of the model.
        item: what it is to read.
        where: what to call it.

    Raises:
        DataError: naming it, its length and the longest that can be read.
    """
    longest = longest_input(spec)
    if longest is not None and len(item.ids) > longest:
        raise DataError(
            f"{len(item.ids)} tokens, special ones included, are more than the {longest} "
            "the model can read",
            where=where,
            remedy="Give shorter pieces of the text",
        )


@dataclass(frozen=True)
class Encoded:
    """A batch that went through the encoder.

    Args:
        numbers: which of the inputs its rows are.
        ids: [B, L] int64.
        states: [B, L, D]; the tokens of a row stand at its beginning.
        positions: [B, L] int64, −1 for padding.
    """

    numbers: list[int]
    ids: Tensor
    states: Tensor
    positions: Tensor


def encode(
    model: EncoderModel,
    items: Sequence[EncoderInput],
    *,
    padding: int,
    batch_size: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Iterator[Encoded]:
    """Run the encoder over inputs, those of like length together.

    Args:
        model: the encoder.
        items: in any order.
        padding: id that fills rows up; it is never looked at.
        batch_size: inputs in a batch, instead of `batch_tokens`.
        batch_tokens: positions in a batch, padding counted.

    Raises:
        ConfigError: when a batch is to hold nothing.
    """
    for name, asked in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if asked is not None and asked < 1:
            raise ConfigError("A batch holds at least 1", where=f"{name} = {asked}")
    device = model.embedding.weight.device
    plan = plan_batches(
        [len(item.ids) for item in items], width=1, batch_tokens=batch_tokens, batch_size=batch_size
    )

    def run(numbers: list[int]) -> Encoded:
        rows = [items[number] for number in numbers]
        size = max(len(row.ids) for row in rows)
        ids = torch.tensor([_filled(row.ids, size, padding) for row in rows], device=device)
        places = [_filled(range(len(row.ids)), size, NOTHING_HERE) for row in rows]
        positions = torch.tensor(places, device=device)
        second = torch.tensor([row.second for row in rows], device=device)
        segments = segments_of(model.spec, positions, second)
        return Encoded(numbers, ids, model(ids, positions, segments), positions)

    for _, encoded in split_on_oom(plan, run):
        yield encoded


def segments_of(spec: EncoderSpec, positions: Tensor, second: Tensor) -> Tensor | None:
    """Which text every token is of; None for a model that is not told.

    Args:
        spec: of the model.
        positions: [B, L] int64.
        second: [B] int64, where each row's second text begins.
    """
    if (spec.embedding.num_segments or 1) < 2:
        return None
    return (positions >= second[:, None]).long()


def _filled(row: Sequence[int], size: int, filling: int) -> list[int]:
    return [*row, *[filling] * (size - len(row))]
