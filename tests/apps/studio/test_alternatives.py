"""Other words at a place of a translation, against a whole forward pass."""

from __future__ import annotations

import pytest
import torch

from heedful.apps.studio.alternatives import find_alternatives
from heedful.errors import DataError
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.pipelines.translation import TranslationPipeline
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

WORDS = ["the cat sat on a mat", "a dog ran", "dogs and cats", "on the mat sat a dog"]
SOURCE = "the dog sat"


@pytest.fixture(scope="module")
def pipeline() -> TranslationPipeline:
    tokenizers = train_pair(TokenizerSpec(vocabulary_size=60), WORDS * 3, WORDS * 3)
    shape = TranslatorShape(
        width=16, encoder_layers=1, decoder_layers=1, num_heads=2, feedforward=32, dropout=0.0,
        max_length=24,
    )  # fmt: skip
    torch.manual_seed(5)
    model = Translator(
        translator_spec(shape, tokenizers.source.size, tokenizers.target.size)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return TranslationPipeline(model, tokenizers)


def next_probabilities(pipeline: TranslationPipeline, before: str) -> torch.Tensor:
    """Of every piece after a beginning, by the decoder over all of it at once."""
    source, target = pipeline.tokenizers.source, pipeline.tokenizers.target
    ids = torch.tensor([[*source.encode(SOURCE), source.eos]])
    beginning = torch.tensor([[target.bos, *target.encode(before)]])
    model = pipeline.models[0]
    with torch.inference_mode():
        memory = model.encode(ids, torch.arange(ids.shape[1])[None])
        hidden = model.decode(memory, beginning, torch.arange(beginning.shape[1])[None])
        return model.logits(hidden)[0, -1].softmax(-1)


@pytest.mark.parametrize("before", ["", "the", "cats sat on"])
def test_probabilities_are_the_models(pipeline: TranslationPipeline, before: str) -> None:
    found = find_alternatives(pipeline, SOURCE, before, count=5)
    expected = next_probabilities(pipeline, before)
    target = pipeline.tokenizers.target
    specials = {target.pad, target.bos, target.eos}
    word_pieces = [
        piece
        for piece in range(target.size)
        if piece not in specials and (not before or target.token(piece).startswith("\u2581"))
    ]
    for each in found:
        # A word may be cut in several ways; it begins with one of these pieces.
        begins = [
            piece
            for piece in word_pieces
            if each.word.startswith(target.token(piece).removeprefix("\u2581"))
        ]
        chances = expected[begins if each.word else [target.eos]]
        assert float((chances - each.probability).abs().min()) < 1e-5
    best = float(expected[[*word_pieces, target.eos]].max())
    assert found[0].probability == pytest.approx(best, abs=1e-5)
    chances = [each.probability for each in found]
    assert chances == sorted(chances, reverse=True)


@pytest.mark.parametrize("before", ["", "the", "cats sat on"])
def test_translations_begin_as_asked(pipeline: TranslationPipeline, before: str) -> None:
    found = find_alternatives(pipeline, SOURCE, before, count=8)
    assert len({each.word for each in found}) == len(found) >= 3
    for each in found:
        begun = [*before.split(), *([each.word] if each.word else [])]
        assert str(each.translation).split()[: len(begun)] == begun


def test_the_end_is_an_alternative_too(pipeline: TranslationPipeline) -> None:
    everything = find_alternatives(pipeline, SOURCE, "the cat", count=60)
    (end,) = [each for each in everything if each.word == ""]
    assert str(end.translation) == "the cat"
    target = pipeline.tokenizers.target
    assert end.probability == pytest.approx(
        float(next_probabilities(pipeline, "the cat")[target.eos])
    )
    ids = target.encode("the cat")
    assert end.translation.score == pytest.approx(
        pipeline.score([SOURCE], [ids])[0].score, abs=1e-5
    )


def test_lines_that_are_too_long_are_refused(pipeline: TranslationPipeline) -> None:
    with pytest.raises(DataError, match="24"):
        find_alternatives(pipeline, "cat " * 60, "")
    assert find_alternatives(pipeline, " \n ", "") == []
