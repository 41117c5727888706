"""Text in capitals: found, brought into sentence case and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.quality.capitals import capital_parts, capitals, kept_spans, sentence_case
from heedful.apps.quality.respelling import Respelling


def parts(line):
    return [(line[a:b], upper) for (a, b), upper in capital_parts(line)]


def lowered(text, language="en", **options):
    return Respelling.of(text, sentence_case(text, language, **options)).result


def raised(text, language="de", kept=()):
    return Respelling.of(text, capitals(text, language, kept)).result


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("DO NOT OPEN.", [("DO NOT OPEN.", True)]),
        (
            "Wait! DO NOT OPEN. IT IS HOT!  Go on.",
            [("Wait!", False), ("DO NOT OPEN. IT IS HOT!", True), ("Go on.", False)],
        ),
        ("STOP! DO NOT OPEN.", [("STOP! DO NOT OPEN.", True)]),
        ("NASA.", [("NASA.", False)]),  # one word may be a name
        ("A B C 12.", [("A B C 12.", False)]),
        ("Titles Like This", [("Titles Like This", False)]),
        ("I like TV. OK. Fine.", [("I like TV. OK. Fine.", False)]),
        ("SEE http://a.org/Path FOR {name}.", [("SEE http://a.org/Path FOR {name}.", True)]),
        ("I MET tom.", [("I MET tom.", False)]),
        ("КОШКА И СОБАКА", [("КОШКА И СОБАКА", True)]),
        ("我们 走吧", [("我们 走吧", False)]),  # no case
        ("", [("", False)]),
        ("  GO  AWAY  ", [("GO  AWAY", True)]),
    ],
)
def test_sentences_in_capitals_are_found(line, expected):
    assert parts(line) == expected


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("DO NOT OPEN. GO AWAY!", "en", "Do not open. Go away!"),
        ("AND I SAID I'M LATE.", "en", "And I said I'm late."),
        ("UND I GING", "de", "Und i ging"),
        ("OPEN {Name} AT HTTP://A.ORG/X NOW", "en", "Open {Name} at http://a.org/x now"),
        ("OPEN {Name} AT https://A.org/X NOW", "en", "Open {Name} at https://A.org/X now"),
        ("IRMAK ISITTI, İYİ", "tr", "Irmak ısıttı, iyi"),
        ("3 MEN WALK", "en", "3 Men walk"),
    ],
)
def test_sentence_case(text, language, expected):
    assert lowered(text, language) == expected


def test_a_word_takes_the_form_that_the_vocabulary_knows():
    known = {"Boston", "TV", "in"}
    count = lambda words: [1 if word in known else len(word) for word in words]  # noqa: E731
    assert lowered("HE IS IN BOSTON ON TV.", count_tokens=count) == "He is in Boston on TV."


def test_given_parts_keep_their_case():
    assert lowered("OPEN NASA NOW", kept=[(5, 9)]) == "Open NASA now"
    assert raised("das iPhone ist neu", kept=[(4, 10)]) == "DAS iPhone IST NEU"


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Die Straße ist {offen}.", "de", "DIE STRASSE IST {offen}."),
        ("iyi ılık", "tr", "İYİ ILIK"),
        ("άνθρωπος, ΐ", "el", "ΑΝΘΡΩΠΟΣ, Ϊ"),
        ("à l'œuvre", "fr", "À L'ŒUVRE"),
    ],
)
def test_capitals_follow_the_language(text, language, expected):
    assert raised(text, language) == expected


LINES = st.text(
    st.sampled_from("ABÄß ab.!? {}/:1") | st.characters(categories=("Lo", "Nd", "Po")), max_size=30
)


@given(LINES)
def test_parts_are_in_order_and_leave_out_space_alone(line):
    done = 0
    for (start, end), _ in capital_parts(line):
        assert not line[done:start].strip()
        assert done <= start <= end
        done = end
    assert not line[done:].strip()


@given(LINES)
def test_only_case_is_changed(text):
    for change in (lowered, raised):
        assert change(text).casefold() == text.casefold()
    result = Respelling.of(text, capitals(text))
    kept = {place for start, end in kept_spans(text) for place in range(start, end)}
    assert not kept & {start for start, _, _ in result.edits}
    if not kept:
        assert result.result == text.upper()
