"""Results of inspection and runs draw themselves in a notebook."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from heedful import inspect
from heedful.apps.studio.run_log import RunLog
from heedful.inspect.drawings import curve, word_links
from heedful.inspect.subject import Subject
from heedful.pretrained.catalogue import models_at_hand

TEXT = "I love <cats> & dogs."


@pytest.fixture(scope="module")
def subject() -> Subject:
    return inspect.load(models_at_hand()["en-de"].path)


def parsed(drawing: str) -> ElementTree.Element:
    """The elements of a drawing, which asks for nothing from elsewhere."""
    assert "src=" not in drawing
    assert "href" not in drawing
    assert "<script" not in drawing
    return ElementTree.fromstring(drawing)


def test_attention_is_lines_between_words(subject: Subject) -> None:
    reading = inspect.read(subject, TEXT)
    found = inspect.attention(subject, reading, "encoder", layers=[2], heads=[1])
    drawing = parsed(found._repr_html_())
    weights = found.weights[0, 0]
    titles = [float(each.text or "nan") for each in drawing.iter() if each.tag.endswith("title")]
    assert titles == pytest.approx(weights[weights >= 0.02].tolist(), abs=6e-4)
    caption = drawing.find("figcaption")
    assert caption is not None
    assert caption.text == "encoder attention, layers 3, the mean of heads 2"


def test_a_lens_is_a_table_of_layers(subject: Subject) -> None:
    found = inspect.lens(subject, inspect.read(subject, TEXT))
    rows = parsed(found._repr_html_()).findall("tr")
    assert [row[0].text for row in rows[1:3]] == ["embedding", "layer 1"]
    assert [cell.text for cell in rows[-1][1:]] == [each[0] for each in found.pieces[-1]]


def test_an_alignment_has_a_line_for_each_link() -> None:
    pair = inspect.AlignedPair(("I", "love"), ("Ich", "liebe", "es"), ((0, 0), (1, 1), (1, 2)))
    drawing = parsed(pair._repr_html_())
    assert sum(each.tag.endswith("path") for each in drawing.iter()) == 3


def test_a_run_draws_its_loss(tmp_path: Path) -> None:
    assert "nothing yet" in RunLog(tmp_path)._repr_html_()
    lines = [json.dumps({"step": step, "loss": 8.0 / step}) for step in (1, 2, 4)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = [each.text for each in parsed(RunLog(tmp_path)._repr_html_()).iter() if each.text]
    assert {"2", "8", "1", "4"} <= set(words)


def test_one_point_and_no_word_can_be_drawn() -> None:
    parsed(curve([3], [1.5], "one"))
    parsed(word_links([], [], np.zeros((0, 0)), "none"))
