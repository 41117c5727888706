"""Searches that write codes of trees only."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import ModelError
from heedful.evaluate.brackets import coded_tree, read_tree, tree_code
from heedful.search.dispatch import search
from heedful.search.search_settings import SearchSettings, Specials
from heedful.search.tree_grammar import TreeGrammar, TreeModel

PAD, BOS, EOS, S, NP, VP = range(6)
CLOSINGS = {number: 6 + number for number in range(4)}
V = 12  # the last two are tokens of other texts
NAMES = {S: "S", NP: "NP", VP: "VP"} | {token: str(n) for n, token in CLOSINGS.items()}


def grammar() -> TreeGrammar:
    return TreeGrammar([S, NP, VP], CLOSINGS, EOS, V, torch.device("cpu"))


class Noise:
    """A model with fixed random logits for each step and sentence."""

    def __init__(self, seed: int, sentences: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.logits = 5 * torch.randn(sentences, 200, V, generator=generator)

    def start(self, source, source_positions):
        return torch.stack([torch.arange(len(source)), torch.zeros(len(source)).long()], 1)[:, None]

    def step(self, state, tokens):
        sentence, step = state[..., 0], state[..., 1]
        return self.logits[sentence, step].clone(), state + torch.tensor([0, 1])

    def reorder(self, state, rows):
        return state.flatten(0, 1)[rows]


@given(st.integers(0, 1000), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 3))
def test_whatever_the_model_prefers_a_tree_of_the_words_comes_out(seed, words, beam):
    source = torch.zeros(len(words), 2, dtype=torch.int64)
    model = TreeModel(Noise(seed, len(words)), grammar(), torch.tensor(words))
    settings = SearchSettings(beam=beam, max_length=grammar().most_tokens * max(words))
    found = search(model, source, source.clone(), settings, specials=Specials(PAD, BOS, EOS))
    for count, (best, *_) in zip(words, found, strict=True):
        code = " ".join(NAMES[token] for token in best.tokens)
        tree = coded_tree(code, ["a"] * count)
        assert tree_code(tree) == code
        assert len(list(tree.leaves())) == count


@given(st.integers(0, 1000), st.integers(1, 6))
def test_no_place_is_a_dead_end(seed, words):
    draw = torch.Generator().manual_seed(seed)
    places = grammar().beginning(torch.tensor([[words]]))
    for _ in range(grammar().most_tokens * words + 1):
        allowed = grammar().apply(torch.zeros(1, 1, V), places)[0, 0].isfinite().nonzero()[:, 0]
        assert len(allowed)
        token = allowed[torch.randint(len(allowed), (), generator=draw)]
        if token == EOS:
            break
        places = grammar().after(places, token[None, None])
    assert token == EOS


def test_tokens_of_a_tree_are_possible_in_turn():
    text = "(S (NP (X a) (NP (X b))) (VP (X c) (S (VP (X d)))))"
    by_name = {name: token for token, name in NAMES.items()}
    places = grammar().beginning(torch.tensor([[4]]))
    code = tree_code(read_tree(text)).replace("4", "3")
    assert code == "S NP 0 NP 2 VP 0 S VP 3"  # four would close more than a token can
    for name in ["S", "NP", "0", "NP", "2", "VP", "0", "VP", "3"]:
        assert grammar().apply(torch.zeros(1, 1, V), places)[0, 0, by_name[name]] == 0, name
        places = grammar().after(places, torch.tensor([[by_name[name]]]))
    final = grammar().apply(torch.zeros(1, 1, V), places)[0, 0]
    assert final.isfinite().nonzero().flatten().tolist() == [EOS]


def test_a_vocabulary_without_numbers_is_refused():
    with pytest.raises(ModelError, match="no code of trees"):
        TreeGrammar([S], {0: 6, 2: 7}, EOS, V, torch.device("cpu"))
