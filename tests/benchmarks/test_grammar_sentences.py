"""Sentences by a grammar: what is held out, what is wanted, and German forms by hand."""

from __future__ import annotations

import random
import re

import pytest


@pytest.fixture(scope="module")
def grammar(pretrained):
    return pretrained("grammar_sentences")


@pytest.fixture(scope="module")
def parts(grammar):
    return grammar.parts(4_000)


def test_no_test_sentence_is_trained_on(grammar, parts) -> None:
    trained = {line.split("\t")[0] for line in parts["train"]}
    assert len(trained) > 3_000
    for name in ("known", "unseen", "pattern"):
        asked = [line.split("\t")[0] for line in parts[name]]
        assert len(set(asked)) == len(asked) > 100
        assert not trained & {*asked}
    assert not any(", as it was" in source for source in trained)


def test_held_out_words_are_in_no_training_sentence(grammar, parts) -> None:
    held_out = grammar.vocabulary(random.Random(1), held_out=True)
    for kind in ("animal", "way", "thing"):
        for noun in held_out.nouns[kind]:
            assert not any(re.search(rf"\b{noun.english}\b", line) for line in parts["train"]), noun


def test_translations_have_what_is_wanted_of_them(grammar, parts) -> None:
    lines = [line.split("\t") for name in ("known", "unseen", "pattern") for line in parts[name]]
    assert {line[3] for line in lines} == {*grammar.PATTERNS}
    for source, target, wanted, pattern in lines:
        for words in filter(None, wanted.split("|")):
            assert grammar.has(target, words), (pattern, source, target, wanted)
    assert not grammar.has("Das Tier blieb, weil es müde war.", "weil er")
    assert not grammar.has("Die Banken sind zu.", "Bank")


@pytest.mark.parametrize(
    ("pattern", "source", "target"),
    [
        (
            "reason_way",
            "The lion didn't cross the street because it was too wide.",
            "Der Löwe überquerte die Straße nicht, weil sie zu breit war.",
        ),
        (
            "reason_thing",
            "The queen threw the coat away because it was old.",
            "Die Königin warf den Mantel weg, weil er alt war.",
        ),
        ("roles", "The man saw the boy.", "Der Mann sah den Jungen."),
        ("instrument", "I saw the man with the telescope.", "Ich sah den Mann mit dem Fernrohr."),
        ("negation", "The man has no key.", "Der Mann hat keinen Schlüssel."),
        (
            "nested",
            "The cat that the dog that the boy owned chased ran away.",
            "Die Katze, die der Hund, den der Junge besaß, jagte, lief weg.",
        ),
        (
            "object_pronoun",
            "John picked the ball up. He threw it away.",
            "John hob den Ball auf. Er warf ihn weg.",
        ),
    ],
)
def test_a_pattern_makes_this_sentence(grammar, pattern: str, source: str, target: str) -> None:
    words = grammar.vocabulary(random.Random(5))
    # Only the words of the sentence are drawn from, so that it comes soon.
    for group in (words.nouns, words.verbs):
        for kind, all_of_them in group.items():
            group[kind] = [
                each
                for each in all_of_them
                if re.search(rf"\b{each.english.split()[0]}\b", source)
                or (hasattr(each, "past") and each.past.split()[0] in source)
            ] or all_of_them
    make = grammar.PATTERNS[pattern][0]
    for _ in range(20_000):
        item = make(words)
        if item.source == source:
            assert item.target == target
            return
    pytest.fail(f"{source} was never drawn")
