"""Words that a model was trained on, in a filter that never forgets one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import ModelError
from heedful.text.seen_words import SeenWords, word_spans
from heedful.text.tokenizer_pair import WORDS_FILE, TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

WORDS = st.lists(st.text(min_size=1, max_size=12), max_size=60)


@given(WORDS, WORDS)
def test_no_word_is_forgotten(one: list[str], other: list[str]) -> None:
    """Also after it is written and read, and after two are joined, whatever their sizes."""
    first, second = (SeenWords.of(texts) for texts in (one, other))
    written = SeenWords.from_plain(json.loads(json.dumps(first.plain())))
    assert written == first
    both = first | second
    assert all(word in written for text in one for *_, word in word_spans(text))
    assert all(word in both for text in (*one, *other) for *_, word in word_spans(text))


def test_other_words_are_rarely_taken_for_seen() -> None:
    letters = "bcdfghjklm"
    made = ["".join(letters[int(d)] for d in str(n)) for n in range(100_000, 140_000)]
    seen = SeenWords.of([" ".join(made[:20_000])])
    assert seen.count == 20_000
    assert len(seen.bits) == 2**18 // 8  # 13 places a word
    assert all(word in seen for word in made[:20_000])
    wrong = sum(word in seen for word in made[20_000:])
    assert wrong < 0.01 * 20_000
    # Two filters of unlike sizes, joined, are still of use.
    small = SeenWords.of([" ".join(made[:500])])
    both = SeenWords.of([" ".join(made[500:20_000])]) | small
    assert all(word in both for word in made[:20_000])
    assert sum(word in both for word in made[20_000:]) < 0.1 * 20_000


def test_words_are_runs_of_four_letters_and_more() -> None:
    text = "Die E-Mail-Adresse, über 30 Äpfel: don't 私は学生です ΣΊΣΥΦΟΣ"
    found = [text[start:end] for start, end, _ in word_spans(text)]
    assert found == ["Mail", "Adresse", "über", "Äpfel", "ΣΊΣΥΦΟΣ"]
    assert "SÍSYPHUS" in SeenWords.of(["Sísyphus"])
    assert "Straße" in SeenWords.of(["STRASSE"])


def test_they_stand_in_a_file_of_the_model(tmp_path: Path) -> None:
    pair = train_pair(TokenizerSpec(vocabulary_size=60), ["the dog"] * 3, ["der Hund"] * 3)
    words = SeenWords.of(["der Hund sieht Katzen"])
    TokenizerPair(pair.source, pair.target, words=words).save(tmp_path)
    assert TokenizerPair.load(tmp_path).words == words
    content = json.loads((tmp_path / WORDS_FILE).read_text())
    for key, value in (("bits", content["bits"][:-8]), ("hashes", 5), ("words", "many")):
        (tmp_path / WORDS_FILE).write_text(json.dumps({**content, key: value}))
        with pytest.raises(ModelError, match="no list of the words"):
            TokenizerPair.load(tmp_path)
