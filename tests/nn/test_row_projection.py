"""Rows of tokens at one position: numbers through a projection; padding changes nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.nn.embeddings import RowProjection, in_rows, row_positions


def test_ids_are_numbers_from_minus_one_to_one() -> None:
    torch.manual_seed(1)
    projection = RowProjection(9, 4, 2)
    columns, bias = projection.weight.T, projection.bias
    found = projection(torch.tensor([[[0, 8], [4, 4], [6, 2]]]))[0]
    expected = [columns[1] - columns[0], torch.zeros(4), (columns[0] - columns[1]) / 2]
    torch.testing.assert_close(found, torch.stack(expected) + bias)


def test_padding_adds_nothing_and_learns_nothing() -> None:
    torch.manual_seed(1)
    projection = RowProjection(9, 4, 3)
    found = projection(torch.tensor([[[2, 5, -1], [-1, -1, -1]]]))
    assert torch.equal(found[0, 1], projection.bias)
    found.sum().backward()
    assert projection.weight.grad is not None
    assert projection.weight.grad.any(0).tolist() == [True, True, False]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 4))
def test_rows_are_cut_from_the_beginning_of_each_sequence(sizes: list[int], row_size: int) -> None:
    longest = max(sizes)
    ids = torch.zeros(len(sizes), longest, dtype=torch.int64)
    positions = torch.full_like(ids, -1)
    for row, size in enumerate(sizes):
        ids[row, :size] = torch.arange(1, size + 1)
        positions[row, :size] = torch.arange(size)
    rows, places = in_rows(ids, positions, row_size)
    assert torch.equal(places, row_positions(positions, row_size))
    for row, size in enumerate(sizes):
        real = rows[row][places[row] >= 0]
        assert real[real >= 0].tolist() == list(range(1, size + 1))
        assert len(real) == -(-size // row_size)
        assert places[row][: len(real)].tolist() == list(range(len(real)))
        assert (rows[row][places[row] < 0] == -1).all()


def test_a_new_row_has_about_the_variance_of_a_token() -> None:
    torch.manual_seed(1)
    projection = RowProjection(50, 64, 40)
    # Numbers that are spread evenly from −1 to 1 have a variance of 1 / 3.
    found = (projection(torch.randint(50, (4, 100, 40))) - projection.bias).std().item()
    assert found == pytest.approx((3 * 64) ** -0.5, rel=0.15)
