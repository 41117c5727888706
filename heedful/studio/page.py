"""What a page is: a place in the navigation, and the calls that its script makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heedful.config import Config

if TYPE_CHECKING:
    from heedful.studio.workspace import Workspace


@dataclass(frozen=True)
class Call:
    """A question that a page's script may ask, as `POST /api/PAGE/CALL`.

    Args:
        asks: the settings that the body must hold; anything else is refused.
        answer: what they come to, as JSON data. It runs in a thread, and may raise a `UserError`.
        limit: most bytes of the body, where it may hold more than texts and settings.
    """

    asks: type[Config]
    answer: Callable[[Any, Workspace], Mapping[str, Any]]
    limit: int | None = None


@dataclass(frozen=True)
class Page:
    """A page of the studio; its script is `static/pages/NAME.js`.

    Args:
        name: in the address.
        title: in the navigation and above the page.
        summary: what it is for, in a line.
        about: what one sees there, in two or three sentences.
        calls: by name.
    """

    name: str
    title: str
    summary: str
    about: str
    calls: Mapping[str, Call]

    def plain(self) -> dict[str, str]:
        """What the shell shows of it, as JSON data."""
        return {
            "name": self.name,
            "title": self.title,
            "summary": self.summary,
            "about": self.about,
        }
