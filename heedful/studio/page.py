"""A page of the studio: a place in the navigation, and the calls that its script makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heedful.config import Config

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.studio.workspace import Workspace

DIGITS = 6
"""Significant digits: a float32 has hardly more, and pictures need fewer."""


@dataclass(frozen=True)
class Call:
    """A call that a page's script may make, as `POST /api/PAGE/CALL`.

    Args:
        request: the settings of the body; any other key is refused.
        answer: a function that returns JSON data. It runs in a thread, and may raise a `UserError`.
        limit: most bytes of the body, where it may hold more than texts and settings.
    """

    request: type[Config]
    answer: Callable[[Any, Workspace], Mapping[str, Any]]
    limit: int | None = None


@dataclass(frozen=True)
class Page:
    """A page of the studio; its script is `static/pages/NAME.js`.

    Args:
        name: in the address.
        title: in the navigation and above the page.
        summary: the purpose of the page, in a line.
        about: an explanation in two or three sentences.
        calls: by name.
    """

    name: str
    title: str
    summary: str
    about: str
    calls: Mapping[str, Call]

    def plain(self) -> dict[str, str]:
        """Return the words that the shell shows of it, as JSON data."""
        return {name: getattr(self, name) for name in ("name", "title", "summary", "about")}


class NoSettings(Config):
    """The request of a call without settings."""


def rounded(tensor: Tensor) -> Any:
    """Nested lists of finite numbers, rounded to `DIGITS` significant digits."""
    import numpy as np

    values = tensor.detach().double().cpu().numpy()
    assert np.isfinite(values).all()
    size = np.floor(np.log10(np.where(values == 0, 1.0, np.abs(values))))
    # Powers beyond those of float64 belong to numbers that no picture tells from zero.
    unit = 10.0 ** np.clip(DIGITS - 1 - size, -300, 300)
    return (np.round(values * unit) / unit).tolist()
