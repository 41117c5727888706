"""The leaves of bracketed trees."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "trees.py"


@pytest.fixture(scope="module")
def leaves():
    spec = importlib.util.spec_from_file_location("trees", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda tree: list(module.leaves(tree))


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ("(ROOT (NP (NN Rain)))", [("Rain", "NN")]),
        (
            "(S (NP-SBJ (PRP It))(VP (VBZ rains)) (. .))",
            [("It", "PRP"), ("rains", "VBZ"), (".", ".")],
        ),
        ("( (S (NN a)) )", [("a", "NN")]),  # the outermost bracket may have no label
        ("(X (-LRB- -LRB-) (-RRB- ]) (NN -x-))", [("(", "-LRB-"), ("]", "-RRB-"), ("-x-", "NN")]),
        ("(S (-NONE- *T*-1) (NN b))", [("b", "NN")]),
        ("(S\n\t(NN  \u00e9))", [("\u00e9", "NN")]),
        ("", []),
    ],
)
def test_words_and_tags(leaves, tree, expected):
    assert leaves(tree) == expected


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ("(S (NN a)", "1 brackets are not closed"),
        ("(S (NN a)))", "not opened"),
        ("(S (NN a b))", "not 'NN a b'"),
    ],
)
def test_what_is_no_tree(leaves, tree, told):
    with pytest.raises(ValueError, match=told):
        leaves(tree)
