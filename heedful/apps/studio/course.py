"""The course of the studio: its chapters, what to try on a page, and the questions at its end.

The words are in `course.toml`.
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
    """A suggestion for a page: what to do, and settings of the page that do it."""

    text: Words
    query: str = Field("", description="settings as in the page's address")


class CourseQuestion(Config):
    """A question with one right answer, which a picture of the page shows."""

    text: Words
    options: Annotated[tuple[Words, ...], Field(min_length=2)]
    right: Annotated[int, Field(ge=0, description="index of the right option")]
    reason: Words
    query: str = Field("", description="the address of the picture, as of `Try`")

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
    """Pages that belong together."""

    title: Words
    summary: Words
    pages: tuple[Words, ...]


class Course(Config):
    """All chapters, in order, and the lessons of their pages."""

    chapters: tuple[Chapter, ...]
    lessons: tuple[Lesson, ...]


@functools.cache
def read_course() -> Course:
    """Read the course that comes with the package."""
    return Course.parse(read_toml(COURSE_FILE), where=str(COURSE_FILE))
