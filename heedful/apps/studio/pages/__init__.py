"""The pages of the studio: the calls that their scripts may make, and their answers.

A new page needs a `Page` in a module here, a script in `static/pages` and a name below.
"""

from __future__ import annotations

from heedful.apps.studio.page import Page
from heedful.apps.studio.pages import (
    attention_page,
    block_page,
    builder_page,
    decoding_page,
    everywhere_page,
    image_page,
    masks_page,
    paths_page,
    positions_page,
    results_page,
    runs_page,
    schedule_page,
    steps_page,
    tour_page,
    translate_page,
    without_page,
)

PAGES: tuple[Page, ...] = (
    tour_page.PAGE,
    paths_page.PAGE,
    steps_page.STEPS,
    steps_page.SCALE,
    attention_page.PAGE,
    positions_page.PAGE,
    block_page.PAGE,
    masks_page.PAGE,
    decoding_page.PAGE,
    builder_page.PAGE,
    without_page.PAGE,
    schedule_page.PAGE,
    results_page.PAGE,
    everywhere_page.PAGE,
    image_page.PAGE,
    translate_page.PAGE,
    runs_page.PAGE,
)
"""All pages, in the order of the course."""
