"""Names of heads and a word in several sentences, in the browser: they are those of the package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.apps.studio.workspace import Workspace

from .test_browser_engine import (
    CALLS,
    SENTENCES,
    Engine,
    assert_alike,
    check_answer,
    engine,
    paths,
    pytestmark,
    workspace_of,
)

__all__ = ["engine", "paths", "pytestmark", "workspace_of"]

MODELS = ("en-de", "english", "english-masked", "rotary", "post")
CORPUS = SENTENCES[:11]
PAIRS = "\n".join(f"{line}\tSie ging, weil {line[4:]}" for line in CORPUS)
WORDS = ("bank", "river", "the", " Cat ", "wood")


def labels_of(
    engine: Engine, paths: dict[str, Path], workspace: Workspace, name: str, body: Any
) -> tuple[Any, Any]:
    """Return the labels of the engine, and those of the package, with numbers in words apart."""
    call = CALLS["attention/labels"]
    theirs = engine.ask(paths[name], "answer", page="attention", name="labels", body=body)
    own = json.loads(
        json.dumps(call.answer(call.request.parse({"model": name, **body}), workspace))
    )
    return _in_parts(theirs["result"]), _in_parts(own)


def _in_parts(answer: Any) -> Any:
    for label in answer["labels"]:
        # A number at the edge of two roundings is written as either.
        label["numbers"] = [float(each) / 100 for each in re.findall(r"\d+", label["why"])]
        label["why"] = re.sub(r"\d+", "#", label["why"])
    return answer


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("english-masked", ""),
        ("english", ""),
        ("rotary", "decoder"),
        ("en-de", "cross"),
        ("post", "decoder"),
        ("post", "cross"),
    ],
)
def test_heads_are_named_as_by_the_page(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace, name: str, part: str
) -> None:
    corpora = ["\n".join(CORPUS), PAIRS] if part == "cross" else ["\n\n".join(CORPUS)]
    for corpus in corpora:
        body = {"corpus": corpus, "part": part}
        theirs, own = labels_of(engine, paths, workspace_of, name, body)
        assert own["enough"]
        assert own["labels"] or name in ("rotary", "post")
        assert_alike(theirs, own, f"{name} {part}")


@given(lines=st.lists(st.sampled_from(SENTENCES), min_size=8, max_size=14))
@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_heads_are_named_on_any_sentences(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace, lines: list[str]
) -> None:
    body = {"corpus": "\n".join(lines)}
    assert_alike(*labels_of(engine, paths, workspace_of, "english-masked", body), "labels")


@pytest.mark.parametrize(
    "body",
    [
        {"corpus": "Go.\n" * 201},
        {"corpus": "A\tB\nC"},
        {"corpus": "\tA\nB\tC"},
        {"corpus": "A " * 10_001},
        {"corpus": "A\n" + "\ufffd"},
        {"corpus": "A\n" + "word " * 300},
        {"corpus": "A", "part": "decoder"},
    ],
)
def test_what_no_head_is_named_on_is_refused(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace, body: dict[str, str]
) -> None:
    check_answer(engine, paths, workspace_of, "attention/labels", "english-masked", body)
    if "part" not in body:
        check_answer(engine, paths, workspace_of, "attention/labels", "en-de", body)


def test_heads_are_named_on_the_models_own_sentences_at_the_export(
    engine: Engine, paths: dict[str, Path]
) -> None:
    asked = {"page": "attention", "name": "labels", "body": {"corpus": " \n"}}
    assert engine.ask(paths["en-de"], "answer", **asked)["result"] is None


FRAMES = ("He went to the {}.", "“{}” is it!", "A {}, an old one, was there.", "I saw {} today.")


@given(
    name=st.sampled_from(MODELS),
    word=st.sampled_from(WORDS),
    frames=st.lists(st.sampled_from(FRAMES), min_size=3, max_size=8),
)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_word_in_several_sentences_is_that_of_the_page(
    engine: Engine,
    paths: dict[str, Path],
    workspace_of: Workspace,
    name: str,
    word: str,
    frames: list[str],
) -> None:
    lines = [frame.format(word.strip()) for frame in frames]
    body = {"word": word, "text": "\n \n".join(lines) + "\r\n"}
    call = CALLS["block/contexts"]
    own = call.answer(call.request.parse({"model": name, **body}), workspace_of)
    theirs = engine.ask(paths[name], "answer", page="block", name="contexts", body=body)["result"]
    assert theirs["sentences"] == own["sentences"]
    assert len(theirs["depths"]) == len(own["depths"])
    for found, wanted in zip(theirs["depths"], own["depths"], strict=True):
        np.testing.assert_allclose(found["cosines"], wanted["cosines"], rtol=0, atol=1e-4)
        # An axis has either sign, and two that are equally long are any two of their plane, so
        # what is compared are the products of the points.
        points, others = (np.array(each["points"]) for each in (found, wanted))
        np.testing.assert_allclose(points @ points.T, others @ others.T, rtol=1e-3, atol=1e-3)
        for axis in np.flatnonzero(np.diff(-(others**2).sum(0)) > 1e-2 * (others**2).sum()):
            same = np.sign(points[:, axis] @ others[:, axis]) * points[:, axis]
            np.testing.assert_allclose(same, others[:, axis], rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("word", "lines"), [(" its", 2), ("it", 17), (" its", 3), ("it's", 4), ("it's\"", 4)]
)
def test_sentences_without_the_word_are_refused(
    engine: Engine, paths: dict[str, Path], workspace_of: Workspace, word: str, lines: int
) -> None:
    body = {"word": word, "text": "It is it.\n" * lines}
    check_answer(engine, paths, workspace_of, "block/contexts", "english", body)
