"""Heedful's own interface: everything that is known about a translation."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

import heedful
from heedful.apps.quality.checker import Checker
from heedful.pretrained.catalogue import models_at_hand

DOG = "A dog runs in the snow."


def test_scores_tokens_and_alignments_are_those_of_the_library(client: TestClient) -> None:
    own = heedful.load(models_at_hand()["en-de"].path).translate(
        [DOG], alignment=True, beam=5, n_best=3
    )[0]
    values = {
        "texts": [f"{DOG}\n"],
        "source": "en",
        "target": "de",
        "alignment": True,
        "search": {"beam": 5, "n_best": 3},
    }
    answer = client.post("/v1/translate", json=values).json()
    assert answer["models"] == ["en-de"]
    (text,) = answer["translations"]
    assert text["text"] == f"{own}\n"
    line, empty = text["lines"]
    assert empty["text"] == ""
    assert line["score"] == pytest.approx(own.score)
    assert line["tokens"] == list(own.tokens)
    assert line["n_best"][0]["text"] == str(own.others[0])
    assert own.alignment is not None
    assert line["alignment"] == own.alignment.plain()


def test_reports_are_those_of_the_library(client: TestClient) -> None:
    texts = [f"{DOG}\n", "4 of the 9 players won 3 games in 2 weeks."]
    plain = client.post("/v1/translate", json={"texts": texts, "model": "en-de"}).json()
    values = {"texts": texts, "source": "en", "target": "de", "report": True}
    answer = client.post("/v1/translate", json=values).json()
    lines = [line for text in answer["translations"] for line in text["lines"]]
    pipeline = heedful.load(models_at_hand()["en-de"].path)
    own = pipeline.translate([DOG, "", texts[1]], alignment=True)
    expected = Checker(pipeline, ("en", "de")).reports([DOG, "", texts[1]], own)
    assert [line["report"]["failed"] for line in lines] == [[*each.failed] for each in expected]
    assert "numbers" in lines[2]["report"]["failed"]
    names = [each["name"] for each in lines[0]["report"]["checks"]]
    assert names == [each.name for each in expected[0].checks]
    assert "unseen_word" in names  # as `heedful translate --check` has it
    assert lines[0]["alignment"] is None
    assert plain["translations"][0]["lines"][0]["report"] is None
    assert plain["translations"][0]["text"] == answer["translations"][0]["text"]


def test_texts_alone_are_checked_behind_a_pivot(client: TestClient) -> None:
    values = {"texts": [DOG], "source": "en", "target": "fr", "report": True}
    answer = client.post("/v1/translate", json=values).json()
    assert len(answer["models"]) == 2
    (line,) = answer["translations"][0]["lines"]
    names = {each["name"] for each in line["report"]["checks"]}
    assert names >= {"language", "unseen_word"}
    assert not names & {"unsure", "uncovered", "detached"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"texts": [DOG]}, "source and target"),
        ({"texts": [DOG], "model": "english"}, "language model"),
        ({"texts": [DOG], "model": "en-de", "search": {"beem": 3}}, "beam"),
        ({"texts": [DOG], "model": "en-de", "search": {"beam": 1000}}, "1000"),
        ({"texts": [DOG], "model": "en-de", "search": {"beam": "x"}}, "beam"),
        ({"texts": [DOG], "model": "en-de", "search": {"risk_samples": 17}}, "17 hypotheses"),
        ({"texts": [DOG], "model": "en-de", "search": {"alternatives": 5}}, "20 hypotheses"),
        ({"texts": [DOG], "model": "en-de", "search": {"max_length": 2049}}, "2,048 tokens"),
        ({"texts": [DOG], "model": "en-de", "search": {"min_length": 2049}}, "2,048 tokens"),
        ({"texts": DOG, "model": "en-de"}, "texts"),
    ],
)
def test_what_is_wrong_is_said(client: TestClient, values: dict[str, Any], words: str) -> None:
    answer = client.post("/v1/translate", json=values)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]


def test_samples_do_not_depend_on_neighbours(client: TestClient) -> None:
    search = {"sampling": True, "seed": 5, "n_best": 1}
    values = {"model": "en-de", "search": search}
    alone = client.post("/v1/translate", json=values | {"texts": [DOG]}).json()
    together = client.post("/v1/translate", json=values | {"texts": ["A cat.", DOG]}).json()
    assert together["translations"][1] == alone["translations"][0]


def test_the_description_names_every_address(client: TestClient) -> None:
    spec = client.get("/spec").json()
    assert spec == client.get("/openapi.json").json()
    assert set(spec["paths"]) >= {"/translate", "/detect", "/languages", "/health", "/metrics"}
    assert set(spec["paths"]) >= {"/v1/models", "/v1/completions", "/v1/chat/completions"}
    fields = spec["components"]["schemas"]["TranslateBody"]["properties"]
    assert set(fields) >= {"q", "source", "target", "format", "alternatives", "api_key"}
    assert spec["paths"]["/translate"]["post"]["responses"]["429"]


def test_a_request_brings_terms_of_its_own(client: TestClient) -> None:
    values: dict[str, Any] = {"texts": [DOG, DOG], "source": "en", "target": "de"}
    plain = client.post("/v1/translate", json=values).json()["translations"]
    answer = client.post("/v1/translate", json={**values, "glossary": {"dog": ["Köter", "Rüde"]}})
    for one in answer.json()["translations"]:
        assert "Köter" in one["text"] or "Rüde" in one["text"]
        assert (one["lines"][0]["missing"], one["lines"][0]["untranslated"]) == ([], [])
    # Terms of one request are none of the next.
    assert client.post("/v1/translate", json=values).json()["translations"] == plain
    for terms, where in (({"dog": "犬"}, "glossary"), ({"dog": []}, "glossary")):
        refused = client.post("/v1/translate", json={**values, "glossary": terms})
        assert refused.status_code == 400
        assert refused.json()["where"] == where
