"""Names that a translation replaces, by spelling and by the other lines of its file."""

from __future__ import annotations

from heedful.apps.quality.name_check import (
    FileWords,
    NameRepairs,
    check_lost_names,
    file_words,
    lost_names,
    misspelled_names,
)
from heedful.text.seen_words import SeenWords

NOTHING = FileWords(frozenset(), frozenset())


def repairs(source: str, target: str, *, others: str = "") -> list[tuple[str, str, bool]]:
    """Return each missing name, the word in its place, and whether it is certain."""
    sources = file_words([source, others]) if others else NOTHING
    found = NameRepairs(("en", "de"), sources, NOTHING, lambda word: word in ("Hill", "House"))
    return [(e.name.text, e.word.text, e.is_certain) for e in found.find(source, target)]


def lost(source: str, target: str, language: str = "en") -> list[str]:
    """Return the names that are lost, where each word has as many tokens as pairs of letters."""
    checks = check_lost_names(source, target, (language, "de"), lambda word: range(len(word) // 2))
    return [each.text for check in checks for each in check.evidence]


def spelled(source: str, target: str, seen: str = "") -> str:
    """Return the translation with names as in its source; the model has seen some words."""
    edits = misspelled_names(
        source, target, ("en", "de"), lambda word: range(len(word) // 2), SeenWords.of([seen])
    )
    for start, end, name in sorted(edits, reverse=True):
        target = target[:start] + name + target[end:]
    return target


def test_a_misspelled_name_is_spelled_as_in_the_source() -> None:
    town = "Heidelberg is a small town."
    assert spelled(town, "Eridelberg ist klein.") == "Heidelberg ist klein."
    both = "I saw Wojciech and Aleksandra in May."
    assert spelled(both, "Im Mai sah ich Wojemkie und Alekandel.") == (
        "Im Mai sah ich Wojciech und Aleksandra."
    )
    # What training has seen may be the name in the other language; forms of the name are right.
    assert spelled("We love Lisbon.", "Wir lieben Lissabon.", "Lissabon") == "Wir lieben Lissabon."
    assert spelled("The Heidelberg castle.", "Das Heidelberger Schloss.") == (
        "Das Heidelberger Schloss."
    )
    # Too short a word for what records seen ones, and too long a word for a misspelled name.
    assert spelled("Rome is large.", "Rom ist groß.") == "Rom ist groß."
    assert spelled("I like Celtic music.", "Ich mag Celtmusik.") == "Ich mag Celtmusik."
    # A word unlike each name stays, and so does what begins a sentence without being a name.
    assert spelled("We love Naples.", "Wir lieben Rekykavik.") == "Wir lieben Rekykavik."
    assert spelled("Dogs bark.", "Doges bellen.") == "Doges bellen."
    german = "Der Hund.", "The Hunt.", ("de", "en"), len
    assert (lost_names(*german), misspelled_names(*german, SeenWords.of([""]))) == (frozenset(), [])


def test_a_name_without_a_word_like_it_is_lost() -> None:
    assert lost("Heidelberg is a small town.", "Er ist eine kleine Stadt.") == ["Heidelberg"]
    flight = "Tom flew to Heidelberg in May."
    assert lost(flight, "Tom flog im Mai.") == ["Heidelberg"]
    assert lost(flight, "Tom flog im Mai nach Heidelberg.") == []
    assert lost("We love Naples.", "Wir lieben Neapel.") == []
    # A short word that begins a sentence is no name, nor is a day; German capitalises every noun.
    assert lost("Dogs bark on Mondays.", "Sie bellen montags.") == []
    assert lost("Wir sehen den Hund.", "Es bellt.", "de") == []
    assert lost("We love Naples.", "Любим.") == []


def test_titles_after_an_article_are_no_names() -> None:
    assert ("Rowling", "Tolkien", False) in repairs("I met Rowling.", "Ich traf Tolkien.")
    for source, target in (
        ("We wrote to the Speaker.", "Wir schrieben an Herrn Wolf."),
        ("We wrote to the Ministry of Health.", "Wir schrieben an Herrn Wolf."),
        ("He is now a Supreme Court judge.", "Er arbeitet nun im Gericht."),
    ):
        assert repairs(source, target) == []


def test_a_noun_after_an_article_is_no_name() -> None:
    def candidates(target: str, others: str) -> list[str]:
        return [word for _, word, _ in repairs("Then they met Rowling.", target, others=others)]

    others = "Later we saw Milton there."
    assert "Wut" not in candidates("Dort sahen sie die Wut.", others)
    assert "Wut" not in candidates("Dort kamen sie zur Wut.", others)
    assert "Tolkien" in candidates("Dort sahen sie Tolkien.", others)
    # Somebody's name, with an article.
    assert "Tolkien" in candidates("Dort sahen sie den Tolkien.", f"Tolkien came. {others}")


def test_plurals_of_days_and_derived_names_are_translated() -> None:
    assert repairs("On Sundays we rest.", "Wir ruhen in Schale.") == []
    assert repairs("We saw Martian meteorites.", "Wir sahen Meteoriten vom Mars.") == []


def test_an_article_ends_at_a_mark() -> None:
    assert repairs("For a time, Rowling wrote.", "Eine Zeit schrieb Tolkien.")


def test_words_known_in_lower_case_and_compounds_are_no_names() -> None:
    assert repairs("They met on Capitol Hill.", "Sie trafen sich im Capitol zu einem Gipfel.") == []
    assert repairs("We met Coroner Bowen.", "Wir trafen Gerichtsmediziner Bowen.") == []


def test_a_name_of_another_line_is_certain() -> None:
    others = "Later we saw Tolkien there."
    assert repairs("There we met Rowling.", "Dort trafen wir Tolkien.", others=others)[0] == (
        "Rowling",
        "Tolkien",
        True,
    )
    # An office in the place of a name of another line is another person's.
    assert repairs("Then we met the Speaker.", "Dann trafen wir Tolkien.", others=others)[0][2]


def test_part_of_a_full_name_may_be_left_out_or_stand_for_another() -> None:
    source = "then we all met John Rowling there today."
    assert repairs(source, "dort trafen wir alle Rowling in großer Eile.") == []
    assert repairs(source, "dort trafen wir alle John in großer Eile.") == []
    assert repairs(source, "wir trafen dort heute alle John Tolkien.")[0][:2] == (
        "Rowling",
        "Tolkien",
    )
    line = "then we all met Emma there."
    assert repairs(line, "wir trafen dort alle Watson.", others="Later Peter Watson came.")
    assert repairs(line, "wir trafen dort alle Watson.", others="Later Emma Watson came.") == []


def test_abbreviations_derived_names_and_quoted_titles_are_translated() -> None:
    target, others = "es ging noch einmal um Tolkien.", "Later we saw Tolkien there."
    assert repairs("it was about Rowling again.", target, others=others)
    for name in ("TVs", "PhD", "Syrians", "“House”"):
        assert repairs(f"it was about {name} again.", target, others=others) == []


def test_a_noun_that_has_an_article_elsewhere_is_no_name() -> None:
    targets = file_words(["Er sah das Land.", "Sie mag das Land.", "da kam Tolkien."], "de")
    assert targets.nouns == {"Land"}
    found = NameRepairs(("en", "de"), NOTHING, targets, lambda word: False).find(
        "Then they met Rowling.", "da sahen sie Land und Tolkien."
    )
    assert {each.word.text for each in found} == {"Tolkien"}
