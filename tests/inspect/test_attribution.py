"""Attribution of a prediction to the tokens and heads on which it rests."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heedful import inspect
from heedful.apps.pruning.ablation import ablated
from heedful.errors import DataError
from heedful.inspect.attribution import attribute, head_effects
from heedful.inspect.subject import Subject
from heedful.pretrained.catalogue import models_at_hand
from heedful.search.search_settings import SearchSettings

TEXT = "The cat sat on the mat because it was tired."


@pytest.fixture(scope="module", params=["en-de", "english"])
def subject(request: pytest.FixtureRequest) -> Subject:
    return inspect.load(models_at_hand()[request.param].path)


@pytest.fixture(scope="module")
def predicted(subject: Subject) -> tuple[inspect.NextToken, int, int]:
    """A prediction and its two best tokens."""
    translates = subject.model.spec.reads == "pairs"
    begun = subject.target.encode("Die Katze" if translates else "")
    found = inspect.next_token(subject, TEXT if translates else TEXT[:-8], begun)
    best = found.scores.argsort()[::-1]
    return found, int(best[0]), int(best[1])


def test_silence_is_a_pass_without_the_token(subject: Subject, predicted) -> None:
    found, token, other = predicted
    result = attribute(subject, found.reading, token, against=other)
    inputs = inspect.tensors(subject, [found.reading])
    assert result.value == pytest.approx(float(found.logits[token] - found.logits[other]), abs=1e-3)
    stacks = [*subject.model.stacks()]
    assert [*result.scores] == stacks
    for i, name in enumerate(stacks):
        hidden = [each.clone() for each in inputs]
        hidden[2 * i + 1][0, 1] = -1
        with torch.inference_mode():
            logits = subject.model.logits(subject.model(*hidden)[0, -1])
        expected = result.value - float(logits[token] - logits[other])
        assert result.scores[name][1] == pytest.approx(expected, abs=1e-3)
    assert result.scores["decoder"][-1] == 0


def test_integrated_gradients_add_up(subject: Subject, predicted) -> None:
    found, token, other = predicted
    for against in (None, other):
        result = attribute(
            subject, found.reading, token, against=against, way="gradients", steps=128
        )
        assert result.baseline is not None
        total = sum(float(each.sum()) for each in result.scores.values())
        change = result.value - result.baseline
        assert total == pytest.approx(change, abs=0.15 * max(1.0, abs(change)))
        # Begin and end tokens are the same in the baseline, so nothing rests on them.
        for name, scores in result.scores.items():
            special = np.array(found.reading.tokens(name).special)
            assert np.all(scores[special] == 0)


def test_the_effect_of_a_head_is_near_that_of_its_removal(subject: Subject, predicted) -> None:
    found, token, other = predicted
    effects = head_effects(subject, found.reading, token, against=other)
    value = attribute(subject, found.reading, token, against=other).value
    strongest = sorted(effects, key=lambda name: -abs(effects[name]))[:6]
    removed = []
    for name in strongest:
        with ablated(subject.model, [name]):
            removed.append(value - attribute(subject, found.reading, token, against=other).value)
    correlation = np.corrcoef([effects[name] for name in strongest], removed)[0, 1]
    assert correlation > 0.8


def test_looking_leaves_no_trace(subject: Subject, predicted) -> None:
    found, token, _ = predicted
    before = attribute(subject, found.reading, token).value
    attribute(subject, found.reading, token, way="gradients", steps=4)
    assert attribute(subject, found.reading, token).value == before
    assert all(each.grad is None for each in subject.model.parameters())


def test_unknown_tokens_are_refused(subject: Subject, predicted) -> None:
    with pytest.raises(DataError, match="no token"):
        attribute(subject, predicted[0].reading, 10**6)


def test_a_silent_word_changes_the_search() -> None:
    subject = inspect.load(models_at_hand()["en-de"].path)
    text = "I love cats."
    pieces = inspect.read(subject, text, "").tokens("encoder").pieces
    whole = inspect.follow_search(subject, text)
    assert inspect.follow_search(subject, text, silent=[]).texts == whole.texts
    without = inspect.follow_search(subject, text, silent=[pieces.index("▁cats")])
    assert "Katzen" in whole.texts[0]
    assert "Katzen" not in without.texts[0]


@pytest.mark.parametrize("place", [1, -2])
def test_a_silent_word_of_a_prompt_leaves_the_others_in_place(place: int) -> None:
    subject = inspect.load(models_at_hand()["english"].path)
    reading = inspect.next_token(subject, TEXT[:-8]).reading
    silent = range(len(reading.tokens("decoder").ids))[place]
    one = SearchSettings(beam=1, max_length=1)
    best = inspect.follow_search(subject, TEXT[:-8], one, silent=[silent]).hypotheses[0]
    found = attribute(subject, reading, best.tokens[0])
    expected = found.value - found.scores["decoder"][silent]
    assert best.token_scores[0] == pytest.approx(expected, abs=1e-4)


def test_a_prompt_needs_a_token_that_is_not_silent() -> None:
    subject = inspect.load(models_at_hand()["english"].path)
    every = range(len(inspect.read(subject, "A").tokens("decoder").ids))
    with pytest.raises(DataError, match="Every token of the prompt is silent"):
        inspect.follow_search(subject, "A", silent=every)
