"""Tensors as JSON data, with as many digits as a picture needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

DIGITS = 6
"""Significant digits: a float32 has hardly more, and pictures need fewer."""


def plain(tensor: Tensor) -> Any:
    """Nested lists of finite numbers, rounded to `DIGITS` significant digits."""
    import numpy as np

    values = tensor.detach().double().cpu().numpy()
    assert np.isfinite(values).all()
    size = np.floor(np.log10(np.where(values == 0, 1.0, np.abs(values))))
    # Powers past those of float64 come from numbers that no picture tells from zero.
    unit = 10.0 ** np.clip(DIGITS - 1 - size, -300, 300)
    return (np.round(values * unit) / unit).tolist()
