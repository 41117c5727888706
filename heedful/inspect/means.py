"""What the parts of a model give on average, to stand in for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.errors import DataError
from heedful.inspect.captures import run
from heedful.inspect.model_parts import ModelPart, all_parts, input_of
from heedful.inspect.reading import BATCH_TOKENS, Reading, batches, tensors
from heedful.inspect.subject import Subject, looking
from heedful.nn.capture import Capture


def mean_outputs(
    subject: Subject, readings: Sequence[Reading], *, batch_tokens: int = BATCH_TOKENS
) -> dict[str, Tensor]:
    """Means over all tokens of a corpus, of everything that `ablated` can replace by its mean.

    Args:
        subject: the model.
        readings: the corpus, from `read_all` or `see`.
        batch_tokens: positions that go through the model together; changes no result.

    Returns:
        For the address of each head [E], the mixed values before the output projection; of each
        sub-layer and each added position encoding [D]. In the type of the weights.

    Raises:
        DataError: when there is no text.
    """
    if not readings:
        raise DataError("There is no text to take means over")
    found = [part for part in all_parts(subject.model) if part.adds]
    totals = _Totals(found)
    for numbers in batches(readings, batch_tokens):
        inputs = tensors(subject, [readings[number] for number in numbers])
        totals.places = {stack: _positions(subject, inputs, stack) for stack in _stacks(found)}
        run(subject.model, inputs, totals)
        with looking(subject.model):
            for part in found:
                if part.kind == "positions":
                    stack = _stack(part)
                    encode = input_of(subject.model, stack).positions
                    assert isinstance(encode, torch.nn.Module)
                    totals.add(part.address, encode(totals.places[stack]), stack)
    return totals.means()


class _Totals(Capture):
    """Adds up what parts give as it comes, and keeps none of it.

    Args:
        found: parts that add something.
    """

    def __init__(self, found: Sequence[ModelPart]) -> None:
        self.parts: dict[str, list[ModelPart]] = {}
        for part in found:
            if part.kind != "positions":
                self.parts.setdefault(_captured(part), []).append(part)
        super().__init__(self.parts)
        self.places: dict[str, Tensor] = {}
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.dtypes = {part.address: part.like.dtype for part in found if part.like is not None}

    def keep(self, address: str, value: Tensor) -> None:
        for part in self.parts[address]:
            mine = value if part.head is None else value[:, part.head]
            self.add(part.address, mine, _stack(part))

    def add(self, address: str, value: Tensor, stack: str) -> None:
        """Count vectors [B, L, ·] of a stack's rows, padding left out."""
        real = value[self.places[stack] >= 0].double()
        self.sums[address] = self.sums.get(address, 0.0) + real.sum(0)
        self.counts[address] = self.counts.get(address, 0) + len(real)

    def means(self) -> dict[str, Tensor]:
        return {
            address: (total / self.counts[address]).to(self.dtypes[address])
            for address, total in self.sums.items()
        }


def _captured(part: ModelPart) -> str:
    """The address of the tensor that holds what a part gives."""
    if part.kind == "head":
        return f"{part.address.partition('.head.')[0]}.context"
    return f"{part.address}.output"


def _stack(part: ModelPart) -> str:
    return part.address.partition(".")[0]


def _stacks(found: Sequence[ModelPart]) -> set[str]:
    return set(map(_stack, found))


def _positions(subject: Subject, inputs: Sequence[Tensor], stack: str) -> Tensor:
    """[B, L] int64 of a stack's rows, −1 for padding."""
    if len(inputs) == 1:  # images
        count = subject.model.spec.num_states  # type: ignore[union-attr]
        return torch.arange(count, device=inputs[0].device).expand(len(inputs[0]), -1)
    # A translator's decoder comes after its encoder.
    return inputs[3 if len(inputs) > 3 and stack == "decoder" else 1]
