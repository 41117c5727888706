"""Translations of terms inside the tokens of a text, and tokenizers with marks for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ConfigError, ModelError
from heedful.text.inline_terms import END, SEPARATOR, InlineTerm, annotate, mark_ids, without_marks
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

ENGLISH = ["the dog sees the cat, and the cat sees the dog (so it goes)."] * 5
GERMAN = ["der hund sieht die katze, und die katze sieht den hund."] * 5
KINDS = ("bpe", "byte-bpe", "unigram", "characters")


@pytest.fixture(scope="module")
def pairs() -> dict[str, TokenizerPair]:
    """Tokenizers of each kind, with marks."""
    return {
        kind: train_pair(
            TokenizerSpec(kind=kind, vocabulary_size=300 if kind == "byte-bpe" else 60),
            iter(ENGLISH),
            iter(GERMAN),
        ).with_soft_terms()
        for kind in KINDS
    }


def terms_of(text: str, chosen: dict[str, str]) -> list[InlineTerm]:
    """Terms at the first place of each."""
    places = sorted((text.index(word), word) for word in chosen)
    return [InlineTerm(place, place + len(word), chosen[word]) for place, word in places]


@pytest.mark.parametrize("kind", KINDS)
def test_a_translation_stands_right_behind_its_term(pairs, kind) -> None:
    tokenizer = pairs[kind].source
    separator, end = mark_ids(tokenizer)
    assert tokenizer.decode([separator, end]) == SEPARATOR + END
    text = "the dog (cat) sees."
    source = annotate(tokenizer, text, terms_of(text, {"dog": "hund", "cat": "die katze"}), 100)
    shown = tokenizer.decode(source.ids)
    assert shown.startswith(f"the dog{SEPARATOR}")
    assert "".join(shown.split()) == f"thedog{SEPARATOR}hund{END}(cat{SEPARATOR}diekatze{END})sees."
    assert list(source.copied) == tokenizer.encode("hund") + tokenizer.encode("die katze")


LETTERS = st.text(alphabet="dogcat ,.(é漢\U000f0100", max_size=25)


@given(text=LETTERS, data=st.data(), kind=st.sampled_from(KINDS), limit=st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_the_tokens_of_the_text_stay_as_they_are(pairs, text, data, kind, limit) -> None:
    tokenizer = pairs[kind].source
    cuts = sorted(data.draw(st.sets(st.integers(0, max(len(text), 0)), max_size=6)))
    terms = [InlineTerm(a, b, "hund") for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    plain = tokenizer.encode(text)
    terms = terms if plain else []
    source = annotate(tokenizer, text, terms, limit)
    assert len(source.ids) == len(source.origins)
    assert list(source.origins) == sorted(source.origins)
    first = [source.origins.index(number) for number in range(len(plain))]
    assert [source.ids[place] for place in first] == plain
    assert len(source.ids) <= max(limit, len(plain))
    written = len(terms) - len(source.left_out)
    assert len(source.copied) == written * len(tokenizer.encode("hund"))
    assert len(source.ids) == len(plain) + len(source.copied) + 2 * written


def test_no_text_can_be_taken_for_a_mark() -> None:
    assert without_marks(f"a{SEPARATOR}b{END} c") == "a\ufffdb\ufffd c"


def test_a_directory_says_that_soft_terms_are_known(tmp_path: Path) -> None:
    plain = train_pair(TokenizerSpec(vocabulary_size=100), iter(ENGLISH), iter(GERMAN))
    soft = plain.with_soft_terms()
    assert soft.joint
    assert soft.source.size == plain.source.size + 2
    assert soft.source.encode(ENGLISH[0]) == plain.source.encode(ENGLISH[0])
    assert soft.unwritten == mark_ids(soft.source)
    assert plain.unwritten == ()
    soft.save(tmp_path)
    again = TokenizerPair.load(tmp_path)
    assert again.soft_terms
    assert again.fingerprint == soft.fingerprint
    assert TokenizerPair(soft.source, soft.target).fingerprint != soft.fingerprint
    both = plain.protecting(("urls",)).with_soft_terms()
    assert both.protection is not None
    assert len(both.unwritten) == 34
    (tmp_path / "soft_terms.json").write_text('{"schema_version": 2}')
    with pytest.raises(ModelError, match="soft terms") as error:
        TokenizerPair.load(tmp_path)
    assert error.value.where == str(tmp_path / "soft_terms.json")


def test_separate_vocabularies_are_refused() -> None:
    spec = TokenizerSpec(vocabulary_size=100, joint=False)
    pair = train_pair(spec, iter(ENGLISH), iter(GERMAN))
    with pytest.raises(ConfigError, match="one vocabulary"):
        pair.with_soft_terms()
