"""Calls of functions that a language model writes of its own accord."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from heedful.apps.serve.function_calls import TAG, FunctionCall, free_calls, required_call, settled
from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import save_model
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import Causal
from heedful.nn.spec import AttentionSpec, EmbeddingSpec, FeedForwardSpec, PositionSpec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer
from tests.apps.serve.conftest import client_of, make_parts

CALL = '{"name": "roll", "arguments": {"sides": 6}}'
ROLL = FunctionCall("roll", '{"sides": 6}')
NAMES = ["roll", "wait"]


@pytest.mark.parametrize(
    ("text", "rest", "calls"),
    [
        (CALL, "", [ROLL]),
        (f"\n {CALL}\n", "", [ROLL]),
        (f"Let me see.\n{TAG}\n{CALL}\n</tool_call>", "Let me see.", [ROLL]),
        (f"{TAG}{CALL}</tool_call>\n{TAG}{CALL}</tool_call>", "", [ROLL, ROLL]),
        ('{"name": "wait", "arguments": {"ü": 1}}', "", [FunctionCall("wait", '{"ü": 1}')]),
        # What is no call of a known function stays as it was written.
        (f"I would write {CALL}", None, []),
        (CALL.replace("roll", "steal"), None, []),
        (f"{TAG}{CALL[:-1]}</tool_call>", None, []),
        (f"{TAG}{CALL}", None, []),
        ('{"name": "roll"}', None, []),
        ('{"name": "roll", "arguments": "6"}', None, []),
        ('{"name": ["roll"], "arguments": {}}', None, []),
        ('{"name": "roll", "arguments": {"sides": NaN}}', None, []),
        ("[" * 100_000, None, []),
        ("", None, []),
        (
            f"{TAG}oops</tool_call> {TAG}{CALL}</tool_call>",
            f"{TAG}oops</tool_call>",
            [ROLL],
        ),
    ],
)
def test_calls_are_found_in_a_text(text: str, rest: str | None, calls: list[FunctionCall]) -> None:
    assert free_calls(text, NAMES) == (text if rest is None else rest, calls)


def test_a_required_call_is_the_answer() -> None:
    assert required_call('{"sides": 6}', ["roll"]) == ROLL
    assert required_call(CALL, NAMES) == ROLL
    assert required_call(CALL[:9], NAMES) is None


FRAGMENTS = [
    "a",
    " ",
    "{",
    "}",
    "<",
    "<tool",
    TAG,
    "</tool_call>",
    CALL,
    f"{TAG}{CALL}</tool_call>",
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join), st.data())
def test_a_stream_has_what_the_whole_answer_has(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    sent, held = "", ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        held += text[start:end]
        place = settled(held, begun=bool(sent))
        sent, held = sent + held[:place], held[place:]
    rest, calls = free_calls(held, NAMES)
    whole, expected = free_calls(text, NAMES)
    assert calls == expected
    # Spaces beside a call may have been sent before it was known.
    assert (sent + rest).split() == whole.split() or calls
    assert "".join((sent + rest).split()) == "".join(whole.split())
    assert TAG not in sent


ANSWERS = {
    "object": CALL,
    "tagged": f"I roll. {TAG}{CALL}</tool_call>",
    "text": "I roll <b>6</b>.",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of models each of which writes one answer, whatever it is asked."""
    folder = tmp_path_factory.mktemp("models")
    for name, answer in ANSWERS.items():
        save_writer(folder / name, answer)
    with client_of(make_parts(*(f"{name}={folder / name}" for name in ANSWERS))) as client:
        yield client


def save_writer(folder: Path, answer: str) -> None:
    """Save a model whose next token depends on its position alone."""
    words = train_tokenizer(TokenizerSpec(kind="characters"), [*ANSWERS.values()] * 3)
    prompt, written = [words.bos, *words.encode("go")], [*words.encode(answer), words.eos]
    length = len(prompt) + len(written)
    spec = CausalLMSpec(
        width=length,
        vocabulary=words.size,
        tied=False,
        max_length=length,
        embedding=EmbeddingSpec(positions=PositionSpec(kind="learned", max_length=length)),
        decoder=StackSpec.of(
            num_layers=1,
            block=BlockSpec.of(
                norm_placement="none",
                self_attention=AttentionSpec(num_heads=1, mask=Causal()),
                feedforward=FeedForwardSpec(width=1),
            ),
        ),
    )
    model = CausalLM(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.input.positions.weight.copy_(torch.eye(length))
        for place, token in enumerate(written, start=len(prompt) - 1):
            model.output_weight[token, place] = 50
    pair = TokenizerPair(words, words, chat="{{ messages[0].content }}")
    save_model(model, pair, folder)


def ask(client: TestClient, name: str, **values: Any) -> Any:
    function = {"type": "function", "function": {"name": "roll"}}
    request = {
        "model": name,
        "messages": [{"role": "user", "content": "go"}],
        "tools": [function],
        "temperature": 0,
    }
    answer = client.post("/v1/chat/completions", json=request | values)
    assert answer.status_code == 200, answer.text
    return answer


def streamed(client: TestClient, name: str) -> tuple[str, list[Any], str]:
    """The text, the calls and the finish reason of a stream."""
    lines = ask(client, name, stream=True).text.split("\n\n")
    events = [json.loads(line[6:])["choices"][0] for line in lines if line[6:7] == "{"]
    text = "".join(event["delta"].get("content") or "" for event in events)
    calls = [call for event in events for call in event["delta"].get("tool_calls", ())]
    return text, calls, events[-1]["finish_reason"]


@pytest.mark.parametrize(("name", "text"), [("object", None), ("tagged", "I roll.")])
def test_an_answer_may_call_a_function(client: TestClient, name: str, text: str | None) -> None:
    (choice,) = ask(client, name).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == ROLL._asdict()
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "tool_calls")
    sent, (other,), reason = streamed(client, name)
    assert (other["function"], other["index"]) == (call["function"], 0)
    assert (sent.strip(), reason) == (text or "", "tool_calls")


def test_an_answer_without_a_call_is_text(client: TestClient) -> None:
    (choice,) = ask(client, "text").json()["choices"]
    assert choice["message"]["content"] == ANSWERS["text"]
    assert (choice["finish_reason"], "tool_calls" in choice["message"]) == ("stop", False)
    assert streamed(client, "text") == (ANSWERS["text"], [], "stop")


def test_a_call_that_nobody_may_make_is_text(client: TestClient) -> None:
    for values in ({"tool_choice": "none"}, {"tools": []}):
        (choice,) = ask(client, "object", **values).json()["choices"]
        assert choice["message"]["content"] == CALL


def test_a_call_that_is_cut_is_text(client: TestClient) -> None:
    (choice,) = ask(client, "object", max_tokens=9).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL[:9], "length")
