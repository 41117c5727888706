"""Whole tokens that are added to a trained tokenizer."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from heedful.errors import ConfigError
from heedful.text.imported_tokenizer import Frame, ImportedTokenizer
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer
from heedful.text.tokenizers_library import is_word

TEXTS = ["the cat sat on the mat", "a cat came, and the dog ran at a rat", "Tom: (cat) New dogs!"]
NEW = ["covid", "New York", "<name>", "@x", "猫"]
KINDS = ["bpe", "byte-bpe", "unigram", "characters"]
# Letters of the new tokens among them, so that they come about in part, and whole in words.
LINES = st.lists(
    st.sampled_from(
        ["the", "cat", "covid", "covids", "New", "York", "<name", ">", "@x", "猫猫", " "]
    )
    | st.text("catNYork <>@vid", max_size=6),
    max_size=7,
).map("".join)


def trained(kind: str, *, lowercase: bool = False) -> Tokenizer:
    spec = TokenizerSpec(kind=kind, vocabulary_size=300, lowercase=lowercase)  # type: ignore[arg-type]
    return train_tokenizer(spec, [*TEXTS, "vid york covi <>@x"])


OURS = {kind: trained(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_new_tokens_are_whole_and_come_after_the_others(kind: str) -> None:
    before = OURS[kind]
    now = before.extended([*NEW, "covid", "a"])
    assert now.size == before.size + len(NEW)
    for number, token in enumerate(NEW):
        assert now.encode(f"the {token} sat").count(before.size + number) == 1
        assert now.decode([before.size + number]) == token
        assert now.token(before.size + number).replace("\u2581", " ") == token
    again = Tokenizer.from_json(now.to_json())
    assert again.fingerprint == now.fingerprint
    assert again.encode("the covid sat") == now.encode("the covid sat")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(text=LINES)
def test_other_text_is_cut_as_before_and_nothing_is_lost(kind: str, text: str) -> None:
    before = OURS[kind]
    now = before.extended(NEW)
    ids = now.encode(text)
    old = before.encode(text)
    if all(id < before.size for id in ids):
        assert ids == old
    if before.unk not in ids:
        assert now.decode(ids) == text
    spans = now.encode_spans(text)
    assert spans[0] == ids
    for id, (start, stop) in zip(*spans, strict=True):
        if id >= before.size:
            assert text[start:stop] == now.decode([id])


def test_a_word_is_only_taken_as_a_word() -> None:
    now = OURS["bpe"].extended(["at", "<name>"])
    at = OURS["bpe"].size
    if now.size == at + 1:  # "at" was a piece
        at = -1
    assert now.encode("cat sat") == OURS["bpe"].encode("cat sat")
    assert [is_word(t) for t in ("at", "New York", "x1", "<name>", "@x", "猫")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_case_is_folded_where_the_tokenizer_folds_it() -> None:
    now = trained("bpe", lowercase=True).extended(["Covid"])
    assert now.size - 1 in now.encode("the COVID sat")


def test_bpe_dropout_leaves_new_tokens_whole() -> None:
    now = OURS["bpe"].extended(["covid"])
    text = "the covid cat (covid)"
    ids = now.encode_dropout(text, 0.5, seed=1)
    assert ids.count(now.size - 1) == 2
    assert now.decode(ids) == text
    assert now.encode_dropout(text, 0.0, seed=1) == now.encode(text)


def test_training_settings_refuse_what_no_line_can_hold() -> None:
    for wrong in ("", " a", "a\n", "a\nb"):
        with pytest.raises(ConfigError, match="extend"):
            TokenizerSpec.parse({"extend": [wrong]})


def byte_level() -> ImportedTokenizer:
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|end|>"]
    library = tokenizers.Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|end|>"])
    special = dict.fromkeys(("pad", "bos", "eos", "unk"), 256)
    return ImportedTokenizer(special, Frame(), json.loads(library.to_str()))


@settings(max_examples=30)
@given(text=LINES)
def test_imported_bytes_lose_nothing(text: str) -> None:
    before = byte_level()
    now = before.extended([*NEW, "éa"])
    ids = now.encode(text)
    assert now.decode(ids) == text
    assert now.decode([*ids, now.size - 1]) == text + "éa"
    if all(id < before.size for id in ids):
        assert ids == before.encode(text)


def test_an_imported_wordpiece_takes_them_in_any_case(make_wordpiece: Any) -> None:
    before = make_wordpiece()
    now = before.extended(["covid", "<name>", "cat"])  # "cat" is a piece
    assert now.size == before.size + 2
    ids = now.encode("The COVID cat <name>")
    assert ids == [before.encode("the")[0], before.size, before.encode("cat")[0], before.size + 1]
    again = ImportedTokenizer.from_json(now.to_json())
    assert again.encode("The COVID cat <name>") == ids
    assert now.decode(ids) == "the covid cat <name>"


def test_other_ids_than_the_librarys() -> None:
    """As Marian's, whose pieces have numbers in a file of their own."""
    library = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], 0))
    library.normalizer = normalizers.NFKC()
    ids = {"a": 0, "b": 1, "</s>": 2, "<unk>": 3, "<pad>": 4}
    special = {"pad": 4, "bos": 4, "eos": 2, "unk": 3}
    before = ImportedTokenizer(special, Frame((), (2,)), json.loads(library.to_str()), ids)
    now = before.extended(["ab", "<x>"])
    assert now.encode("a<x>b") == [0, 6, 1]
    assert now.encode("ab") == [5]
    assert now.size == 7
