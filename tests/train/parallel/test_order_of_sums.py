"""Gradients are summed in one order, whoever computes them: to the last bit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from heedful.train.splitting import PartialSums

if TYPE_CHECKING:  # processes run this file by its path
    from ...process_group import Processes

Floats = npt.NDArray[np.float32]


def gradients(count: int, seed: int) -> list[Floats]:
    """Vectors whose sum depends on the order; the second element of some is not there."""
    draw = np.random.default_rng(seed)
    return [draw.standard_normal(50).astype(np.float32) for _ in range(count)]


def one_after_the_other(parts: list[Floats]) -> Floats:
    result = parts[0]
    for each in parts[1:]:
        result = result + each
    return result


def of_processes(parts: list[Floats], count: int) -> Floats:
    """The sum where each process adds up its own parts, and then pairs of processes theirs."""
    sums = [one_after_the_other(parts[process::count]) for process in range(count)]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [sums[place] + sums[place + half] for place in range(half)]
    return sums[0]


def of_one(parts: list[Floats], most: int) -> Floats:
    parameter = nn.Parameter(torch.zeros(50))
    sums = PartialSums([parameter], most)
    for _ in range(2):  # the second update starts from nothing
        parameter.grad = None
        sums.begin(len(parts))
        for number, part in enumerate(parts):
            with sums.adding(number == len(parts) - 1):
                (parameter * torch.from_numpy(part)).sum().backward()
    assert parameter.grad is not None
    return parameter.grad.numpy()


@given(parts=st.integers(1, 24), seed=st.integers(0, 999))
def test_one_process_adds_as_several_do(parts: int, seed: int) -> None:
    values = gradients(parts, seed)
    assert (of_one(values, 1) == one_after_the_other(values)).all()
    found = of_one(values, 4)
    processes = math.gcd(parts, 4)
    assert (found == of_processes(values, processes)).all()
    if parts == 4:
        assert (found == of_processes(values, 2)).all()
        assert (found != one_after_the_other(values)).any()


def test_an_attempt_that_failed_leaves_nothing() -> None:
    values = gradients(8, 3)
    parameter = nn.Parameter(torch.zeros(50))
    sums = PartialSums([parameter], 4)
    sums.begin(8)
    with sums.adding(False):
        (parameter * torch.from_numpy(values[0])).sum().backward()
    with pytest.raises(MemoryError), sums.adding(False):
        raise MemoryError
    parameter.grad = None
    sums.begin(8)
    for number, part in enumerate(values):
        with sums.adding(number == 7):
            (parameter * torch.from_numpy(part)).sum().backward()
    assert parameter.grad is not None
    assert (parameter.grad.numpy() == of_processes(values, 4)).all()


def test_what_some_parts_do_not_use() -> None:
    """Experts that no token chose have no gradient, in some parts or in all."""
    used, unused, seldom = (nn.Parameter(torch.ones(2)) for _ in range(3))
    sums = PartialSums([used, unused, seldom], 4)
    sums.begin(8)
    for number in range(8):
        with sums.adding(number == 7):
            (used * number + (seldom if number == 5 else 0)).sum().backward()
    assert used.grad is not None
    assert seldom.grad is not None
    assert used.grad.tolist() == [28, 28]
    assert unused.grad is None
    assert seldom.grad.tolist() == [1, 1]


def _mean(group: torch.distributed.ProcessGroup, values: list[Floats]) -> Floats:
    from heedful.train.parallel.copies import mean_in_pairs

    mine = torch.from_numpy(values[group.rank()])
    return mean_in_pairs(mine, group).numpy()


@pytest.mark.parametrize("length", [50, 51, 3])
def test_processes_add_in_pairs(processes: Processes, length: int) -> None:
    values = [each.repeat(2)[:length] for each in gradients(4, 5)]
    wanted = of_processes(values, 4) / np.float32(4)
    for found in processes.run(_mean, 4, values):
        assert (found == wanted).all()
    if length > 3:
        assert (wanted != one_after_the_other(values) / np.float32(4)).any()
