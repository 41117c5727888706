"""Unchanged clients of LibreTranslate and OpenAI, against a server of its own."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful.pretrained.catalogue import models_at_hand

from .conftest import ServerProcess, start_server

DOG = "A dog runs in the snow."
MAN = "A man rides a bicycle."
KEY = "a key for tests"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    from heedful.apps.serve.keys import add_key

    folder: Path = tmp_path_factory.mktemp("server")
    add_key(folder / "keys.txt", "tests", KEY)
    words = ("--capitals", "--copy-unknown", "--numbers", "localize")
    server = start_server(folder, "en-de", "english", "--keys", "keys.txt", *words)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.errors.read_text()


@pytest.fixture(scope="module")
def expected() -> list[str]:
    translator = heedful.load(models_at_hand()["en-de"].path)
    return [str(text) for text in translator.translate([DOG, MAN])]


def test_libretranslatepy(server: ServerProcess, expected: list[str]) -> None:
    from libretranslatepy import LibreTranslateAPI

    api = LibreTranslateAPI(server.address, KEY)
    assert api.translate(DOG, "en", "de") == expected[0]
    assert api.detect("Der Hund läuft durch den Schnee.")[0]["language"] == "de"
    assert api.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert api.translate("DO NOT OPEN THE DOOR.", "en", "de").isupper()
    assert "王小明" in api.translate("I met 王小明 here.", "en", "de")
    assert "1.234,50" in api.translate("It costs 1,234.50 dollars.", "en", "de")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        LibreTranslateAPI(server.address, "wrong").translate(DOG, "en", "de")


def test_deep_translator(server: ServerProcess, expected: list[str], tmp_path: Path) -> None:
    from deep_translator import LibreTranslator
    from deep_translator.exceptions import AuthorizationException, ServerException

    def translator(**changes: Any) -> Any:
        values = {"source": "en", "target": "de", "api_key": KEY}
        return LibreTranslator(custom_url=f"{server.address}/", **(values | changes))

    assert translator().translate(DOG) == expected[0]
    assert translator().translate_batch([DOG, MAN]) == expected
    assert translator(source="auto").translate(DOG) == expected[0]
    file = tmp_path / "text.txt"
    file.write_text(DOG)
    assert translator().translate_file(str(file)) == expected[0]
    with pytest.raises(AuthorizationException):
        translator(api_key="wrong").translate(DOG)
    with pytest.raises(ServerException):
        translator(target="fr").translate(DOG)


def test_openai(server: ServerProcess, expected: list[str]) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key=KEY, max_retries=0)
    assert [model.id for model in client.models.list()] == ["en-de", "english"]
    assert client.models.retrieve("english").id == "english"

    messages: Any = [{"role": "user", "content": DOG}]
    chat = client.chat.completions.create(model="en-de", messages=messages, temperature=0)
    assert chat.choices[0].message.content == expected[0]
    assert chat.usage is not None
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
    several = client.chat.completions.create(model="en-de", messages=messages, n=3, logprobs=True)
    assert len({choice.message.content for choice in several.choices}) == 3
    assert several.choices[0].logprobs is not None
    assert several.choices[0].logprobs.content

    options: Any = {"model": "english", "temperature": 0, "max_tokens": 12}
    whole = client.completions.create(prompt="The man", **options)
    stream = client.completions.create(prompt="The man", stream=True, **options)
    assert "".join(part.choices[0].text for part in stream) == whole.choices[0].text
    chat_stream = client.chat.completions.create(
        messages=[{"role": "user", "content": "The man"}], stream=True, **options
    )
    deltas = [part.choices[0].delta.content or "" for part in chat_stream]
    assert "".join(deltas) == whole.choices[0].text

    response = client.responses.create(model="en-de", input=DOG)
    assert response.output_text == expected[0]
    assert response.usage is not None
    with client.responses.stream(model="english", input="The man", temperature=0) as events:
        kinds = {event.type for event in events}
        final = events.get_final_response()
    assert {"response.output_text.delta", "response.completed"} <= kinds
    again = client.responses.create(model="english", input="The man", temperature=0)
    assert final.output_text == again.output_text

    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=messages)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(prompt="x", model="english", presence_penalty=1)
    wrong = openai.OpenAI(base_url=f"{server.address}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        wrong.models.list()
