"""Calls of functions, forms of responses, and prompts that begin alike, over OpenAI's interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import save_model
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import Causal
from heedful.nn.spec import AttentionSpec, EmbeddingSpec, FeedForwardSpec, PositionSpec, RotarySpec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer
from tests.apps.serve.conftest import client_of, make_parts

TEMPLATE = """\
{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for each in messages %}<{{ each.role }}>{{ each.content }}
{%- for call in each.tool_calls or [] %}[{{ call.function.name }}]{% endfor %}{% endfor %}"""

COLOURS = {"type": "string", "enum": ["red", "blue"]}
PAINT = {
    "name": "paint",
    "parameters": {
        "type": "object",
        "properties": {"colour": {"$ref": "#/$defs/colour"}},
        "required": ["colour"],
        "additionalProperties": False,
        "$defs": {"colour": COLOURS},
    },
}
ROLL = {
    "name": "roll",
    "parameters": {
        "type": "object",
        "properties": {"sides": {"type": "integer", "minimum": 2, "maximum": 20}},
        "required": ["sides"],
        "additionalProperties": False,
    },
}
WAIT = {"name": "wait"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a model of random weights whose tokens have all bytes."""
    torch.manual_seed(3)
    words = train_tokenizer(
        TokenizerSpec(kind="byte-bpe", vocabulary_size=270), ["red blue name arguments"]
    )
    spec = CausalLMSpec(
        width=16,
        vocabulary=words.size,
        tied=False,
        embedding=EmbeddingSpec(positions=PositionSpec(kind="none")),
        decoder=StackSpec.of(
            num_layers=1,
            block=BlockSpec.of(
                self_attention=AttentionSpec(num_heads=2, mask=Causal(), rotary=RotarySpec()),
                feedforward=FeedForwardSpec(width=16),
            ),
        ),
    )
    folder: Path = tmp_path_factory.mktemp("models") / "random"
    save_model(CausalLM(spec), TokenizerPair(words, words, chat=TEMPLATE), folder)
    with client_of(make_parts(f"random={folder}")) as client:
        yield client


def ask(client: TestClient, *functions: Any, choice: Any = "required", **values: Any) -> Any:
    request = {
        "model": "random",
        "messages": [{"role": "user", "content": "Do it."}],
        "tools": [{"type": "function", "function": each} for each in functions],
        "tool_choice": choice,
        "temperature": 1,
        "seed": 5,
        "max_tokens": 120,
    }
    return client.post("/v1/chat/completions", json=request | values)


def called(choice: Any) -> tuple[str, Any]:
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert choice["message"]["content"] is None
    return call["function"]["name"], json.loads(call["function"]["arguments"])


@pytest.fixture(autouse=True)
def _library() -> None:
    pytest.importorskip("llguidance", reason="pip install 'heedful[structured]'")


def test_an_answer_calls_the_function_that_is_chosen(client: TestClient) -> None:
    named = {"type": "function", "function": {"name": "paint"}}
    for choice, functions in ((named, [ROLL, PAINT]), ("required", [PAINT])):
        answer = ask(client, *functions, choice=choice)
        assert answer.status_code == 200, answer.text
        (one,) = answer.json()["choices"]
        name, arguments = called(one)
        assert (name, one["finish_reason"]) == ("paint", "tool_calls")
        assert arguments in ({"colour": "red"}, {"colour": "blue"})


def test_an_answer_calls_one_of_several_functions(client: TestClient) -> None:
    names = set()
    for choice in ask(client, ROLL, WAIT, n=8).json()["choices"]:
        name, arguments = called(choice)
        names.add(name)
        assert arguments == {} if name == "wait" else 2 <= arguments["sides"] <= 20
    assert names == {"roll", "wait"}


def test_a_stream_has_the_call_of_the_whole_answer(client: TestClient) -> None:
    for functions in ([ROLL], [ROLL, WAIT]):
        expected = called(ask(client, *functions).json()["choices"][0])
        text = ask(client, *functions, stream=True).text
        parts = [json.loads(each[6:]) for each in text.split("\n\n") if each[6:7] == "{"]
        deltas = [part["choices"][0]["delta"] for part in parts]
        (found,) = [each for each in deltas if each.get("tool_calls")]
        assert called({"message": found}) == expected
        assert found["tool_calls"][0]["index"] == 0
        assert parts[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_that_is_cut_says_so(client: TestClient) -> None:
    (one,) = ask(client, ROLL, max_tokens=3).json()["choices"]
    assert one["finish_reason"] == "length"
    (one,) = ask(client, ROLL, WAIT, max_tokens=3).json()["choices"]
    assert one["finish_reason"] == "length"
    assert "tool_calls" not in one["message"]


def test_the_template_shows_tools_and_calls(client: TestClient) -> None:
    def read(choice: str, *messages: Any) -> int:
        answer = ask(client, ROLL, choice=choice, messages=messages, max_tokens=1)
        assert answer.status_code == 200, answer.text
        tokens: int = answer.json()["usage"]["prompt_tokens"]
        return tokens

    user = {"role": "user", "content": "Do it."}
    call = {"id": "1", "type": "function", "function": {"name": "roll", "arguments": "{}"}}
    assistant = {"role": "assistant", "content": None}
    result = {"role": "tool", "tool_call_id": "1", "content": "6"}
    assert read("auto", user) > read("none", user) + 30
    with_call = read("none", user, assistant | {"tool_calls": [call]}, result)
    assert with_call == read("none", user, assistant, result) + len("[roll]")


@pytest.mark.parametrize(
    ("functions", "values", "message"),
    [
        ([ROLL], {"choice": {"type": "function", "function": {"name": "x"}}}, "names no function"),
        ([], {}, "names no function"),
        ([ROLL], {"response_format": {"type": "json_object"}}, "cannot be combined"),
        ([{"name": "a b"}], {}, "must look like"),
        ([{"name": "a", "parameters": {"type": "words"}}], {}, "words"),
    ],
)
def test_a_call_that_cannot_be_is_refused(
    client: TestClient, functions: list[Any], values: dict[str, Any], message: str
) -> None:
    answer = ask(client, *functions, **values)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]


def test_a_response_fits_a_schema(client: TestClient) -> None:
    form = {"type": "json_schema", "name": "colour", "schema": COLOURS}
    request = {"model": "random", "input": "Which?", "text": {"format": form}, "seed": 1}
    answer = client.post("/v1/responses", json=request).json()
    assert json.loads(answer["output"][0]["content"][0]["text"]) in COLOURS["enum"]
    assert answer["text"]["format"] == form


def test_usage_and_metrics_count_what_was_at_hand(client: TestClient) -> None:
    def counted() -> list[float]:
        lines = client.get("/metrics").text.splitlines()
        names = ("heedful_prompt_tokens_total", "heedful_cached_prompt_tokens_total")
        return [float(line.split()[1]) for name in names for line in lines if line.startswith(name)]

    def usage(prompt: str) -> Any:
        request = {"model": "random", "prompt": prompt, "max_tokens": 2, "temperature": 0}
        return client.post("/v1/completions", json=request).json()["usage"]

    before = counted()
    first = usage("0123456789" * 5 + "x")
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    second = usage("0123456789" * 5 + "y")
    # The begin token and 47 digits are three blocks of 16.
    assert second["prompt_tokens_details"] == {"cached_tokens": 48}
    read = first["prompt_tokens"] + second["prompt_tokens"] - 2  # but the last token of each
    assert [b - a for a, b in zip(before, counted(), strict=True)] == [read, 48]
    request = {"model": "random", "input": "0123456789" * 5, "max_output_tokens": 2}
    details = client.post("/v1/responses", json=request).json()["usage"]["input_tokens_details"]
    assert details == {"cached_tokens": 0}  # the template begins otherwise
