"""The pages of the studio, a module each: the calls that its script may make, and their answers.

A new page is a module here, a script in `static/pages` and a name below.
"""

from __future__ import annotations

from importlib import import_module

from heedful.studio.page import Page

NAMES = (
    "translate",
    "attention",
    "steps",
    "scale",
    "masks",
    "positions",
    "schedule",
    "paths",
    "block",
    "decoding",
    "image",
    "builder",
    "runs",
)
"""In the order of the navigation."""

PAGES: tuple[Page, ...] = tuple(import_module(f"{__name__}.{name}_page").PAGE for name in NAMES)
