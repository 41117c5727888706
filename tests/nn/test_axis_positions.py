"""Positions along the axes of fields."""

from __future__ import annotations

import pytest
import torch

from heedful.errors import ConfigError, ModelError
from heedful.nn.positions import AxisPositions
from heedful.nn.spec import PositionSpec

AXES = ((1,), (2, 3), (4,))


def test_a_position_is_the_sum_of_its_coordinates() -> None:
    positions = AxisPositions(8, AXES)
    rows = positions.weight
    found = positions(torch.arange(11)[None])[0]
    # Rows of the parameter: begin, 2 rows, 3 columns, 4 places.
    coordinates = [[0], *([1 + row, 3 + column] for row in range(2) for column in range(3))]
    coordinates += [[6 + place] for place in range(4)]
    expected = torch.stack([rows[each].sum(0) for each in coordinates])
    torch.testing.assert_close(found, expected)


def test_every_row_learns() -> None:
    positions = AxisPositions(8, AXES)
    positions(torch.arange(11)[None]).square().sum().backward()
    assert positions.weight.grad is not None
    assert positions.weight.grad.abs().sum(1).gt(0).all()


def test_padding_is_zero_and_the_end_is_an_error() -> None:
    positions = AxisPositions(8, AXES)
    assert positions(torch.tensor([[-1]])).eq(0).all()
    with pytest.raises(ModelError, match="Position 11 lies past"):
        positions(torch.tensor([[11]]))


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "axes"},
        {"kind": "learned", "max_length": 4, "axes": [[4]]},
        {"kind": "axes", "axes": [[4]], "max_length": 5},
    ],
)
def test_axes_and_kind_belong_together(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="axes"):
        PositionSpec.parse(values)
