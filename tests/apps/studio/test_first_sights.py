"""What pages of models at hand show when they open, before anything is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from heedful.pretrained.catalogue import models_at_hand

TIRED = "The+animal+did+not+cross+the+street+because+it+was+too+tired."


@pytest.fixture(scope="module")
def at(serve: Callable[..., str]) -> str:
    """The address of a studio with the models at hand."""
    return serve([each.path for each in models_at_hand().values()])


@pytest.fixture
def sight(visit_at: Callable[..., Any], at: str) -> Any:
    """A window on it."""
    return visit_at(at)


def test_the_tour_follows_the_pronoun(sight: Any) -> None:
    page = sight.open("tour?stop=6")
    assert page.locator("[data-part='weights'] [aria-pressed='true']").text_content() == "·it·it"
    assert "of its attention to “cat”" in page.locator(".told p").inner_text()
    assert [page.locator(f".side select >> nth={i}").input_value() for i in (-2, -1)] == ["2", "1"]


def test_fourteen_pieces_stand_side_by_side(sight: Any) -> None:
    page = sight.open(f"tour?stop=6&text={TIRED}")
    page.locator("[data-part='weights'] .way-row").first.wait_for()
    wide, room = page.evaluate(
        "() => ['scrollWidth', 'clientWidth']"
        ".map((each) => document.querySelector('.tour .drawing')[each])"
    )
    assert wide <= room
    tops = page.evaluate(
        "() => [...document.querySelectorAll('.map > ol > li')]"
        ".map((each) => each.getBoundingClientRect().bottom)"
    )
    assert max(tops) - min(tops) < 1  # the map is one line
