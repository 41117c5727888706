"""Attention as a file to keep: a call that any page which shows attention may offer."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from heedful.studio.page import Call
from heedful.studio.readings import TextRequest, read_text

if TYPE_CHECKING:
    from heedful.inspect.maps import Part
    from heedful.studio.workspace import Workspace

Numbers = Annotated[tuple[Annotated[int, Field(ge=0, le=10_000)], ...], Field(max_length=1000)]

_TYPES = {"svg": "image/svg+xml", "png": "image/png", "html": "text/html"}


class PictureRequest(TextRequest):
    """Which attention of a text to draw, and as what."""

    part: Literal["", "encoder", "decoder", "cross"] = ""
    layers: Numbers | None = Field(None, description="from 0; all if unset")
    heads: Numbers | None = Field(None, description="from 0; all if unset")
    view: Literal["matrix", "heads", "lines"] = "matrix"
    each: Annotated[bool, Field(description="lines of each head in a colour of its own")] = False
    kind: Literal["svg", "png", "html"] = "svg"


def picture(asked: PictureRequest, workspace: Workspace) -> dict[str, Any]:
    """A file: its name, its type for browsers, and its content in base64."""
    from heedful.inspect import charts
    from heedful.inspect.maps import attention

    subject, reading = read_text(asked, workspace)
    part: Part | None = asked.part or None
    found = attention(subject, reading, part, layers=asked.layers, heads=asked.heads)
    if asked.view == "lines":
        chart = charts.lines(found, each=asked.each)
    else:
        chart = (charts.grid if asked.view == "heads" else charts.matrix)(found)
    content = charts.draw(chart, asked.kind)
    return {
        "name": f"attention.{asked.kind}",
        "type": _TYPES[asked.kind],
        "content": base64.b64encode(content).decode("ascii"),
    }


PICTURE = Call(PictureRequest, picture)
