"""The course of the studio: chapters of pages, with suggestions and closing questions.

The texts are in `course.toml`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from heedful.config import Config, read_toml

COURSE_FILE = Path(__file__).with_name("course.toml")

Words = Annotated[str, Field(min_length=1)]


class Try(Config):
    """A suggestion for a page: an instruction, and the settings of the page for it."""

    text: Words
    query: str = Field("", description="settings of the page, as in its address")


class CourseQuestion(Config):
    """A question with one right answer, which a chart of the page shows."""

    text: Words
    options: Annotated[tuple[Words, ...], Field(min_length=2)]
    right: Annotated[int, Field(ge=0, description="index of the right option")]
    reason: Words
    query: str = Field("", description="settings of the page that shows the answer")

    @model_validator(mode="after")
    def _right_is_an_option(self) -> Self:
        if self.right >= len(self.options):
            raise ValueError(f"there is no option {self.right}")
        return self


class Lesson(Config):
    """A page in the course."""

    page: Words
    tries: tuple[Try, ...] = ()
    questions: tuple[CourseQuestion, ...] = ()


class Chapter(Config):
    """A chapter: related pages."""

    title: Words
    summary: Words
    pages: tuple[Words, ...]


class Course(Config):
    """The chapters in order, and the lessons of their pages."""

    chapters: tuple[Chapter, ...]
    lessons: tuple[Lesson, ...]


@functools.cache
def read_course() -> Course:
    """Read the course from the package."""
    return Course.parse(read_toml(COURSE_FILE), where=str(COURSE_FILE))
