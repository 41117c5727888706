"""OpenAI's interface: what a language model and a translator answer, in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.testclient import TestClient

import heedful
from heedful.apps.serve.openai_api import OpenAI, PromptAnswer
from heedful.errors import RunError
from heedful.pretrained.catalogue import models_at_hand
from heedful.text.sentences import count_sentences

DOG = "A dog runs in the snow."


@pytest.fixture(scope="module")
def writer() -> Any:
    return heedful.load(models_at_hand()["english"].path)


def complete(client: TestClient, **values: Any) -> Any:
    greedy = {"model": "english", "prompt": "The man", "temperature": 0, "max_tokens": 12}
    return client.post("/v1/completions", json=greedy | values)


def events(text: str) -> list[Any]:
    """The data of server-sent events."""
    parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


def test_models_are_listed(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [each["id"] for each in listed["data"]] == ["en-de", "de-fr", "de-en", "english"]
    assert client.get("/v1/models/english").json()["id"] == "english"
    missing = client.get("/v1/models/englisch")
    assert missing.status_code == 404
    assert "english" in missing.json()["error"]["message"]


def test_a_prompt_is_continued_as_the_library_does(client: TestClient, writer: Any) -> None:
    answer = complete(client).json()
    own = writer.generate(["The man"], max_length=12)[0]
    assert answer["choices"] == [
        {"index": 0, "text": own.text, "logprobs": None, "finish_reason": "stop"}
    ]
    read = len(writer.tokenizer.encode("The man")) + 1
    assert answer["usage"] == {
        "prompt_tokens": read,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens": len(own.tokens),
        "total_tokens": read + len(own.tokens),
    }
    cut = complete(client, max_tokens=3).json()
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens"] == 3


def test_a_stream_has_the_text_of_a_whole_answer(client: TestClient) -> None:
    whole = complete(client).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answer = complete(client, **options)
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = events(answer.text)
    texts = [part["choices"][0]["text"] for part in parts if part["choices"]]
    assert len([text for text in texts if text]) > 2
    assert "".join(texts) == whole["choices"][0]["text"]
    assert parts[-2]["choices"][0]["finish_reason"] == "stop"
    cut = events(complete(client, max_tokens=3, stream=True).text)
    assert cut[-1]["choices"][0]["finish_reason"] == "length"
    assert parts[-1]["usage"] == whole["usage"]


def test_a_chat_is_streamed_in_deltas(client: TestClient) -> None:
    values = {
        "model": "english",
        "messages": [{"role": "user", "content": "The man"}],
        "temperature": 0,
        "max_tokens": 12,
    }
    whole = client.post("/v1/chat/completions", json=values).json()
    message = whole["choices"][0]["message"]
    parts = events(client.post("/v1/chat/completions", json=values | {"stream": True}).text)
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    deltas = [part["choices"][0]["delta"].get("content", "") for part in parts]
    assert "".join(deltas) == message["content"]
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}


def test_a_translator_translates_the_last_message(client: TestClient) -> None:
    values = {
        "model": "en-de",
        "messages": [
            {"role": "system", "content": "Translate."},
            {"role": "user", "content": [{"type": "text", "text": DOG}]},
        ],
    }
    own = heedful.load(models_at_hand()["en-de"].path).translate([DOG])[0]
    answer = client.post("/v1/chat/completions", json=values | {"logprobs": True}).json()
    choice = answer["choices"][0]
    assert choice["message"]["content"] == str(own)
    assert choice["finish_reason"] == "stop"
    assert [each["token"] for each in choice["logprobs"]["content"]] == list(own.tokens)
    parts = events(client.post("/v1/chat/completions", json=values | {"stream": True}).text)
    deltas = [part["choices"][0]["delta"].get("content", "") for part in parts]
    assert "".join(deltas) == str(own)


def test_a_translation_has_no_more_tokens_than_asked(client: TestClient) -> None:
    values = {
        "model": "en-de",
        "messages": [{"role": "user", "content": f"{DOG}\n{DOG}"}],
        "tools": [],
        "response_format": {"type": "text"},
    }

    def answer(**changes: Any) -> tuple[str, str, int]:
        answer = client.post("/v1/chat/completions", json=values | changes).json()
        (choice,) = answer["choices"]
        tokens = answer["usage"]["completion_tokens"]
        return choice["message"]["content"], choice["finish_reason"], tokens

    text, reason, tokens = answer()
    assert reason == "stop"
    line, _ = text.split("\n")
    assert answer(max_tokens=4096) == (text, reason, tokens)
    assert answer(max_tokens=tokens) == (text, reason, tokens)
    assert answer(max_completion_tokens=tokens - 1) == (line, "length", tokens // 2)
    start, reason, tokens = answer(max_tokens=2)
    assert (line.startswith(start.rstrip(".")), reason, tokens) == (True, "length", 2)
    assert answer(max_tokens=2, stop=start[:3])[:2] == ("", "stop")


def test_an_answer_fits_a_schema(client: TestClient) -> None:
    pytest.importorskip("llguidance", reason="pip install 'heedful[structured]'")
    schema = {"type": "integer", "minimum": 10, "maximum": 300}
    named = {"type": "json_schema", "json_schema": {"name": "words", "schema": schema}}
    values = {
        "model": "english",
        "messages": [{"role": "user", "content": "The man"}],
        "response_format": named,
    }
    choice = client.post("/v1/chat/completions", json=values).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert 10 <= json.loads(choice["message"]["content"]) <= 300
    loose = values | {"response_format": {"type": "json_object"}}
    (choice,) = client.post("/v1/chat/completions", json=loose).json()["choices"]
    assert choice["message"]["content"].lstrip().startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    named["json_schema"] = {"name": "words", "schema": {"type": "words"}}
    for wrong in (values, values | {"stream": True}):
        answer = client.post("/v1/chat/completions", json=wrong)
        assert answer.status_code == 400
        assert "words" in answer.json()["error"]["message"]
    assert client.post("/v1/chat/completions", json=values | {"model": "en-de"}).status_code == 400


def test_a_stop_string_ends_an_answer(client: TestClient) -> None:
    text = complete(client).json()["choices"][0]["text"]
    stop = text.split()[2]
    answer = complete(client, stop=[stop]).json()["choices"][0]
    assert answer["text"] == text[: text.index(stop)]
    assert answer["finish_reason"] == "stop"
    parts = events(complete(client, stop=stop, stream=True).text)
    assert "".join(part["choices"][0]["text"] for part in parts) == answer["text"]
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"


def test_several_answers_and_prompts(client: TestClient) -> None:
    answer = complete(client, prompt=["The man", "A dog"], n=2, temperature=1, seed=3).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    again = complete(client, prompt=["The man", "A dog"], n=2, temperature=1, seed=3).json()
    assert again["choices"] == answer["choices"]
    drawn = {complete(client, temperature=1).json()["choices"][0]["text"] for _ in range(5)}
    assert len(drawn) > 1


def test_log_probabilities_are_those_of_the_library(client: TestClient, writer: Any) -> None:
    logprobs = complete(client, logprobs=0, echo=True).json()["choices"][0]["logprobs"]
    own = writer.generate(["The man"], max_length=12)[0]
    assert logprobs["token_logprobs"] == pytest.approx(list(own.token_scores))


@pytest.mark.parametrize(
    ("values", "status", "param"),
    [
        ({"model": "gpt-4"}, 404, "model"),
        ({"model": None}, 400, "model"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty"),
        ({"logit_bias": {"3": 1.0}}, 400, "logit_bias"),
        ({"n": 2, "stream": True}, 400, None),
        ({"best_of": 3}, 400, None),
        ({"suffix": "x"}, 400, "suffix"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 100_000}, 400, "max_tokens"),
        ({"prompt": [1, 2]}, 400, None),
        ({"logprobs": 0, "stream": True}, 400, None),
    ],
)
def test_what_cannot_be_done_is_refused(
    client: TestClient, values: dict[str, Any], status: int, param: str | None
) -> None:
    answer = complete(client, **values)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize(
    ("values", "status"), [({"model": "gpt-4"}, 404), ({"prompt": [1, 2]}, 400)]
)
def test_a_stream_that_cannot_begin_is_refused_by_its_status(
    client: TestClient, values: dict[str, Any], status: int
) -> None:
    answer = complete(client, stream=True, **values)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_error_in_a_stream_is_an_event(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: OpenAI, *given: Any) -> AsyncIterator[PromptAnswer]:
        yield PromptAnswer("A", ("A",), (), is_cut=False)
        raise RunError("The disk is full")

    monkeypatch.setattr(OpenAI, "_pieces", broken)
    answer = complete(client, stream=True)
    assert answer.status_code == 200
    parts = events(answer.text)
    assert parts[1]["choices"][0]["text"] == "A"
    assert "The disk is full" in parts[-1]["error"]["message"]


def test_draws_at_the_least_temperature_are_the_likeliest(client: TestClient) -> None:
    values = {"model": "en-de", "messages": [{"role": "user", "content": "A dog runs."}]}
    answer = client.post("/v1/chat/completions", json=values | {"temperature": 5e-324, "n": 2})
    assert answer.status_code == 200, answer.text
    assert len({choice["message"]["content"] for choice in answer.json()["choices"]}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_without_a_limit_takes_the_positions_that_are_left(
    client: TestClient, stream: bool
) -> None:
    messages = [{"role": "user", "content": "The cat sat on the"}]
    request = {"model": "english", "messages": messages, "stream": stream, "temperature": 0}
    answer = client.post("/v1/chat/completions", json=request)
    assert answer.status_code == 200, answer.text
    if not stream:
        usage = answer.json()["usage"]
        assert 0 < usage["completion_tokens"] <= 97 - usage["prompt_tokens"]


def test_a_paragraph_in_a_chat_loses_no_sentence(client: TestClient) -> None:
    text = "Tom lives in Boston. You should go home. He does not like coffee. It is raining."
    request = {"model": "en-de", "messages": [{"role": "user", "content": text}]}
    answer = client.post("/v1/chat/completions", json=request).json()
    found = answer["choices"][0]["message"]["content"]
    assert count_sentences(found, "de") == 4
    plain = client.post("/translate", json={"q": text, "source": "en", "target": "de"}).json()
    assert plain["translatedText"] == found


def test_a_prompt_is_read_once(client: TestClient, parts: Any, monkeypatch: Any) -> None:
    read: list[str] = []
    lengths = parts.service._prompt_lengths
    monkeypatch.setattr(
        type(parts.service),
        "_prompt_lengths",
        staticmethod(lambda pipeline, prompts: read.extend(prompts) or lengths(pipeline, prompts)),
    )
    for changes in ({"max_tokens": None}, {"max_tokens": 5}, {"stream": True}):
        read.clear()
        assert complete(client, **changes).status_code == 200
        assert read == ["The man"]


def respond(client: TestClient, **values: Any) -> Any:
    greedy = {"model": "english", "input": "The man", "temperature": 0, "max_output_tokens": 12}
    return client.post("/v1/responses", json=greedy | values)


def test_a_response_is_the_answer_of_a_chat(client: TestClient) -> None:
    whole = complete(client).json()
    answer = respond(client).json()
    (message,) = answer["output"]
    assert message["content"][0]["text"] == whole["choices"][0]["text"]
    assert (answer["status"], answer["object"]) == ("completed", "response")
    assert answer["usage"]["input_tokens"] == whole["usage"]["prompt_tokens"]
    assert answer["usage"]["output_tokens"] == whole["usage"]["completion_tokens"]
    cut = respond(client, max_output_tokens=3).json()
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    parts = [{"type": "input_text", "text": DOG}]
    turns = [{"role": "user", "content": "x"}, {"role": "user", "content": parts}]
    own = heedful.load(models_at_hand()["en-de"].path).translate([DOG])[0]
    values = {"model": "en-de", "instructions": "Translate.", "input": turns}
    assert respond(client, **values).json()["output"][0]["content"][0]["text"] == str(own)


def test_a_response_is_streamed_in_events(client: TestClient) -> None:
    answer = respond(client, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    data = [json.loads(line.removeprefix("data: ")) for _, line in blocks]
    assert [name.removeprefix("event: ") for name, _ in blocks] == [each["type"] for each in data]
    assert [each["sequence_number"] for each in data] == list(range(len(data)))
    deltas = [each["delta"] for each in data if each["type"] == "response.output_text.delta"]
    assert len(deltas) > 2
    whole = respond(client).json()
    assert "".join(deltas) == whole["output"][0]["content"][0]["text"]
    assert data[-1]["type"] == "response.completed"
    assert data[-1]["response"]["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("values", "status", "param"),
    [
        ({"model": "gpt-4"}, 404, "model"),
        ({"previous_response_id": "resp_1"}, 400, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools"),
        ({"background": True}, 400, "background"),
        ({"input": []}, 400, None),
        ({"text": {"format": {"type": "words"}}}, 400, None),
        ({"max_output_tokens": 100_000}, 400, "max_tokens"),
    ],
)
def test_a_response_that_cannot_be_given_is_refused(
    client: TestClient, values: dict[str, Any], status: int, param: str | None
) -> None:
    for stream in (False, True):
        answer = respond(client, **values, stream=stream)
        assert answer.status_code == status, answer.text
        if param is not None:
            assert answer.json()["error"]["param"] == param
