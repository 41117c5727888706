"""The call that makes a file of attention."""

from __future__ import annotations

import base64
import re

import pytest

from heedful import inspect
from heedful.apps import charts
from heedful.apps.studio.pages.attention_page import AttentionPictureRequest, picture
from heedful.apps.studio.workspace import Workspace
from heedful.errors import ConfigError

TEXT = "the cat sat"


def answer(workspace: Workspace, **asked: object) -> tuple[str, str, bytes]:
    request = AttentionPictureRequest.parse({"model": "learned", "text": TEXT, **asked})
    found = picture(request, workspace)
    return found["name"], found["type"], base64.b64decode(found["content"])


def test_a_picture_is_the_librarys_chart(workspace: Workspace, given) -> None:
    subject = inspect.load(given.learned)
    found = inspect.attention(subject, inspect.read(subject, TEXT), layers=[1])
    for view, chart in (("matrix", charts.matrix(found)), ("heads", charts.grid(found))):
        name, kind, content = answer(workspace, layers=[1], view=view)
        assert (name, kind) == ("attention.svg", "image/svg+xml")
        assert unnumbered(content) == unnumbered(charts.draw(chart, "svg"))


def unnumbered(drawing: bytes) -> bytes:
    """Without the numbers that go on from one drawing to the next."""
    return re.sub(rb"(clip|gradient_)\d+", rb"\1", drawing)


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("html", b"<!DOCTYPE html>")])
def test_pictures_of_other_kinds(workspace: Workspace, kind: str, start: bytes) -> None:
    name, _, content = answer(workspace, view="lines", heads=[1], each=True, kind=kind)
    assert name == f"attention.{kind}"
    assert content.startswith(start)


@pytest.mark.parametrize("asked", [{"layers": [9]}, {"kind": "exe"}, {"view": "x"}])
def test_what_is_not_there_is_refused(workspace: Workspace, asked: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        answer(workspace, **asked)
