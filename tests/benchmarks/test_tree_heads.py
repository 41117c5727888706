"""Heads measured against trees: the pairs of words, their pieces, and what counts as right."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful import inspect

TREES = """\
# newdoc id = one
# text = The old man (a sailor) didn't see his dog.
1\tThe\tthe\tDET\tDT\t_\t3\tdet\t_\tEntity=(1-person-x
2\told\told\tADJ\tJJ\t_\t3\tamod\t_\t_
3\tman\tman\tNOUN\tNN\t_\t10\tnsubj\t_\tEntity=1)
4\t(\t(\tPUNCT\t-LRB-\t_\t6\tpunct\t_\tSpaceAfter=No
5\ta\ta\tDET\tDT\t_\t6\tdet\t_\tEntity=(1-person-y
6\tsailor\tsailor\tNOUN\tNN\t_\t3\tappos\t_\tEntity=1)|SpaceAfter=No
7\t)\t)\tPUNCT\t-RRB-\t_\t6\tpunct\t_\t_
8-9\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_
8\tdid\tdo\tAUX\tVBD\t_\t10\taux\t_\t_
9\tn't\tnot\tPART\tRB\tPolarity=Neg\t10\tadvmod\t_\t_
10\tsee\tsee\tVERB\tVB\t_\t0\troot\t_\t_
11\this\this\tPRON\tPRP$\tPerson=3|PronType=Prs\t12\tnmod:poss\t_\tEntity=(2-animal-x(1-person-z)
12\tdog\tdog\tNOUN\tNN\t_\t10\tobj\t_\tEntity=2)|SpaceAfter=No
13\t.\t.\tPUNCT\t.\t_\t10\tpunct\t_\t_

"""


@pytest.fixture(scope="module")
def program(pretrained: Callable[[str], Any]) -> Any:
    return pretrained("tree_heads")


@pytest.fixture
def sentence(program: Any, tmp_path: Path) -> Any:
    path = tmp_path / "trees.conllu.gz"
    path.write_bytes(gzip.compress(TREES.encode()))
    assert [*program.read_sentences(path, 12)] == []  # 13 words are too many
    (found,) = program.read_sentences(path, 13)
    return found


def test_relations_are_read_from_a_tree(sentence: Any) -> None:
    words = [sentence.text[start:end] for start, end in sentence.spans]
    named = {
        relation: {(words[one], words[other]) for one, others in pairs.items() for other in others}
        for relation, pairs in sentence.pairs.items()
    }
    assert named["determiner → noun"] == {("The", "man"), ("a", "sailor")}
    assert named["noun → adjective"] == {("man", "old")}
    assert named["subject → verb"] == {("man", "see")}
    assert named["verb → object"] == {("see", "dog")}
    assert named["negation → verb"] == {("n't", "see")}
    assert named["closing bracket → opening"] == {(")", "(")}
    assert named["pronoun → noun"] == {("his", "man"), ("his", "sailor")}


def test_words_that_share_a_piece_are_one_unit(program: Any) -> None:
    #       do  n't    go          ▁don   '       t       space   go
    found = program.units([(0, 2), (2, 5), (6, 8)], [(0, 3), (3, 4), (4, 5), (5, 6), (6, 8)])
    assert found == ([0, 0, 1], [[0, 1, 2], [3, 4]])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data())
def test_every_piece_is_in_one_unit(program: Any, lengths: list[int], data: st.DataObject) -> None:
    ends = np.cumsum(lengths).tolist()
    words = list(zip([0, *ends], ends, strict=False))
    cuts = sorted(data.draw(st.sets(st.integers(1, ends[-1]))) | {ends[-1]})
    unit_of, pieces_of = program.units(words, list(zip([0, *cuts], cuts, strict=False)))
    assert sorted(piece for pieces in pieces_of for piece in pieces) == list(range(len(cuts)))
    assert all(pieces_of)
    # Words of two units never share a piece.
    for word in range(1, len(words)):
        assert (unit_of[word] == unit_of[word - 1]) == (words[word][0] not in cuts)


def test_the_strongest_other_word_is_right(program: Any, sentence: Any) -> None:
    model = inspect.load("english-masked")
    found = program.pairs_found(model, "encoder", [sentence])
    # "n't" is of one unit with "did".
    (negation,) = found["negation → verb"]
    assert np.flatnonzero(negation.offsets).tolist() == [program.OFFSETS.index(1)]
    (pronoun,) = found["pronoun → noun"]  # man and sailor are right
    assert [program.OFFSETS[i] for i in np.flatnonzero(pronoun.offsets)] == [-7, -4]
    reading = inspect.read(model, sentence.text)
    pieces = [piece.strip("▁") for piece in reading.tokens("encoder").pieces]
    man, see = pieces.index("man"), pieces.index("see")
    weights = inspect.attention(model, reading, "encoder").weights
    (subject,) = found["subject → verb"]
    for layer, heads in enumerate(weights):
        for head, own in enumerate(heads):
            rivals = np.delete(own[man], [0, man, len(pieces) - 1])  # special tokens, the word
            # Words of one piece: only where no longer word may win does a piece decide.
            if own[man, see] > rivals.sum() / 2:
                assert subject.heads[layer, head]
            if own[man, see] < own[man, pieces.index("The")]:
                assert not subject.heads[layer, head]


def test_the_word_itself_is_left_out(
    program: Any, sentence: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def between(_: np.ndarray, rows: list[list[int]], columns: list[list[int]]) -> np.ndarray:
        assert len(rows) == len(columns) == 12  # "didn't" is one unit
        weights = np.eye(12)[None, None]  # each word looks at itself most
        weights[0, 0, 2, 8] = 0.5  # and "man" at "see"
        return weights

    monkeypatch.setattr(program, "between_words", between)
    found = program.pairs_found(inspect.load("english-masked"), "encoder", [sentence])
    assert found["subject → verb"][0].heads.tolist() == [[True]]
    assert found["object → verb"][0].heads.tolist() == [[False]]


def test_a_model_that_reads_on_is_asked_for_earlier_words(program: Any) -> None:
    pairs = {2: {0, 3}, 1: {3}}
    assert program._of_units(pairs, [0, 1, 2, 3], backwards=True) == [(2, [0])]
    assert program._of_units(pairs, [0, 1, 2, 2], backwards=False) == [(2, [0]), (1, [2])]


@given(st.integers(0, 2**32 - 1), st.sets(st.integers(1, 6)))
def test_attention_between_words_adds_up_to_that_of_pieces(
    program: Any, seed: int, cuts: set[int]
) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.ones(7), size=(2, 3, 7))
    words = [[*range(*ends)] for ends in zip([0, *sorted(cuts)], [*sorted(cuts), 7], strict=True)]
    between = program.between_words(weights, words, words)
    np.testing.assert_allclose(between.sum(axis=-1), 1)  # what a word gives, to all of them
    first, last = words[0], words[-1]
    expected = sum(weights[1, 2, i, j] for i in first for j in last) / len(first)
    assert between[1, 2, 0, -1] == pytest.approx(expected)


def test_senses_are_those_of_the_german_word(pretrained: Callable[[str], Any]) -> None:
    senses = pretrained("bank_senses")
    pairs = [
        ("The bank by the lake is wide.", "Das Ufer am See ist breit."),
        ("She went to the bank.", "Sie ging zur Bank."),
        ("The dog sat on the bench.", "Der Hund saß auf der Bank."),
        ("The bank by the bank is new.", "Die Bank am Ufer ist neu."),
    ]
    found = senses._by_sense(pairs)
    assert found == {"water": [pairs[0][0]], "money": [pairs[1][0]]}
    assert [senses.begins(source) for source, _ in pairs] == [True, False, False, True]


def test_equal_distances_are_half_right(
    pretrained: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    senses = pretrained("bank_senses")
    vectors = {"same": [0.0, 1.0], "near": [1.0, 0.1], "far": [-1.0, 0.0]}
    monkeypatch.setattr(
        senses, "_vectors", lambda _, texts: np.array([vectors[text] for text in texts])
    )
    means = {"water": np.array([1.0, 0.0]), "money": np.array([-1.0, 0.0])}
    tested = {"water": ["same", "near"], "money": ["far", "near"]}
    found = senses._shares(None, tested, means)
    assert (found["water"], found["money"]) == (0.75, 0.5)
