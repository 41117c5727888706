"""Without a number of new tokens, a continuation takes what the positions of the model leave."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful.cli.main import main
from heedful.errors import ModelError
from heedful.models.build import build_model
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.search.search_settings import NEW_TOKENS
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

LONG = "Tom asked Mary whether she would like to come to the party with him. "
PROMPTS = ["The cat sat on the", LONG * 4, "I", "The cat sat on the"]


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """An untrained writer with a table of 97 positions."""
    torch.manual_seed(2)
    spec = TokenizerSpec(vocabulary_size=120, normalization="none")
    tokenizers = train_pair(spec, PROMPTS * 3, PROMPTS * 3)
    shape = TranslatorShape(
        width=32, decoder_layers=2, num_heads=2, feedforward=64, positions="learned"
    )
    model = build_model(causal_lm_spec(shape, tokenizers.source.size, 97))
    directory = tmp_path_factory.mktemp("writer")
    save_model(model, tokenizers, directory)
    return heedful.load(directory, device="cpu")


@pytest.mark.filterwarnings("ignore::heedful.pipelines.text_pipeline.LongerThanTraining")
def test_prompts_of_any_length_are_continued_within_the_positions(writer) -> None:
    table = writer.model.spec.embedding.positions.max_length
    assert table < NEW_TOKENS
    together = writer.generate(PROMPTS)
    for prompt, found in zip(PROMPTS, together, strict=True):
        read = len(writer.tokenizer.encode(prompt)) + 1
        assert len(found.tokens) <= table - read
        assert found.tokens == writer.generate([prompt])[0].tokens
    assert "".join(writer.stream(PROMPTS[1])) == together[1].text


@pytest.mark.filterwarnings("ignore::heedful.pipelines.text_pipeline.LongerThanTraining")
def test_a_number_that_is_asked_for_is_kept_or_refused(writer) -> None:
    assert len(writer.generate(["I"], max_length=3)[0].tokens) <= 3
    with pytest.raises(ModelError, match="Ask for at most"):
        writer.generate(["I"], max_length=200)
    with pytest.raises(ModelError, match="Give a prompt of less than"):
        writer.generate([LONG * 12])


def test_the_command_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "english", "--prompt", "The cat sat on the", "--device", "cpu"]
    assert main(words) == 0
    assert capsys.readouterr().out.strip()
