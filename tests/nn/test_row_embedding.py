"""Rows of tokens at one position: a projection is a special case, and padding changes nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.nn.embeddings import RowEmbedding, in_rows, row_positions


def test_a_linear_projection_of_levels_is_a_special_case() -> None:
    torch.manual_seed(1)
    embedding, projection = RowEmbedding(16, 8, 5), torch.nn.Linear(5, 8, bias=False)
    with torch.no_grad():  # the vector of a level is the level times its place's column
        table = torch.arange(16)[None, :, None] * projection.weight.T[:, None]
        embedding.weight.copy_(table.flatten(0, 1))
    rows = torch.randint(16, (2, 3, 5))
    torch.testing.assert_close(embedding(rows), projection(rows.float()))


def test_padding_adds_nothing_and_learns_nothing() -> None:
    torch.manual_seed(1)
    embedding = RowEmbedding(7, 4, 3)
    rows = torch.tensor([[[2, 5, -1], [-1, -1, -1]]])
    found = embedding(rows)
    torch.testing.assert_close(found[0, 0], embedding.weight[2] + embedding.weight[7 + 5])
    assert not found[0, 1].any()
    found.sum().backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.any(1).nonzero().flatten().tolist() == [2, 12]


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


def test_a_new_row_has_the_variance_of_a_token() -> None:
    torch.manual_seed(1)
    embedding = RowEmbedding(50, 64, 40)
    found = embedding(torch.randint(50, (4, 100, 40))).std().item()
    assert found == pytest.approx(64**-0.5, rel=0.1)
