"""Without a number of new tokens, a continuation takes what the positions of the model leave."""

from __future__ import annotations

import pytest

import heedful
from heedful.cli.main import main
from heedful.errors import ModelError
from heedful.search.search_settings import NEW_TOKENS

LONG = "Tom asked Mary whether she would like to come to the party with him. " * 4


@pytest.fixture(scope="module")
def writer():
    return heedful.load("english", device="cpu")


def test_prompts_of_any_length_are_continued_within_the_positions(writer) -> None:
    table = writer.model.spec.embedding.positions.max_length
    assert table < NEW_TOKENS
    prompts = ["The cat sat on the", LONG, "I", "The cat sat on the"]
    together = writer.generate(prompts)
    for prompt, found in zip(prompts, together, strict=True):
        read = len(writer.tokenizer.encode(prompt)) + 1
        assert len(found.tokens) <= table - read
        assert found.tokens == writer.generate([prompt])[0].tokens
    assert "".join(writer.stream(LONG)) == together[1].text


def test_a_number_that_is_asked_for_is_kept_or_refused(writer) -> None:
    assert len(writer.generate(["I"], max_length=3)[0].tokens) <= 3
    with pytest.raises(ModelError, match="Ask for at most"):
        writer.generate(["I"], max_length=200)
    with pytest.raises(ModelError, match="Give a prompt of less than"):
        writer.generate([LONG * 3])


def test_the_command_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "english", "--prompt", "The cat sat on the", "--device", "cpu"]
    assert main(words) == 0
    assert capsys.readouterr().out.strip()
