"""LibreTranslate's interface: shapes of answers and errors, in this process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import heedful
from heedful.apps.serve.application import ServerParts
from heedful.apps.serve.clients import Clients
from heedful.apps.serve.keys import Keys, key_hash
from heedful.apps.serve.served_models import parse_model
from heedful.apps.serve.server_settings import Limits
from heedful.pretrained.catalogue import models_at_hand
from heedful.search.search_settings import SearchSettings

from .conftest import client_of, make_parts, wait_until

DOG = "A dog runs in the snow."
MAN = "A man rides a bicycle."


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """What the library says by itself."""
    return [str(text) for text in heedful.load(heedful_path()).translate([DOG, MAN])]


def heedful_path() -> Any:
    from heedful.pretrained.catalogue import models_at_hand

    return models_at_hand()["en-de"].path


def post(client: TestClient, **values: Any) -> Any:
    return client.post("/translate", json={"source": "en", "target": "de"} | values)


def test_a_text_is_translated_as_the_library_does(client: TestClient, expected: list[str]) -> None:
    answer = post(client, q=DOG)
    assert answer.status_code == 200
    assert answer.json() == {"translatedText": expected[0]}


def test_several_texts_give_a_list(client: TestClient, expected: list[str]) -> None:
    assert post(client, q=[DOG, "", MAN]).json() == {
        "translatedText": [expected[0], "", expected[1]]
    }


def test_lines_stay_lines(client: TestClient, expected: list[str]) -> None:
    answer = post(client, q=f"{DOG}\n\n{MAN}\n").json()
    assert answer["translatedText"] == f"{expected[0]}\n\n{expected[1]}\n"


def test_line_breaks_of_windows_stay(client: TestClient, expected: list[str]) -> None:
    text = post(client, q=f"{DOG}\r\n\r\n{MAN}\r\n").json()["translatedText"]
    assert text == f"{expected[0]}\r\n\r\n{expected[1]}\r\n"


@pytest.mark.parametrize("way", ["form", "multipart", "query"])
def test_values_may_come_in_a_form_or_in_the_address(
    client: TestClient, expected: list[str], way: str
) -> None:
    values = {"q": DOG, "source": "en", "target": "de", "format": "text", "api_key": ""}
    if way == "form":
        answer = client.post("/translate", data=values)
    elif way == "multipart":
        answer = client.post("/translate", files={k: (None, v) for k, v in values.items()})
    else:
        answer = client.post("/translate", params=values)
    assert answer.json() == {"translatedText": expected[0]}


def test_alternatives_differ_and_the_first_stays(client: TestClient, expected: list[str]) -> None:
    answer = post(client, q=DOG, alternatives=2).json()
    assert answer["translatedText"] == expected[0]
    assert len({answer["translatedText"], *answer["alternatives"]}) == 3
    several = post(client, q=[DOG, MAN], alternatives=2).json()
    assert [len(each) for each in several["alternatives"]] == [2, 2]


@pytest.mark.parametrize("search", [{"alternatives": 3}, {"risk_samples": 4}])
def test_a_server_of_another_search_gives_as_many_answers(
    expected: list[str], search: dict[str, Any]
) -> None:
    parts = make_parts("en-de")
    parts.service.search = SearchSettings.parse(search)
    with client_of(parts) as client:
        answer = post(client, q=DOG, alternatives=6)
        assert answer.status_code == 200, answer.text
        chat = {"model": "en-de", "messages": [{"role": "user", "content": DOG}]}
        for values in ({"n": 5}, {"n": 5, "temperature": 0.7}):
            choices = client.post("/v1/chat/completions", json=chat | values).json()["choices"]
            assert len(choices) == 5


def test_a_language_is_detected(client: TestClient, expected: list[str]) -> None:
    answer = post(client, q=DOG, source="auto").json()
    assert answer["translatedText"] == expected[0]
    assert answer["detectedLanguage"]["language"] == "en"
    assert 0 < answer["detectedLanguage"]["confidence"] <= 100
    ranked = client.post("/detect", json={"q": "Der Hund läuft durch den Schnee."}).json()
    assert ranked[0]["language"] == "de"
    assert ranked[0]["confidence"] > 50


def test_a_text_in_the_target_language_stays(client: TestClient) -> None:
    answer = post(client, q="Der Hund läuft durch den Schnee.", source="auto").json()
    assert answer["translatedText"] == "Der Hund läuft durch den Schnee."


def test_a_pivot_is_used_and_named(client: TestClient, expected: list[str]) -> None:
    answer = post(client, q=DOG, target="fr")
    assert answer.headers["x-heedful-models"] == "en-de, de-fr"
    twice = heedful.load(heedful_path()).translate([expected[0]])
    assert answer.json() == {"translatedText": str(twice[0])}


def test_languages_and_settings_are_listed(client: TestClient) -> None:
    assert client.post("/languages").status_code == 405  # as in LibreTranslate
    for method in (client.get, client.post):
        languages = {each["code"]: each for each in client.get("/languages").json()}
        assert languages["en"] == {"code": "en", "name": "English", "targets": ["de", "fr"]}
        assert languages["de"]["targets"] == ["en", "fr"]
        assert languages["fr"] == {"code": "fr", "name": "French", "targets": []}
        settings = method("/frontend/settings").json()
        assert settings["language"]["source"] == {"code": "en", "name": "English"}
        assert settings["charLimit"] == 100_000
        assert settings["keyRequired"] is False
    assert client.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "Invalid request: missing q parameter"),
        ({"q": DOG, "source": "xx"}, "xx is not supported"),
        ({"q": DOG, "source": "fr", "target": "en"}, "en-de, de-fr, de-en"),
        ({"q": DOG, "target": ""}, "target"),
        ({"q": DOG, "format": "pdf"}, "format"),
        ({"q": 7}, "q"),
        ({"q": [DOG, None]}, "q"),
        ({"q": DOG, "alternatives": 99}, "alternatives"),
        ({"q": DOG, "alternatives": True}, "alternatives"),
    ],
)
def test_what_is_wrong_is_said(client: TestClient, values: dict[str, Any], words: str) -> None:
    answer = post(client, **values)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff\xfe", b'"q"', b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/translate", content=body)
    assert answer.status_code == 400
    assert "JSON" in answer.json()["error"]


def test_halves_of_characters_are_refused_and_controls_are_not(client: TestClient) -> None:
    def answer(q: bytes) -> Any:
        body = b'{"q": "A ' + q + b' dog runs.", "source": "en", "target": "de"}'
        return client.post("/translate", content=body)

    assert answer(b"\\u0000").json()["translatedText"]
    assert "Unicode" in answer(b"\\ud800").json()["error"]


def test_limits_are_held() -> None:
    with client_of(make_parts("en-de", limits=Limits(texts=2, characters=40))) as client:
        assert "3 texts" in post(client, q=["a", "b", "c"]).json()["error"]
        assert "41 characters" in post(client, q="x" * 41).json()["error"]
        assert post(client, q="x" * 40).status_code == 200


def test_a_request_that_takes_too_long_is_given_up() -> None:
    with client_of(make_parts("en-de", limits=Limits(seconds=0.001))) as client:
        answer = post(client, q=DOG)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert "error" in answer.json()


def test_keys_are_asked_for() -> None:
    keys = Keys({"alice": key_hash("secret")})
    with client_of(make_parts("en-de", clients=Clients(keys))) as client:
        assert post(client, q=DOG).status_code == 403
        assert post(client, q=DOG, api_key="wrong").status_code == 403
        assert post(client, q=DOG, api_key="secret").status_code == 200
        bearer = {"authorization": "Bearer secret"}
        assert client.get("/v1/models", headers=bearer).status_code == 200
        assert client.get("/v1/models").json()["error"]["code"] == "invalid_api_key"
        assert client.get("/languages").status_code == 200
        assert client.get("/frontend/settings").json()["keyRequired"] is True


def test_metrics_count_what_was_done(parts: ServerParts, client: TestClient) -> None:
    def value(name: str) -> float:
        lines = client.get("/metrics").text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = value("heedful_texts_total")
    post(client, q=[DOG, MAN])
    # A batch is counted once it is answered.
    wait_until(lambda: value("heedful_texts_total") == before + 2)
    assert value('heedful_requests_total{path="/translate",status="200"}') > 0
    assert value("heedful_memory_bytes") > 1e8
    client.get("/no/such/place")
    assert value('heedful_requests_total{path="other",status="404"}') > 0


def test_what_is_asked_by_two_methods_names_both(client: TestClient) -> None:
    path = "/frontend/settings"
    answer = client.put(path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, POST"
    for method in ("GET", "HEAD", "POST"):
        assert client.request(method, path).status_code == 200


def test_a_copy_of_a_model_at_hand_keeps_its_languages(tmp_path: Path) -> None:
    copy = tmp_path / "mine"
    shutil.copytree(models_at_hand()["en-de"].path, copy)
    served = parse_model(str(copy))
    assert (served.name, served.source, served.target) == ("mine", "en", "de")


def test_white_space_and_line_ends_stay_as_they_are(
    client: TestClient, expected: list[str]
) -> None:
    text = f"  {DOG} \r\n\t{MAN}\n\n\u00a0{DOG}\r"
    dog, man = expected
    answer = post(client, q=text).json()["translatedText"]
    assert answer == f"  {dog} \r\n\t{man}\n\n\u00a0{dog}\r"


def test_a_form_with_two_texts_has_two_answers(client: TestClient, expected: list[str]) -> None:
    values = {"q": [DOG, MAN], "source": "en", "target": "de"}
    assert client.post("/translate", data=values).json() == {"translatedText": expected}
    twice = client.post("/translate", data=values | {"source": ["en", "de"]})
    assert twice.status_code == 400
    assert "source" in twice.json()["error"]


def test_suggestions_are_kept_for_those_who_want_them(
    client: TestClient, parts: ServerParts, tmp_path: Path
) -> None:
    body = {"q": DOG, "s": "Ein Hund läuft.", "source": "en-US", "target": "de"}
    refused = client.post("/suggest", json=body)
    assert refused.status_code == 403
    assert refused.json() == {"error": "Suggestions are disabled on this server."}
    file = tmp_path / "suggestions.jsonl"
    with client_of(make_parts("en-de", suggestions=file)) as other:
        assert other.get("/frontend/settings").json()["suggestions"] is True
        for way in ("json", "data"):
            assert other.post("/suggest", **{way: body}).json() == {"success": True}
        missing = other.post("/suggest", json={"q": DOG})
        assert missing.json() == {"error": "Invalid request: missing s parameter"}
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert kept == [body | {"source": "en"}] * 2
