"""Perplexity, bits per byte and the loss by position, against sums made one token at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import heedful
from heedful.apps.evaluation.text_likelihood import (
    loss_by_position,
    position_bins,
    pseudo_likelihood,
    text_likelihood,
)
from heedful.apps.evaluation.text_losses import text_windows
from heedful.errors import ConfigError, DataError
from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

TEXTS = ["grün und blau, über Äpfel", "der Ball", "a", "rot " * 12]
TRAINED = 8


def write_lm(directory: Path, **changes) -> Path:
    tokenizer = train_tokenizer(TokenizerSpec(kind="characters"), ["".join(TEXTS)] * 3)
    shape = TranslatorShape(width=16, decoder_layers=1, num_heads=2, feedforward=16, **changes)
    torch.manual_seed(3)
    model = CausalLM(causal_lm_spec(shape, tokenizer.size, TRAINED)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    save_model(model, TokenizerPair(tokenizer, tokenizer), directory)
    return directory


@pytest.fixture(scope="module")
def rotary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lm(tmp_path_factory.mktemp("lm") / "rotary", positions="rotary")


def token_losses(pipeline, text: str, length: int, stride: int) -> Iterator[tuple[int, float]]:
    """The position in its window and the loss of every token, by a pass for each of them."""
    tokenizer = pipeline.tokenizer
    ids = [tokenizer.bos, *tokenizer.encode(text), tokenizer.eos]
    for target in range(1, len(ids)):
        # The first window that holds the prediction.
        start = 0
        while start + length < target:
            start += stride
        seen = torch.tensor([[tokenizer.bos, *ids[start + 1 : target]]])
        with torch.no_grad():
            states = pipeline.model(seen, torch.arange(seen.shape[1])[None])
            scores = pipeline.model.logits(states)[0, -1].double()
        yield seen.shape[1], -float(scores.log_softmax(-1)[ids[target]])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 12), st.integers(1, 12))
def test_every_prediction_counts_once(counts, length, stride) -> None:
    stride = min(stride, length)
    seen = []
    for window in text_windows(counts, length, stride):
        assert window.start % stride == 0
        assert window.start <= window.scored < window.stop <= window.start + length
        seen += [(window.text, place) for place in range(window.scored, window.stop)]
    assert seen == [(text, place) for text, count in enumerate(counts) for place in range(count)]


@pytest.mark.parametrize("positions", ["transformer_xl", "alibi"])
def test_a_memory_reads_texts_as_wholes(tmp_path: Path, positions: str) -> None:
    """Whatever is read at once: the loss of a single pass over each text."""
    directory = write_lm(tmp_path / "lm", positions=positions, memory=3)
    pipeline = heedful.load(directory)
    expected = sum(
        loss for text in TEXTS for _, loss in token_losses(pipeline, text, length=99, stride=99)
    )
    for length, batch_tokens in ((5, 10), (8, 64), (99, 99)):
        found = text_likelihood(pipeline, TEXTS, length=length, batch_tokens=batch_tokens)
        assert found.negative_log_likelihood == pytest.approx(expected, rel=1e-5)
        assert (found.memory, found.plain()["memory"]) == (3, 3)
    with pytest.raises(ConfigError, match="With a memory of 3 tokens texts are read as wholes"):
        text_likelihood(pipeline, TEXTS, stride=2)


@pytest.mark.filterwarnings("ignore::heedful.pipelines.text_pipeline.LongerThanTraining")
@pytest.mark.parametrize(("length", "stride"), [(8, 8), (8, 3), (20, 5), (64, 64)])
def test_bits_are_those_of_a_sum_over_single_tokens(rotary: Path, length, stride) -> None:
    pipeline = heedful.load(rotary, device="cpu")
    found = text_likelihood(pipeline, TEXTS, length=length, stride=stride, batch_tokens=40)
    losses = [loss for text in TEXTS for _, loss in token_losses(pipeline, text, length, stride)]
    total = sum(losses)
    assert found.tokens == len(losses) == sum(len(text) + 1 for text in TEXTS)
    assert found.bytes == len("".join(TEXTS).encode()) > found.characters == len("".join(TEXTS))
    assert found.bits_per_byte == pytest.approx(total / found.bytes / math.log(2), rel=1e-5)
    assert found.bits_per_character == pytest.approx(
        total / found.characters / math.log(2), rel=1e-5
    )
    assert found.perplexity == pytest.approx(math.exp(total / len(losses)), rel=1e-5)
    assert found.lossless
    assert not found.unknown


def test_windows_are_by_default_those_the_model_was_made_for(rotary: Path) -> None:
    found = text_likelihood(heedful.load(rotary), TEXTS)
    assert (found.length, found.stride) == (TRAINED, TRAINED // 2)


def test_unknown_and_changed_characters_are_told(rotary: Path) -> None:
    pipeline = heedful.load(rotary)
    found = text_likelihood(pipeline, ["rot ☃ und ☃"])
    assert found.unknown == 2
    assert not found.lossless


def test_losses_by_position_are_means_of_single_tokens(rotary: Path) -> None:
    pipeline = heedful.load(rotary, device="cpu")
    rows = loss_by_position(pipeline, TEXTS, length=32, samples=50)
    assert [(row.first, row.last) for row in rows] == [(1, 8), (9, 16), (17, 32)]
    pairs = [pair for text in TEXTS for pair in token_losses(pipeline, text, 32, 32)]
    for row in rows:
        losses = [loss for place, loss in pairs if row.first <= place <= row.last]
        assert row.tokens == len(losses)
        assert row.loss.score == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        assert row.loss.low <= row.loss.score <= row.loss.high


@given(st.integers(1, 3000), st.none() | st.integers(1, 3000))
def test_bins_of_positions_ascend_to_the_length(length, trained) -> None:
    ends = position_bins(length, trained)
    assert ends == sorted(set(ends))
    assert ends[-1] == length
    assert trained is None or trained >= length or trained in ends


def test_positions_past_a_learned_table_are_a_row_or_an_error(tmp_path: Path) -> None:
    pipeline = heedful.load(write_lm(tmp_path / "m", positions="learned"))
    table = pipeline.model.spec.longest_text
    rows = loss_by_position(pipeline, TEXTS, length=32, samples=5)
    past = [row for row in rows if row.first > table]
    assert past[-1].last == 32
    assert all(row.loss is None and f"{table} learned" in row.problem for row in past)
    assert sum(row.tokens for row in rows) == sum(len(text) + 1 for text in TEXTS)
    with pytest.raises(ConfigError, match=f"learned {table} positions"):
        text_likelihood(pipeline, TEXTS, length=32)


def test_rows_that_no_text_reaches_say_so(rotary: Path) -> None:
    rows = loss_by_position(heedful.load(rotary), ["rot"], length=32, samples=5)
    assert [row.problem for row in rows] == [None, "no text is so long", "no text is so long"]


def test_windows_leave_no_token_out(rotary: Path) -> None:
    pipeline = heedful.load(rotary)
    with pytest.raises(ConfigError, match="would skip tokens"):
        text_likelihood(pipeline, TEXTS, length=8, stride=9)
    with pytest.raises(DataError, match="no text"):
        text_likelihood(pipeline, [""])


@pytest.mark.parametrize("scaling", ["linear", "ntk", "yarn"])
def test_stretched_positions_are_those_of_a_model_made_so(rotary: Path, scaling: str) -> None:
    plain = heedful.load(rotary, device="cpu").model
    found = heedful.load(rotary, device="cpu", rotary_scaling=scaling, rotary_factor=4).model
    ids, positions = torch.randint(0, 10, (2, 20)), torch.arange(20).expand(2, 20)
    shape = TranslatorShape(
        width=16, decoder_layers=1, num_heads=2, feedforward=16, positions="rotary",
        rotary_scaling=scaling, rotary_factor=4,
    )  # fmt: skip
    model, _ = heedful.models.checkpoint.load_model(rotary)
    made = CausalLM(causal_lm_spec(shape, plain.spec.vocabulary, TRAINED)).eval()
    made.load_state_dict(model.state_dict())
    with torch.no_grad():
        stretched = found.logits(found(ids, positions))
        torch.testing.assert_close(
            stretched, made.logits(made(ids, positions)), rtol=1e-4, atol=1e-4
        )
        assert not torch.allclose(stretched, plain.logits(plain(ids, positions)), atol=1e-3)


def test_a_scaling_comes_with_its_factor(rotary: Path, tmp_path: Path) -> None:
    for options in ({"rotary_scaling": "yarn"}, {"rotary_factor": 2.0}):
        with pytest.raises(ConfigError, match="its kind and its factor"):
            heedful.load(rotary, **options)
    alibi = write_lm(tmp_path / "m", positions="alibi")
    with pytest.raises(ConfigError, match="no rotary positions"):
        heedful.load(alibi, rotary_scaling="linear", rotary_factor=2)


def test_a_masked_model_predicts_each_token_from_the_others(encoder_directory: Path) -> None:
    pipeline = heedful.load(encoder_directory, device="cpu")
    texts = ["the cat sat on the mat", "a dog ran"]
    found = pseudo_likelihood(pipeline, texts, length=6, batch_tokens=16)
    total, tokens = 0.0, 0
    for text in texts:
        ids = pipeline.tokenizer.encode(text)
        for start in range(0, len(ids), 4):
            part = ids[start : start + 4]
            for place in range(len(part)):
                row = [2, *part, 3]
                row[place + 1] = pipeline.tokenizer.mask
                row = torch.tensor([row])
                with torch.no_grad():
                    segments = torch.zeros_like(row)
                    states = pipeline.model(row, torch.arange(row.shape[1])[None], segments)
                    logits = pipeline.model.masked_lm_logits(states)[0, place + 1]
                total -= float(logits.double().log_softmax(-1)[part[place]])
                tokens += 1
    assert found.tokens == tokens == 9
    assert found.negative_log_likelihood == pytest.approx(total, rel=1e-5)
    assert "pseudo_perplexity" in found.scores
