"""Writing watched token by token: the same as the pipelines write, with real sizes beside it."""

from __future__ import annotations

import math

import pytest
import torch

from heedful.errors import ConfigError, DataError, ModelError
from heedful.inspect import tensors
from heedful.inspect.decoding_steps import END, follow_search, next_token
from heedful.pipelines.text_generation import generate
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.dispatch import search
from heedful.search.search_settings import SearchSettings

TEXT = "abc dag"
SHAPES = {"sinusoidal": {}, "learned": {"positions": "learned"}, "grouped": {"num_kv_heads": 2}}


def walk(subject, text, steps):
    """The most probable token each time."""
    chosen, found = [], []
    for _ in range(steps):
        found.append(next_token(subject, text, chosen))
        if found[-1].ended:
            break
        chosen.append(int(found[-1].scores.argmax()))
    return chosen, found


@pytest.mark.parametrize("shape", SHAPES)
def test_choosing_the_most_probable_is_greedy_translation(toys, shape):
    subject = toys.translator(**SHAPES[shape])
    pipeline = TranslationPipeline(subject.model, subject.tokenizers)
    expected = pipeline.translate([TEXT], beam=1, max_length=9)[0]
    chosen, found = walk(subject, TEXT, 10)
    tokens = [token for token in chosen if token != found[0].end][:9]
    assert subject.target.pieces(tokens) == list(expected.tokens)
    assert found[len(tokens)].text.strip() == str(expected)
    assert found[-1].chosen_scores[: len(tokens)] == pytest.approx(
        expected.token_scores[: len(tokens)], abs=1e-5
    )


@pytest.mark.parametrize("kind", ["translator", "causal_lm"])
def test_scores_are_those_of_the_whole_pass(toys, kind):
    subject = getattr(toys, kind)()
    _, found = walk(subject, TEXT, 5)
    for step in found:
        given = tensors(subject, [step.reading])
        with torch.inference_mode():
            logits = subject.model.logits(subject.model(*given)[0, -1])
        expected = logits.double().log_softmax(-1).tolist()
        told = step.scores.tolist()
        if kind == "translator":  # which never says what stands for no text
            expected[subject.target.pad] = expected[subject.target.bos] = -math.inf
        else:  # its end has a name of its own
            expected.append(expected[subject.target.eos])
            expected[subject.target.eos] = -math.inf
        assert told == pytest.approx(expected, abs=1e-5)
        assert step.names[step.end] == END


def test_the_most_probable_is_what_a_language_model_generates(toys):
    subject = toys.causal_lm()
    tokenizer = subject.source
    prompt = [tokenizer.bos, *tokenizer.encode(TEXT)]
    expected = generate(
        subject.model, [prompt], tokenizer, ends=(tokenizer.eos,), beam=1, max_length=6
    )[0]
    chosen, found = walk(subject, TEXT, 7)
    written = [token for token in chosen if token != found[0].end][:6]
    assert tuple(written) == expected.tokens
    assert found[len(written)].text == expected.text


def test_what_is_kept_is_counted(toys):
    subject = toys.translator(num_kv_heads=2)
    found = next_token(subject, TEXT, subject.target.encode("ab"))
    heads, width, layers, size = 2, 4, 3, 4
    assert [each.slots for each in found.cache_sizes] == [1, 2, 3]
    assert found.cache_sizes[-1].shape == (1, heads, 3, width)
    assert [each.bytes for each in found.cache_sizes] == [
        2 * layers * heads * slots * width * size for slots in (1, 2, 3)
    ]
    source = len(found.reading.encoder)
    assert found.memory_bytes == 2 * layers * heads * source * width * size
    subject = toys.causal_lm()
    prompt = 1 + len(subject.source.encode(TEXT))
    found = next_token(subject, TEXT, [5, 6])
    assert [each.slots for each in found.cache_sizes] == [prompt, prompt + 1, prompt + 2]
    assert found.memory_bytes == 0


def test_the_row_of_the_mask(toys):
    causal = next_token(toys.causal_lm(), "abc", [5], coming=2)
    assert causal.visible == (True,) * 5 + (False,) * 2
    window = {"kind": "all_of", "parts": [{"kind": "causal"}, {"kind": "window", "size": 3}]}
    block = {"self_attention": {"num_heads": 4, "mask": window}, "feedforward": {"width": 24}}
    subject = toys.causal_lm(decoder={"num_layers": 2, "block": block})
    found = next_token(subject, "abc", [5], coming=2)
    assert found.visible == (False, False, True, True, True, False, False)
    assert len(found.reading.decoder) == 5


@pytest.mark.parametrize("beam", [1, 3])
def test_a_search_that_is_followed_finds_the_same(toys, beam):
    settings = SearchSettings(beam=beam, n_best=beam, max_length=7)
    subject = toys.translator()
    reading = next_token(subject, TEXT).reading
    source, positions = tensors(subject, [reading])[:2]
    pipeline = TranslationPipeline(subject.model, subject.tokenizers)
    expected = search(subject.model, source, positions, settings, specials=pipeline.specials)[0]
    found = follow_search(subject, TEXT, settings)
    assert list(found.hypotheses) == expected
    assert found.texts[0].strip() == str(pipeline.translate([TEXT], settings=settings)[0])

    subject = toys.causal_lm()
    tokenizer = subject.source
    prompt = [tokenizer.bos, *tokenizer.encode(TEXT)]
    options = {"beam": beam, "n_best": beam, "max_length": 7}
    generated = generate(subject.model, [prompt], tokenizer, ends=(tokenizer.eos,), **options)[0]
    found = follow_search(subject, TEXT, settings)
    assert [each.tokens for each in found.hypotheses] == [each.tokens for each in generated.n_best]
    assert [each.score for each in found.hypotheses] == [each.score for each in generated.n_best]
    assert list(found.texts) == [each.text for each in generated.n_best]
    for hypothesis, path in zip(found.hypotheses, found.paths, strict=True):
        last = found.steps[len(path) - 1].ranked[path[-1]]
        assert last.tokens == hypothesis.tokens
        assert last.score == hypothesis.score


def test_a_search_goes_on_from_what_was_chosen(toys):
    for subject in (toys.translator(), toys.causal_lm()):
        chosen = subject.target.encode("dcb")
        found = follow_search(subject, TEXT, SearchSettings(beam=1), chosen=chosen)
        assert list(found.hypotheses[0].tokens[:3]) == chosen
        greedy = next_token(subject, TEXT, chosen)
        following = [*found.hypotheses[0].tokens, found.end][3]
        assert following == int(greedy.scores.argmax())


def test_wrong_requests_say_so(toys):
    with pytest.raises(ModelError, match="does not write"):
        next_token(toys.encoder(), TEXT)
    subject = toys.causal_lm(
        embedding={"positions": {"kind": "learned", "max_length": 12}}, max_length=12
    )
    with pytest.raises(DataError, match="more than the 12"):
        next_token(subject, TEXT, [5] * 9)
    with pytest.raises(ConfigError, match="write 4 after"):
        follow_search(subject, TEXT, SearchSettings(max_length=5))
    assert len(follow_search(subject, TEXT, SearchSettings(beam=1)).hypotheses[0].tokens) <= 4
    with pytest.raises(DataError, match="no text"):
        next_token(subject, " ")
    for wrong in (-1, 10_000, subject.model.spec.vocabulary):
        with pytest.raises(DataError, match=f"token {wrong}"):
            next_token(subject, TEXT, [wrong, 5])
    # The end token of a language model is never chosen itself: the end has an id past the table.
    for chosen in ([subject.target.eos], [5, subject.target.eos]):
        with pytest.raises(DataError, match=f"token {subject.target.eos}"):
            next_token(subject, TEXT, chosen)
    translator = toys.translator()
    with pytest.raises(DataError, match="token 0"):  # padding
        next_token(translator, TEXT, [translator.target.pad])
