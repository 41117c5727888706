"""All pages, in the order of the navigation. A new one is a file in `pages`, a script, a line."""

from __future__ import annotations

from heedful.studio.page import Page
from heedful.studio.pages import (
    attention,
    block,
    builder,
    decoding,
    image,
    masks,
    paths,
    positions,
    runs,
    scale,
    schedule,
    steps,
    translate,
)

PAGES: tuple[Page, ...] = (
    translate.PAGE,
    attention.PAGE,
    steps.PAGE,
    scale.PAGE,
    masks.PAGE,
    positions.PAGE,
    schedule.PAGE,
    paths.PAGE,
    block.PAGE,
    decoding.PAGE,
    image.PAGE,
    builder.PAGE,
    runs.PAGE,
)
