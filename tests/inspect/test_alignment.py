"""Links by hand, heads chosen on made-up attention, and words from pieces."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful import inspect
from heedful.errors import ConfigError, DataError, ModelError
from heedful.inspect.word_alignment import (
    HeadChoice,
    WordAttention,
    align_words,
    choose_both,
    choose_heads,
    word_attention,
)
from heedful.inspect.word_links import alignment_error_rate, parse_pharaoh, pharaoh, symmetrize
from heedful.search.alignment import align

LINK_SETS = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


def links(text):
    return parse_pharaoh(text)[0]


# Drawn on paper: source words down, target words across; F forward only, B backward only, X both.
#      0  1  2  3  4
#  0   X  F  .  .  .
#  1   .  .  B  .  .
#  2   .  .  .  .  .
#  3   F  .  .  .  B
FORWARD, BACKWARD = links("0-0 0-1 3-0"), links("0-0 1-2 3-4")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("intersection", "0-0"),
        ("union", "0-0 0-1 1-2 3-0 3-4"),
        # 0-1 touches 0-0 and target word 1 has no link; then 1-2 touches 0-1.
        ("grow-diag", "0-0 0-1 1-2"),
        # Forward 3-0: source word 3 has none yet. Backward 3-4: then target word 4 has none.
        ("grow-diag-final", "0-0 0-1 1-2 3-0 3-4"),
        # 3-0 may not, as target word 0 has a link; both words of 3-4 have none.
        ("grow-diag-final-and", "0-0 0-1 1-2 3-4"),
    ],
)
def test_two_directions_made_one_by_hand(method, expected):
    assert pharaoh(symmetrize(FORWARD, BACKWARD, method)) == expected


def test_neighbours_need_a_word_without_links():
    # 0-1 touches 0-0, but source word 0 and target word 1 both have links already.
    forward, backward = links("0-0 1-1 0-1"), links("0-0 1-1")
    for method in ("grow-diag", "grow-diag-final", "grow-diag-final-and"):
        assert symmetrize(forward, backward, method) == links("0-0 1-1")


@given(LINK_SETS, LINK_SETS)
def test_what_holds_for_all_links(forward, backward):
    found = {
        method: symmetrize(forward, backward, method)
        for method in ("intersection", "grow-diag", "grow-diag-final-and", "union")
    }
    assert found["intersection"] == forward & backward
    assert found["union"] == forward | backward
    assert found["intersection"] <= found["grow-diag"] <= found["grow-diag-final-and"]
    final = symmetrize(forward, backward)
    assert found["grow-diag"] <= final <= found["union"]
    # After the last step every word that any direction links has a link.
    assert {s for s, _ in final} == {s for s, _ in found["union"]}
    assert {t for _, t in final} == {t for _, t in found["union"]}
    assert links(pharaoh(final)) == final


def test_unknown_method():
    with pytest.raises(ConfigError, match=r"Did you mean 'grow-diag-final'"):
        symmetrize([], [], "grow-dag-final")


def test_pharaoh_lines():
    assert parse_pharaoh("0-0 1?2 3p4") == (links("0-0"), frozenset({(0, 0), (1, 2), (3, 4)}))
    assert parse_pharaoh("") == (frozenset(), frozenset())
    with pytest.raises(DataError, match=r"gold line 3: '1:2' is no pair"):
        parse_pharaoh("0-0 1:2", "gold line 3")


def test_error_rate_by_hand():
    found = [links("0-0 1-1 2-2"), links("0-1")]
    sure = [links("0-0 1-1"), links("0-0 1-1")]
    possible = [links("0-0 1-1 2-2"), links("0-0 1-1")]
    # |A ∩ S| = 2, |A ∩ P| = 3, |A| = 4, |S| = 4
    assert alignment_error_rate(found, sure, possible) == pytest.approx(1 - 5 / 8)
    assert alignment_error_rate(found, sure) == pytest.approx(1 - 4 / 8)
    assert alignment_error_rate(sure, sure) == 0
    with pytest.raises(DataError, match="2 sentences, gold of 1"):
        alignment_error_rate(found, sure[:1])


LEXICON = {f"w{i}": f"v{i}" for i in range(12)}


def made_corpus(count=60, seed=0):
    """Pairs whose words are translated one by one and shuffled, with heads of known habits.

    Layer 0: head 0 follows the diagonal, head 1 looks at the first word, head 2 anywhere. Layer 1:
    heads 0 and 1 align, each for its own half of the words and at random for the others; head 2
    aligns all, but one row late.
    """
    rng = np.random.default_rng(seed)
    made, gold = [], []
    for _ in range(count):
        source = [f"w{i}" for i in rng.choice(12, size=6, replace=False)]
        order = rng.permutation(6)
        target = [LEXICON[source[i]] for i in order]
        weights = rng.dirichlet(np.ones(6), size=(2, 3, 2, 6)).astype(np.float32) * 0.4
        for row, true in enumerate(order):
            weights[0, 0, :, row, row] += 0.6
            weights[0, 1, :, row, 0] += 0.6
            half = int(source[true][1:]) % 2
            weights[1, half, 0, row, true] += 0.6
            weights[1, 2, 1, row, true] += 0.6
        made.append(WordAttention(tuple(source), tuple(target), weights))
        gold.append(frozenset((int(s), t) for t, s in enumerate(order)))
    return made, gold


def turned(made):
    return [WordAttention(a.target_words, a.source_words, a.weights.swapaxes(-1, -2)) for a in made]


def test_heads_are_found_without_gold_by_prediction():
    made, _ = made_corpus()
    found = choose_heads(made)
    assert (found.heads, found.row, found.criterion) == (((1, 2),), "reading", "prediction")
    assert found.score > 1.5
    for each in made:  # instead of the one that aligns all, one that does not
        each.weights[1, 2] = each.weights[0, 1]
    found = choose_heads(made)
    assert sorted(found.heads) == [(1, 0), (1, 1)]
    assert found.row == "predicting"


def test_links_at_random_predict_nothing():
    """Though they would, if they were tested on what their table was counted on."""
    made, _ = made_corpus()
    noise = [WordAttention(a.source_words, a.target_words, a.weights[:1, 2:]) for a in made]
    assert choose_heads(noise).score < 0.1


def test_heads_are_found_by_gold():
    made, gold = made_corpus()
    found = choose_heads(made, [(g, g) for g in gold])
    assert (found.heads, found.row, found.criterion) == (((1, 2),), "reading", "gold")
    own = [
        frozenset((int(s), int(t)) for t, s in np.argwhere(m)) for m in map(strongest(found), made)
    ]
    assert found.score == pytest.approx(1 - alignment_error_rate(own, gold))
    with pytest.raises(DataError, match="Gold links of 1"):
        choose_heads(made, [(gold[0], gold[0])])
    with pytest.raises(DataError, match="no link 9-0 in a pair of 6 and 6 words"):
        choose_heads(made[:1], [({(9, 0)}, set())])


def strongest(choice):
    def matrix(attention):
        found = choice.matrix(attention)
        return found == found.max(-1, keepdims=True)

    return matrix


def test_heads_are_found_by_agreement_that_is_not_the_diagonals():
    made, gold = made_corpus()
    other = turned(made_corpus()[0])
    forward, backward = choose_both(made, other)
    assert (forward.heads, forward.row) == (backward.heads, backward.row) == (((1, 2),), "reading")
    assert forward.criterion == backward.criterion == "agreement"
    assert forward.score > 0.8
    with pytest.raises(DataError, match="60 sentences in one direction, 59"):
        choose_both(made, other[1:])
    short = WordAttention(("a",), ("b",), np.ones((2, 3, 2, 1, 1), np.float32))
    with pytest.raises(DataError, match="sentence 2: The two models do not see the same words"):
        choose_both(made[:2], [other[0], short])
    assert len(gold) == 60


def test_words_from_pieces(toys):
    """Against the alignment of `translate --alignment`, which gathers by its own code."""
    subject = toys.translator()
    subject.source.first = (subject.source.bos,)
    pairs = [("ab cd", "hi j"), ("e", "kl m n"), ("a bc def", "g")]
    readings = inspect.read_all(subject, *map(list, zip(*pairs, strict=True)))
    found = word_attention(subject, readings, batch_tokens=1)
    for reading, words in zip(readings, found, strict=True):
        assert (" ".join(words.source_words), " ".join(words.target_words)) == (
            reading.text,
            reading.target,
        )
        source = (subject.source, reading.encoder.ids[1:-1], reading.text)
        target = (subject.target, reading.predicted.ids[:-1], reading.target)
        weights = inspect.attention(subject, reading).weights
        for layer, head, row in ((0, 0, 0), (2, 3, 1), (1, 1, 1)):
            expected = align(weights[layer, head, row:], source, target).matrix
            np.testing.assert_allclose(words.weights[layer, head, row], expected, rtol=1e-5)
    together = word_attention(subject, readings)
    for one, other in zip(found, together, strict=True):
        np.testing.assert_allclose(one.weights, other.weights, rtol=1e-5, atol=1e-6)


def test_a_corpus_is_aligned(toys, monkeypatch):
    monkeypatch.setattr("heedful.inspect.word_alignment.AT_ONCE", 2)
    subject, other = toys.translator(), toys.translator(num_heads=2)
    sources, targets = ["ab cd", "e", "a bc def"], ["hi j", "kl m n", "g"]
    readings = inspect.read_all(subject, sources, targets)
    heads = HeadChoice(((1, 2), (2, 0)), "reading", "gold", 0.0)
    found = align_words(subject, readings, heads=heads)
    for pair, words in zip(found.pairs, word_attention(subject, readings), strict=True):
        mean = (words.weights[1, 2, 1] + words.weights[2, 0, 1]) / 2
        assert pair.links == {(int(row.argmax()), t) for t, row in enumerate(mean)}
        assert pair.pharaoh == pharaoh(pair.links)
    assert found.forward == heads
    assert found.backward is None
    json.dumps(found.plain())
    back = (other, inspect.read_all(other, targets, sources))
    both = align_words(subject, readings, reverse=back, method="intersection")
    union = align_words(subject, readings, reverse=back, method="union")
    alone = align_words(subject, readings, heads=both.forward)
    reversed_ = align_words(*back, heads=both.backward)
    for b, u, one, two in zip(both.pairs, union.pairs, alone.pairs, reversed_.pairs, strict=True):
        exchanged = {(s, t) for t, s in two.links}
        assert b.links == one.links & exchanged
        assert u.links == one.links | exchanged
    with pytest.raises(DataError, match="3 pairs in one direction, 2"):
        align_words(subject, readings, reverse=(other, back[1][:2]))
    with pytest.raises(DataError, match="no words to choose heads on"):
        align_words(subject, [])
    causal = toys.causal_lm()
    with pytest.raises(ModelError, match="no cross attention"):
        align_words(causal, inspect.read_all(causal, ["ab"]))
