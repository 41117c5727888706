"""The course: its pages are there, its answers are right, and its addresses work."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import pytest
import torch

from heedful.apps.studio.course import read_course
from heedful.apps.studio.pages import PAGES
from heedful.nn.mask_text import parse_mask
from heedful.nn.positions import Positions

COURSE = read_course()


def test_every_page_has_its_place() -> None:
    assert [name for each in COURSE.chapters for name in each.pages] == [p.name for p in PAGES]
    assert [lesson.page for lesson in COURSE.lessons] == [page.name for page in PAGES]


def answer_to(part: str) -> str:
    """The right answer of the question that has these words."""
    found = [q for each in COURSE.lessons for q in each.questions if part in q.text]
    assert len(found) == 1
    return found[0].options[found[0].right]


def test_answers_are_what_the_library_computes() -> None:
    product = torch.tensor([1.0, 2]) @ torch.tensor([0.0, 4])
    assert answer_to("What is their product?") == str(int(product))
    causal = Positions(torch.arange(16)[None], torch.arange(16)[None]).visible(parse_mask("causal"))
    assert answer_to("how many pairs are visible?") == str(int(causal.sum()))
    assert int(causal[0, 0, 0].sum()) == 1
    assert answer_to("how many keys does the first word see?").startswith("one")


def test_questions_are_answered_with_a_reason(visit: Any) -> None:
    page = visit.open("scale")
    first = next(lesson for lesson in COURSE.lessons if lesson.page == "scale").questions[0]
    wrong = next(i for i in range(len(first.options)) if i != first.right)
    asked = page.locator(".question").first
    asked.get_by_label(first.options[wrong]).check()
    assert asked.locator(".answer").inner_text().startswith("Not quite.")
    assert asked.locator(".wrong").inner_text().strip() == first.options[wrong]
    assert asked.locator(".right").inner_text().strip() == first.options[first.right]
    asked.get_by_label(first.options[first.right]).check()
    text = asked.locator(".answer").inner_text()
    assert text.startswith("Yes.")
    assert first.reason in text
    asked.get_by_role("link", name="See it in the picture").click()
    visit.until("location.search.includes('width=1024')")
    visit.idle()
    assert float(visit.fact("without-largest")) > 0.9


QUERIES = sorted(
    {
        (lesson.page, each.query)
        for lesson in COURSE.lessons
        for each in (*lesson.tries, *lesson.questions)
        if each.query and lesson.page != "image"
    }
)


@pytest.mark.parametrize(("page", "query"), QUERIES)
def test_addresses_of_the_course_show_a_picture(
    request: pytest.FixtureRequest, page: str, query: str
) -> None:
    """Each sets what it says it sets, and nothing is refused."""
    # The small model reads short texts alone: its own stands before that of the course.
    window: Any = request.getfixturevalue("sight" if "model=" in query else "visit")
    shown = window.open(f"{page}?text=the+cat+sat&{query}")
    assert shown.locator(".problem").count() == 0
    assert shown.locator("main figure, main .drawing, main table").count() > 0
    for name, value in parse_qsl(query):
        assert name.isidentifier()
        assert value
