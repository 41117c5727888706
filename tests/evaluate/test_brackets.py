"""PARSEVAL's labelled brackets by EVALB's rules, and codes of trees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import DataError
from heedful.evaluate.brackets import BracketF1, Tree, brackets, coded_tree, read_tree, tree_code
from heedful.evaluate.corpus_metrics import corpus_scores

GOLD = "(TOP (S (NP-SBJ (NN Rain)) (ADVP=1 (RB now)) (VP (VBZ falls) (PRT (RP down))) (. .)))"


def f1(output: str, gold: str = GOLD) -> float:
    return corpus_scores([output], [gold], ("bracket_f1",))["bracket_f1"].score


def test_rules_of_evalb():
    tree = read_tree(GOLD)
    found = brackets(tree, [leaf.label == "." for leaf in tree.leaves()])
    # Neither TOP nor tags count, functions are cut off, PRT is ADVP, and the full stop is no word.
    assert found == {
        ("S", 0, 4): 1,
        ("NP", 0, 1): 1,
        ("ADVP", 1, 2): 1,
        ("VP", 2, 4): 1,
        ("ADVP", 3, 4): 1,
    }


@pytest.mark.parametrize(
    ("output", "score"),
    [
        (GOLD, 100.0),
        # Without the root, with other tags, and with the full stop in another place: no difference.
        ("(S (NP (X Rain)) (ADVP (X now)) (VP (X falls) (ADVP (X down)) (X .)))", 100.0),
        # Two right brackets, S and NP, of four and of five.
        ("(S (NP (X Rain)) (PP (X now)) (NP (X falls) (X down)) (X .))", 200 * 2 / 9),
        # A bracket twice is right once.
        ("(S (S (NP (NP (X Rain)) (X now)) (X falls) (X down)) (X .))", 200 * 2 / 9),
        ("(S (NP (X Rain) (X now) (X falls) (X down)))", 0.0),  # a word is missing
        ("(S (NP (X Rain)", 0.0),
        ("", 0.0),
    ],
)
def test_f1(output, score):
    assert f1(output) == pytest.approx(score)


def test_a_bracket_around_punctuation_does_not_count():
    gold = "(S (NP (NN Rain)) (PRN (, ,)))"
    assert f1("(S (NP (X Rain)) (X ,))", gold) == 100
    assert f1("(S (NP (X Rain)) (VP (X ,)))", gold) == 100


def test_f1_is_that_of_all_brackets_together():
    right, wrong = "(S (NP (X a)) (VP (X b)))", "(S (X c))"
    found = corpus_scores([right, wrong], [right, "(NP (X c))"], ("bracket_f1",))["bracket_f1"]
    assert found.score == pytest.approx(200 * 3 / 8)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(S (NN a)", "1 brackets are not closed"),
        ("(S (NN a)))", "not opened"),
        ("(S (NN a b))", "'b' has no tag"),
        ("(S (NN a)) (S (NN b))", "2 trees"),
        ("a", "'a' has no tag"),
        ("(S (-NONE- *))", "0 trees"),
    ],
)
def test_what_is_no_tree(text, problem):
    with pytest.raises(DataError, match=problem):
        read_tree(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("( (S (NN a)) )", [("a", "NN")]),  # the outermost bracket may have no label
        (
            "(X (-LRB- -LRB-) (-RRB- ]) (NN -x-))",
            [("-LRB-", "-LRB-"), ("]", "-RRB-"), ("-x-", "NN")],
        ),
        ("(S (NP (-NONE- *T*-1)) (NN b))", [("b", "NN")]),
        ("(S\n\t(NN  \u00e9)(. .))", [("\u00e9", "NN"), (".", ".")]),
    ],
)
def test_words_and_tags(text, words):
    assert [(leaf.word, leaf.label) for leaf in read_tree(text).leaves()] == words


def trees() -> st.SearchStrategy[Tree]:
    words = st.sampled_from(["a", "-x-", "3"]).map(lambda word: Tree("X", word=word))
    inner = st.recursive(
        words,
        lambda each: st.builds(
            Tree, st.sampled_from(["S", "NP"]), st.lists(each, min_size=1, max_size=4)
        ),
        max_leaves=12,
    )
    return st.builds(Tree, st.just("S"), st.lists(inner, min_size=1, max_size=4))


@given(trees())
def test_a_tree_is_read_from_its_text_and_from_its_code(tree):
    words = [leaf.word for leaf in tree.leaves()]
    assert str(read_tree(str(tree))) == str(tree)
    assert str(coded_tree(tree_code(tree), words)) == str(tree)
    assert BracketF1().score_of([str(tree)], [[str(tree)]]) == 100


def test_code_of_a_tree():
    assert tree_code(read_tree("(S (NP (NN Rain)) (VP (VBZ falls)))")) == "S NP 1 VP 2"


@pytest.mark.parametrize(
    "code", ["", "S 0", "S 2", "S 1 0", "0", "S 1 NP 1", "S NP 1 VP 1", "S 0 1 1"]
)
def test_what_is_no_code_of_two_words(code):
    with pytest.raises(DataError):
        coded_tree(code, ["a", "b"])
