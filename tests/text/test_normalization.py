"""The spelling of text, by rules that tokenizers record."""

from __future__ import annotations

import hashlib
import json
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heedful.errors import ModelError
from heedful.text.normalization import TextNormalizer
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

NFC, COMPATIBILITY = TextNormalizer("nfc-2"), TextNormalizer("compatibility-2")
FIRST_NFC, FIRST_COMPATIBILITY = TextNormalizer("nfc"), TextNormalizer("compatibility")
CORPUS = ["Ich bin müde im Café.", "The first cat fell, no break 12.", "سلام می\u200cخواهم", "かガ"]
ODD = "aeé ́̈\u00ad\u00a0\u3000\ufeff\u200b\u200c\u200d\u202a\u202cﬁＡｶﾞ가각ش क्ष្ខ🚀👩\u0958"
KINDS = {"bpe": 200, "byte-bpe": 400, "unigram": 200, "characters": 200}


def trained(kind: str, **fields: object) -> Tokenizer:
    spec = TokenizerSpec.parse({"kind": kind, "vocabulary_size": KINDS[kind], **fields})
    tokenizer = train_tokenizer(spec, CORPUS * 3)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I\u00a0am\u202ftired.\u3000\u2003", "I am tired.  "),
        ("cafe\u0301 u\u0308ber \u1112\u1161\u11ab", "café über 한"),
        ("\ufeffab\u00adc\u00ad \u2060d", "abc d"),
        ("e\u00ad\u0301", "é"),  # composed where nothing stands between any more
        ("\u202aabc\u202c \u2068x\u2069 12\u200e", "abc x 12"),
        ("Auf\u200clage no\u200dne 漢\u200d字 zero\u200bwidth", "Auflage none 漢字 zerowidth"),
        ("ﬁne Ａ１ ２", "ﬁne Ａ１ ２"),  # for `compatibility` only
    ],
)
def test_what_is_not_seen_is_spelled_in_one_way(text: str, expected: str) -> None:
    assert NFC.normalized(text) == FIRST_NFC.normalized(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "שלום \u202aabc 12:30\u202c!\u200f",
        "\u2067مرحبا (A-1)\u2069 ۱۲٫۵",
        "می\u200cخواهم کتاب\u200cها",
        "क्\u200dष র\u200d্য",
        "👩🏽\u200d🚀 👩\u200d❤️\u200d👨 🏳️\u200d🌈",
        "ខ្ញុំ\u200bស្រឡាញ់ ภาษา\u200bไทย",
        "中文，标点！“引号” ½ ² … —",
        "plain ASCII\ttext\x00",
    ],
)
def test_what_has_a_meaning_stays(text: str) -> None:
    assert NFC.normalized(text) == FIRST_NFC.normalized(text) == text


def test_other_forms_of_letters_are_an_option() -> None:
    for rule in (COMPATIBILITY, FIRST_COMPATIBILITY):
        assert rule.normalized("ﬁne oﬃce Ａ１ ｶﾞｲﾄﾞ ﻻ ，！²") == "fine office A1 ガイド لا ，！²"


@given(st.text(alphabet=ODD) | st.text())
@example("\u200d\u200b\u200d")
@example("a\u0301\u200c")  # the composed letter has case, the mark alone has not
@example("a\u0301\u200c\u0308\u200d")
@example("\u0308\u17d2\u200b")  # the form puts the second mark before the first
@settings(max_examples=100)
def test_a_normalised_text_is_in_nfc_and_stays(text: str) -> None:
    for rule in (NFC, COMPATIBILITY):
        once = rule.normalized(text)
        assert unicodedata.is_normalized("NFC", once)
        assert rule.normalized(once) == once
    assert NFC.normalized(text.encode("ascii", "ignore").decode()).isascii()


@given(st.text(alphabet=ODD, min_size=1, max_size=12))
@settings(max_examples=80)
def test_every_character_has_its_place_in_the_text(text: str) -> None:
    letters, spans = COMPATIBILITY.normalized(text), COMPATIBILITY.origin(text)
    assert len(letters) == len(spans)
    assert all(start < end for start, end in spans)
    assert spans == sorted(spans)
    if spans:
        assert {place for span in spans for place in range(*span)} == {*range(len(text))}


def test_rules_never_change() -> None:
    """Models have learned from them: a change is a rule of another name."""
    digests = {}
    for name in ("nfc", "compatibility", "nfc-2", "compatibility-2"):
        rule = TextNormalizer(name)
        steps = [json.loads(step.__getstate__()) for step in rule.steps]
        digests[name] = hashlib.sha256(json.dumps(steps).encode()).hexdigest()[:16]
    assert digests == {
        "nfc": "18ffa99ecbf809eb",
        "compatibility": "2728ddf22d40efb3",
        "nfc-2": "9bb96867bd32a2fc",
        "compatibility-2": "b7c878943587481f",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_new_tokenizers_read_all_spellings_alike(kind: str) -> None:
    tokenizer = trained(kind)
    wanted = tokenizer.encode("Ich bin müde im Café.")
    for text in ("Ich bin mu\u0308de im Cafe\u0301.", "\ufeffIch\u00a0bin mü\u00adde im Café."):
        assert tokenizer.encode(text) == wanted
        assert tokenizer.encode_batch([text, text]) == [wanted, wanted]
        ids, spans = tokenizer.encode_spans(text)
        assert (ids, spans[0][0], spans[-1][1]) == (wanted, 0, len(text))
    if "bpe" in kind:
        assert tokenizer.encode_dropout("Cafe\u0301", 0.0, 1) == tokenizer.encode("Café")
    masked = tokenizer.for_encoder()
    assert masked.encode_masked("Cafe\u0301 [MASK]", "[MASK]") == [
        *masked.encode_masked("Café [MASK]", "[MASK]")
    ]
    assert tokenizer.encode("\u00ad\ufeff") == []


@pytest.mark.parametrize("kind", KINDS)
def test_marks_of_direction_come_back_in_their_order(kind: str) -> None:
    text = "سلام می\u200cخواهم 12"
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_rule_is_part_of_the_file() -> None:
    tokenizer, old = trained("bpe"), trained("bpe", normalization="none")
    assert json.loads(tokenizer.to_json())["normalization"] == "nfc-2"
    assert "normalization" not in json.loads(old.to_json())
    assert old.fingerprint != tokenizer.fingerprint
    read = Tokenizer.from_json(tokenizer.to_json())
    for each in (read, read.for_encoder(), read.with_sentinels(2), read.extended(["zebra"])):
        assert each.normalization == "nfc-2"
        assert each.encode("Cafe\u0301") == tokenizer.encode("Café")
    assert Tokenizer.from_json(old.to_json()).encode("Cafe\u0301") != old.encode("Café")
    with pytest.raises(ModelError, match="wrong type"):
        Tokenizer.from_json(tokenizer.to_json().replace('"nfc-2"', '"nfx"'))


def test_text_in_the_usual_spelling_trains_the_same_pieces() -> None:
    parts = [json.loads(trained("bpe", normalization=rule).to_json()) for rule in ("nfc-2", "none")]
    assert parts[0]["tokenizer"] == parts[1]["tokenizer"]
