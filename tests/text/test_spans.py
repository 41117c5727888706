"""Where in a text each piece comes from."""

from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from heedful.text.imported_tokenizer import Frame, ImportedTokenizer
from heedful.text.pretokenization import MARK
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

TEXTS = ["the cat sat", "The Cats, the CAFÉ and İstanbul!", "low lower lowest \u2581 12"]


@pytest.fixture(scope="module")
def trained():
    return {
        (kind, lowercase): train_tokenizer(
            TokenizerSpec(kind=kind, lowercase=lowercase, vocabulary_size=size), TEXTS * 3
        )
        for kind, size in (("bpe", 60), ("byte-bpe", 300), ("unigram", 60), ("characters", 60))
        for lowercase in (False, True)
    }


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "byte-bpe"])
@given(text=st.text(alphabet="the catsCAFÉİΣ\u2581,!", max_size=12))
@settings(max_examples=40)
def test_spans_hold_what_the_pieces_say(trained, kind, lowercase, text):
    tokenizer = trained[kind, lowercase]
    ids, spans = tokenizer.encode_spans(text)
    assert ids == tokenizer.encode(text)
    assert len(ids) == len(spans)
    ends = [end for _, end in spans]
    assert ends == sorted(ends)
    assert not text or (spans[0][0], spans[-1][1]) == (0, len(text))
    for id, (start, end) in zip(ids, spans, strict=True):
        assert 0 <= start <= end <= len(text)
        piece, cut = tokenizer.token(id), text[start:end]
        if id == tokenizer.unk or "\ufffd" in piece or (lowercase and "\u0130" in cut):
            continue  # a part of a character
        cut = cut.lower() if lowercase else cut
        swapped = {" ": MARK} if kind == "byte-bpe" else {" ": MARK, MARK: " "}
        cut = cut.translate(str.maketrans(swapped))
        # A line gets a space put before it.
        assert piece == cut or (start == 0 and kind != "characters" and piece == MARK + cut)


def test_spans_of_an_imported_tokenizer_are_of_the_original_text(make_wordpiece):
    text = " The  CAFÉS\u0301 \x00[MASK]."
    tokenizer = make_wordpiece()
    ids, spans = tokenizer.encode_spans(text)
    assert ids == tokenizer.encode(text)
    cut = [text[start:end] for start, end in spans]
    assert tokenizer.pieces(ids) == ["the", "cafe", "##s", "[MASK]", "."]
    assert [part.strip("\u0301") for part in cut] == ["The", "CAFÉ", "S", "[MASK]", "."]


def test_a_code_before_a_text_is_one_piece():
    library = tokenizers.Tokenizer(models.WordLevel({"the": 0, "cat": 1, "?": 2}, unk_token="?"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    ids = {"?": 0, ">>fra<<": 1, "cat": 2, "the": 3}
    special = {"pad": 0, "bos": 0, "eos": 0, "unk": 0}
    tokenizer = ImportedTokenizer(special, Frame(), json.loads(library.to_str()), ids)
    assert tokenizer.encode_spans(">>fra<< the cat") == ([1, 3, 2], [(0, 7), (8, 11), (12, 15)])
    assert tokenizer.encode_spans("the cat") == ([3, 2], [(0, 3), (4, 7)])
    for text in (">>fra<< the cat", ">>deu<<the", "cat"):
        assert tokenizer.encode_spans(text)[0] == tokenizer.encode(text)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte-bpe", "characters"])
def test_a_mask_stands_for_a_piece_and_the_space_before_it(trained, kind, lowercase):
    tokenizer = trained[kind, lowercase].for_encoder()
    whole, mask = tokenizer.encode("the cat sat"), tokenizer.mask
    assert tokenizer.encode_masked("the cat sat", "[MASK]") == whole
    spaced = [] if kind != "characters" else tokenizer.encode(" ")
    the, sat = tokenizer.encode("the"), tokenizer.encode("sat")
    assert tokenizer.encode_masked("the [MASK] sat", "[MASK]") == [
        *(the + spaced),
        mask,
        *(spaced + sat),
    ]
    assert tokenizer.encode_masked("[MASK]", "[MASK]") == [mask]
    assert tokenizer.encode_masked("[MASK] [MASK] sat", "[MASK]") == [
        mask,
        *spaced,
        mask,
        *(spaced + sat),
    ]
    (comma,) = tokenizer.encode("cat,")[-1:]
    assert tokenizer.encode_masked("the [MASK],", "[MASK]") == [*(the + spaced), mask, comma]
