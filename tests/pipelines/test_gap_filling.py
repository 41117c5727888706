"""What stands in the gaps of texts, read from what an encoder-decoder writes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

import heedful
from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.pipelines.gap_filling import GapPipeline, after_sentinels, between
from heedful.pipelines.text_encoding import EncoderPipeline
from heedful.search.scoring import score_targets
from heedful.search.search_settings import Hypothesis
from heedful.text.imported_tokenizer import Frame, ImportedTokenizer
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

WORDS = ["the", "cat", "sat", "on", "mat"]
ids = st.lists(st.integers(10, 14), max_size=4).map(tuple)


def trained(gaps: int) -> TextTokenizer:
    text = [" ".join(WORDS)] * 3
    return train_tokenizer(TokenizerSpec(vocabulary_size=60), text).with_sentinels(gaps)


def like_t5() -> ImportedTokenizer:
    pieces = ["<pad>", "</s>", "<unk>", *(f"▁{word}" for word in WORDS)]
    pieces += [f"<extra_id_{n}>" for n in reversed(range(4))]
    library = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=2))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens(
        [AddedToken(p, special=True, lstrip=True) for p in pieces if p.startswith("<")]
    )
    special = {"pad": 0, "bos": 0, "eos": 1, "unk": 2}
    return ImportedTokenizer(special, Frame((), (1,)), json.loads(library.to_str()))


def like_bart() -> ImportedTokenizer:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *WORDS, "<mask>"]
    library = tokenizers.Tokenizer(
        models.WordLevel({piece: id for id, piece in enumerate(pieces)}, unk_token="<unk>")
    )
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens([AddedToken("<mask>", special=True, lstrip=True)])
    special = {"bos": 2, "pad": 1, "eos": 2, "unk": 3, "mask": len(pieces) - 1}
    return ImportedTokenizer(special, Frame((0,), (2,)), json.loads(library.to_str()))


def pipeline(tokenizer: TextTokenizer, seed: int = 0) -> GapPipeline:
    shape = TranslatorShape(
        width=16, encoder_layers=1, decoder_layers=1, num_heads=2, feedforward=16
    )
    torch.manual_seed(seed)
    model = Translator(translator_spec(shape, tokenizer.size, tokenizer.size))
    with torch.no_grad():
        model.target_embedding.weight.mul_(3)  # sure of what it says
    return GapPipeline(model.eval(), tokenizer)


@settings(max_examples=150)
@given(fills=st.lists(ids, min_size=1, max_size=4), data=st.data())
def test_fills_are_found_between_the_known_parts(fills, data) -> None:
    # Parts of other ids than the fills; those inside hold one at least, to be told apart.
    inside = st.lists(st.integers(20, 22), min_size=1, max_size=3).map(tuple)
    parts = [data.draw(inside) for _ in fills[1:]]
    parts.append(data.draw(st.lists(st.integers(20, 22), max_size=3).map(tuple)))
    tokens = tuple(id for pair in zip(fills, parts, strict=True) for part in pair for id in part)
    assert between(tokens, parts) == fills
    assert between((*tokens, 30), parts) == ([] if parts[-1] else [*fills[:-1], (*fills[-1], 30)])
    assert between(tokens, [(31,), *parts]) == []


@settings(max_examples=100)
@given(fills=st.lists(ids, min_size=1, max_size=4), missing=st.integers(0, 4))
def test_fills_are_found_after_their_sentinels(fills, missing) -> None:
    sentinels = [40, 39, 38, 37, 36, 35]
    tokens = [id for n, fill in enumerate(fills) for id in (sentinels[n], *fill)]
    closed = (*tokens, sentinels[len(fills)])
    for target in (tuple(tokens), closed, (*closed, 11)):
        assert after_sentinels(target, sentinels, len(fills)) == fills
    # Without a sentinel nobody knows where the gap before it ends, nor where its own begins.
    lacking = tuple(id for id in closed if id != sentinels[missing])
    told = fills if missing >= len(fills) else fills[: max(0, missing - 1)]
    assert after_sentinels(lacking, sentinels, len(fills)) == told


@pytest.mark.parametrize("tokenizer", [trained(4), like_t5()], ids=["trained", "imported"])
def test_each_gap_has_its_sentinel(tokenizer: TextTokenizer) -> None:
    filler = pipeline(tokenizer)
    item = filler._gapped("the [MASK] sat [MASK] mat", "line 1")
    first, second, *_ = tokenizer.sentinels
    the, sat, mat = (tokenizer.encode(f"{word}") for word in ("the", "sat", "mat"))
    assert item.ids == [*the, first, *sat, second, *mat]
    assert item.prefix == [first]
    own = filler.tokenizer.encode_masked("[MASK]", "[MASK]", [second])
    assert own == [second]


@pytest.mark.parametrize("tokenizer", [trained(1), like_bart()], ids=["trained", "imported"])
def test_all_gaps_have_the_same_mask(tokenizer: TextTokenizer) -> None:
    item = pipeline(tokenizer)._gapped("the [MASK] sat [MASK] mat", "line 1")
    mask = tokenizer.size - 1
    the, sat, mat = (tokenizer.encode(f"{word}") for word in ("the", "sat", "mat"))
    assert item.ids == [*the, mask, *sat, mask, *mat]
    # BART's decoder begins with </s> and then says <s>.
    assert item.prefix == ([] if tokenizer.first == () else [0]) + the
    assert item.parts == [tuple(the), tuple(sat), tuple(mat)]


def test_an_imported_models_own_spelling_is_a_gap() -> None:
    for tokenizer, text in ((like_t5(), "the <extra_id_0> sat"), (like_bart(), "the <mask> sat")):
        filler = pipeline(tokenizer)
        assert filler._gapped(text, "") == filler._gapped("the [MASK] sat", "")
    with pytest.raises(DataError, match=r"line 7.*order"):
        pipeline(like_t5())._gapped("the <extra_id_1> sat", "line 7")


def test_probabilities_are_those_of_the_answers_found() -> None:
    tokenizer = trained(4)
    filler = pipeline(tokenizer)
    first, second, third, _ = tokenizer.sentinels
    (cat,), (mat,), (sat,) = (tokenizer.encode(word) for word in ("cat", "mat", "sat"))

    def answer(*tokens: int, probability: float) -> Hypothesis:
        score = math.log(probability)
        scores = (-5.0, *[0.0] * (len(tokens) - 1), score)  # the first token was forced
        return Hypothesis(tokens, score - 5, 0.0, scores, finished=True)

    item = filler._gapped("the [MASK] on [MASK]", "")
    answers = [
        answer(first, cat, second, mat, third, probability=0.4),
        answer(first, cat, sat, second, mat, third, probability=0.3),
        answer(first, cat, second, third, probability=0.2),
        answer(first, cat, sat, probability=0.05),
    ]
    one, two = filler._candidates(item, answers, 5)
    assert [(c.token, round(c.probability, 6)) for c in one] == [("cat", 0.6), ("cat sat", 0.35)]
    assert [(c.token, round(c.probability, 6)) for c in two] == [("mat", 0.7), ("", 0.2)]
    assert len(filler._candidates(item, answers, 1)[0]) == 1


@pytest.mark.parametrize("tokenizer", [trained(4), like_bart()], ids=["sentinels", "mask"])
def test_answers_have_the_models_own_probability(tokenizer: TextTokenizer) -> None:
    """Against forced scoring of the whole target."""
    filler = pipeline(tokenizer, seed=3)
    item = filler._gapped("the [MASK]", "")
    (best, *_), *_ = filler.fill(["the [MASK]"], top=30)[0]
    source = torch.tensor([[*tokenizer.first, *item.ids, *tokenizer.last]])
    positions = torch.arange(source.shape[1])[None]
    settings_ = {"beam": 30, "n_best": 30, "length_penalty": 0.0}
    answers = filler._search([item], heedful.search.search_settings.SearchSettings(**settings_))[0]
    scores = score_targets(
        filler.model,
        source.expand(len(answers), -1),
        positions.expand(len(answers), -1),
        [answer.tokens for answer in answers],
        filler.specials,
    )
    total = 0.0
    for answer, each in zip(answers, scores, strict=True):
        assert answer.tokens[: len(item.prefix)] == tuple(item.prefix)
        tokens = answer.tokens[len(item.prefix) :]
        if tokenizer.sentinels:
            tokens, *_ = [*after_sentinels(answer.tokens, tokenizer.sentinels, 1), None]
        if tokens is not None and tokenizer.decode(tokens).strip() == best.token:
            total += math.exp(sum(each[len(item.prefix) :]))
    assert best.probability == pytest.approx(total, rel=1e-4)


def test_batches_and_empty_lines_change_nothing() -> None:
    filler = pipeline(trained(4))
    texts = ["the [MASK] sat", "", "[MASK] on the mat the cat sat [MASK]", "  ", "[MASK]"]
    together = filler.fill(texts)
    assert [len(gaps) for gaps in together] == [1, 0, 2, 0, 1]
    for options in ({"batch_size": 1}, {"batch_tokens": 40}):
        apart = filler.fill(texts, **options)
        assert [[[c.token for c in gap] for gap in gaps] for gaps in apart] == [
            [[c.token for c in gap] for gap in gaps] for gaps in together
        ]


def test_mistakes_are_told(tmp_path: Path, make_encoder) -> None:
    filler = pipeline(trained(4))
    with pytest.raises(DataError, match=r"line 3: There is no \[MASK\]"):
        filler.fill(["[MASK]", "the cat"], first_line=2)
    with pytest.raises(DataError, match="tells 3 gaps apart, and the text has 4"):
        filler.fill(["[MASK] [MASK] [MASK] [MASK]"])
    with pytest.raises(ConfigError, match="top = 0"):
        filler.fill(["[MASK]"], top=0)
    with pytest.raises(ConfigError, match="batch_size = 0"):
        filler.fill(["[MASK]"], batch_size=0)
    with pytest.raises(ModelError, match="token head"):
        filler.require("token")
    plain = trained(0)
    model = pipeline(trained(4)).model
    spec = model.spec.model_copy(
        update={"source_vocabulary": plain.size, "target_vocabulary": plain.size}
    )
    save_model(Translator(spec), TokenizerPair(plain, plain), tmp_path / "plain")
    with pytest.raises(ModelError, match="no mask and no sentinels"):
        heedful.load(tmp_path / "plain").fill(["a [MASK]"])
    assert isinstance(heedful.load(make_encoder(tmp_path / "encoder")), EncoderPipeline)
