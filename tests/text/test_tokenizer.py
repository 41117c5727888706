"""The tokenizer: exact round trips, special tokens out of reach, one safe file."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heedful.errors import ConfigError, DataError, ModelError
from heedful.text.tokenizer import SCHEMA_VERSION, Tokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

KINDS = ("bpe", "byte-bpe", "unigram", "characters")
WORDS = ("whitespace", "punctuation")
LINES = [
    "a woman &apos;s dog runs across the green field .",
    "two men are playing football in the park, and one (the older) falls.",
    "ein mann spielt im grünen park fußball; zwei frauen sehen zu!",
    'Der Zug fährt um 17:45 Uhr ab... "Wirklich?" - Ja, um 17:45.',
    "it costs $12.50 or 11,90 € (about 10 %).",
    "the dog and the other dog run across the field and the park",
    "what?! no!! really... #hash @name a/b c_d <b>bold</b> x\u2581y\ttab",
]
KNOWN = sorted(set("".join(LINES)))


@cache
def trained(
    kind: str, words: str = "punctuation", lowercase: bool = False, normalization: str = "nfc-2"
) -> Tokenizer:
    settings = {"kind": kind, "words": words, "lowercase": lowercase}
    spec = TokenizerSpec.parse({**settings, "normalization": normalization, "vocabulary_size": 400})
    return train_tokenizer(spec, LINES * 3)


@given(text=st.text())
@example(text="")
@example(text="   leading, and   repeated  spaces ")
@example(text="\x00\x01\x7f\x85\u2028\r\n\t")
@example(text="\u0301 lone \u0301\u0308 marks")
@example(text="👩‍👩‍👧 🏳️‍🌈 \U0010ffff")
@example(text="東京は日本の首都です。\u3000全角")
@example(text="</s><pad> <unk>\u2581 \u0120")
@settings(max_examples=120)
def test_byte_level_is_lossless(text: str) -> None:
    for words in WORDS:
        tokenizer = trained("byte-bpe", words, normalization="none")
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text(alphabet=KNOWN))
@example(text=" ")
@example(text="  a  woman &apos;s   ")
@example(text="\u2581\u2581 \u2581a \u2581")
@settings(max_examples=50)
def test_known_characters_come_back_exactly(text: str) -> None:
    for kind in KINDS:
        for words in WORDS:
            tokenizer = trained(kind, words)
            assert tokenizer.unk not in tokenizer.encode(text)
            assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text(alphabet=KNOWN))
@example(text=" ".join(LINES))
@settings(max_examples=50)
def test_pieces_stay_within_words(text: str) -> None:
    for kind in ("bpe", "unigram"):
        for words in WORDS:
            tokenizer = trained(kind, words)
            for piece in tokenizer.pieces(tokenizer.encode(text)):
                body = piece.lstrip("\u2581")
                assert "\u2581" not in body, piece
                if words == "punctuation":
                    assert is_one_class(body), piece


def is_one_class(body: str) -> bool:
    """Letters only, or one digit, or a run of one mark."""
    classes = {unicodedata.category(character)[0] for character in body}
    if "N" in classes:
        return len(body) == 1
    if classes & {"P", "S"}:
        return len(set(body)) == 1
    return True


def test_whitespace_words_may_hold_punctuation() -> None:
    text = "a woman &apos;s dog"
    assert "\u2581&apos;s" in trained("bpe", "whitespace").pieces(
        trained("bpe", "whitespace").encode(text)
    )
    pieces = trained("bpe").pieces(trained("bpe").encode(text))
    assert "\u2581&" in pieces
    assert ";" in pieces


def test_first_word_is_the_same_word_inside_a_line() -> None:
    tokenizer = trained("bpe")
    (dog,) = tokenizer.encode("dog")
    assert tokenizer.encode("the dog")[-1] == dog


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_cannot_be_typed(kind: str) -> None:
    typed = "<pad> <s> </s> <unk> x</s>y<pad>\u2581 <bos>\u2581 <eos>\u2581"
    spec = TokenizerSpec.parse({"kind": kind, "vocabulary_size": 400, "words": "whitespace"})
    tokenizer = train_tokenizer(spec, [typed] * 50)
    ids = tokenizer.encode(typed)
    special = {tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk}
    assert len(special) == 4
    assert not special & set(ids)
    assert tokenizer.decode(ids) == typed


def test_decode_leaves_out_special_tokens() -> None:
    tokenizer = trained("bpe")
    ids = tokenizer.encode("the dog")
    framed = [tokenizer.bos, *ids, tokenizer.eos, tokenizer.pad, tokenizer.pad]
    assert tokenizer.decode(framed) == "the dog"
    assert tokenizer.pieces(framed)[0] == "<s>"
    assert tokenizer.pieces(framed)[-3:] == ["</s>", "<pad>", "<pad>"]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters"])
def test_unknown_characters_are_marked(kind: str) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode("the 東 dog")
    assert ids.count(tokenizer.unk) == 1
    assert tokenizer.decode(ids) == "the \u2047 dog"


def test_broken_bytes_are_marked() -> None:
    tokenizer = trained("byte-bpe")
    assert tokenizer.decode(tokenizer.encode("é東")[:-1]) == "é\ufffd"


@pytest.mark.parametrize("kind", KINDS)
def test_folded_case_is_part_of_the_tokenizer(kind: str) -> None:
    tokenizer = Tokenizer.from_json(trained(kind, lowercase=True).to_json())
    assert tokenizer.lowercase
    assert tokenizer.encode("THE Dog") == tokenizer.encode("the dog")
    assert tokenizer.decode(tokenizer.encode("THE Dog")) == "the dog"


def test_a_batch_equals_its_texts() -> None:
    tokenizer = trained("bpe")
    texts = ["", *LINES, " "]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic(kind: str) -> None:
    spec = TokenizerSpec.parse({"kind": kind, "vocabulary_size": 400})
    again = {train_tokenizer(spec, iter(LINES * 3)).fingerprint for _ in range(3)}
    assert again == {trained(kind).fingerprint}
    assert train_tokenizer(spec, LINES[:3]).fingerprint not in again


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [20, 60, 300])
def test_vocabulary_size_is_an_upper_bound(kind: str, size: int) -> None:
    spec = TokenizerSpec.parse({"kind": kind, "vocabulary_size": size})
    if kind == "byte-bpe" and size < 260:
        with pytest.raises(ConfigError, match="at least 260"):
            train_tokenizer(spec, LINES)
        return
    tokenizer = train_tokenizer(spec, LINES * 3)
    assert tokenizer.size <= size
    ids = [i for row in tokenizer.encode_batch(LINES) for i in row]
    assert max(ids) < tokenizer.size


def test_rare_characters_make_room_for_pieces() -> None:
    rare = "".join(chr(0x4E00 + i) for i in range(200))
    lines = ["the dog runs and the cat runs " * 1000] * 10 + [rare]
    tokenizer = train_tokenizer(TokenizerSpec(vocabulary_size=100), lines)
    assert "\u2581runs" in [tokenizer.token(i) for i in range(tokenizer.size)]
    assert tokenizer.unk in tokenizer.encode(rare)


def test_no_text_is_refused() -> None:
    with pytest.raises(DataError, match="no text"):
        train_tokenizer(TokenizerSpec(), ["", ""])


@pytest.mark.parametrize("kind", KINDS)
def test_json_round_trip(kind: str) -> None:
    tokenizer = trained(kind)
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.fingerprint == tokenizer.fingerprint
    assert again.to_json() == tokenizer.to_json()
    assert again.encode_batch(LINES) == tokenizer.encode_batch(LINES)
    assert (again.kind, again.size, again.pad, again.bos, again.eos, again.unk) == (
        kind,
        tokenizer.size,
        0,
        1,
        2,
        3,
    )


def damage(**changes: object) -> str:
    content = json.loads(trained("bpe").to_json())
    content.update(changes)
    return json.dumps(content)


DAMAGE: dict[str, tuple[Callable[[], str], str]] = {
    "cut": (lambda: trained("bpe").to_json()[:2000], "not JSON"),
    "deep": (lambda: "[" * 100_000, "not JSON"),
    "list": (lambda: "[1, 2]", "not a tokenizer that Heedful wrote"),
    "foreign": (lambda: '{"version": "1.0", "model": {}}', "not a tokenizer that Heedful wrote"),
    "newer": (lambda: damage(schema_version=SCHEMA_VERSION + 1), "newer"),
    "version": (lambda: damage(schema_version="1"), "wrong type"),
    "kind": (lambda: damage(kind="magic"), "wrong type"),
    "no unk": (lambda: damage(special={"pad": 0, "bos": 1, "eos": 2}), "wrong type"),
    "far unk": (lambda: damage(special={"pad": 0, "bos": 1, "eos": 2, "unk": 999_999}), "read"),
    "no model": (lambda: damage(tokenizer={"model": {"type": "BPE"}}), "cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_or_foreign_files_are_named(name: str) -> None:
    text, message = DAMAGE[name]
    with pytest.raises(ModelError, match=message) as caught:
        Tokenizer.from_json(text(), where="somewhere/tokenizer.json")
    assert caught.value.where == "somewhere/tokenizer.json"
    assert caught.value.remedy


def test_half_a_surrogate_pair_is_refused() -> None:
    for kind in KINDS:
        with pytest.raises(DataError, match="character 3"):
            trained(kind).encode_batch(["fine", "ab\ud800"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["the dog ", "dog", " ", "?!"])
def test_very_long_lines_are_cut_in_reasonable_time(kind: str, part: str) -> None:
    line = part * 100_000
    start = time.perf_counter()
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(line)) == line
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "characters"])
def test_an_encoders_tokenizer_has_one_more_token(kind: str) -> None:
    text = "some words <mask>\u2581 stand here and some others there"
    spec = TokenizerSpec.parse({"kind": kind, "vocabulary_size": 300})
    plain = train_tokenizer(spec, [text] * 3)
    before = plain.to_json()
    masked = plain.for_encoder()
    assert plain.to_json() == before
    assert plain.mask is None
    assert plain.first == ()
    assert (masked.mask, masked.size, masked.first) == (plain.size, plain.size + 1, (plain.bos,))
    for shown in (text, "<mask>", "<mask>\u2581", "<mask> <mask> ", "unseen: \u00e9"):
        assert masked.encode(shown) == plain.encode(shown)
        assert masked.mask not in masked.encode(shown)
    assert masked.decode([*plain.encode(text), masked.mask]) == plain.decode(plain.encode(text))
    assert masked.token(masked.mask) == "<mask>"
    again = Tokenizer.from_json(masked.to_json())
    assert again.mask == masked.mask
    assert again.fingerprint == masked.fingerprint
    assert masked.for_encoder() is masked
