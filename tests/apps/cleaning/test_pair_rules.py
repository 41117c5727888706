"""Each rule about one pair, with pairs that it finds and pairs that it leaves alone."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.cleaning import pair_rules as module
from heedful.apps.cleaning.cleaning_settings import CleaningSettings
from heedful.apps.cleaning.pair_rules import length_ratio, overlap, pair_rules
from heedful.errors import ConfigError

LONG = "The committee will meet again in the spring of next year."
GERMAN = "Der Ausschuss kommt im Frühjahr des nächsten Jahres wieder zusammen."

BAD = [
    ("empty", "Hello", " \u00a0"),
    ("empty", "", "Hallo"),
    ("control_character", "Hel\x02lo", "Hallo"),
    ("control_character", "Hello", "Hal\x85lo"),
    ("control_character", "Hello", "Hal\ufefflo"),
    ("control_character", "\ue000 Hello", "Hallo"),
    ("replacement_character", "Hello", "sch\ufffdn"),
    ("mojibake", "It is nice.", "Es ist schön.".encode().decode("latin-1")),
    ("mojibake", "“Yes,” he said.".encode().decode("cp1252", "replace"), "„Ja“, sagte er."),
    ("mojibake", "It is nice.", "Es ist schÃ¶n."),
    ("lost_letters", "For you.", "F?r dich."),
    ("lost_letters", "He must go now.", "Er mu? jetzt gehen."),
    ("lost_letters", "The man is over there.", "Der Mann ist dr?ben, ?ber dem Haus."),
    ("lost_spaces", "He is a very tired man.", "EristeinsehrmüderMann."),
    ("lost_spaces", "That is good.Itisverygoodindeed.", "Das ist gut. Es ist in der Tat sehr gut."),
    ("markup", "He is tired.", "<p>Er ist müde.</p>"),
    ("markup", 'He is <a href="/x">tired</a>.', "Er ist müde."),
    ("markup", "He is tired &amp; old.", "Er ist müde und alt."),
    ("too_long", "a" * 2001, "b" * 1900),
    ("length_ratio", LONG, "Ja."),
    ("length_ratio", "Hi.", GERMAN),
    (
        "length_ratio",
        LONG,
        "委员会将于明年春天再次开会，届时将讨论预算、人事任命和其他许多重要的事项，包括明年的计划。",
    ),
    ("copied", LONG, LONG),
    ("copied", LONG, f"„{LONG.upper()}“"),
    ("copied", LONG, LONG.replace("spring", "Frühling").replace("next", "nächsten")),
    ("numbers", "It costs 25 dollars.", "Es kostet 52 Dollar."),
    ("numbers", "In 1999 and 2001.", "In den Jahren 1999 und 2002."),
    ("numbers", "3.5 of 4", "3,6 von 4"),
]
GOOD = [
    (LONG, GERMAN),
    ("Hello!", "Hallo!"),
    ("What? No. Who?me", "Was? Nein. Wer?ich"),
    ("How dare you say that!", "Wie kannst du es wagen, das zu sagen?!"),
    ("“Why?” he asked.", "„Warum?“, fragte er."),
    ("Is it? See a.org/?q=1", "Ist es das? Siehe a.org/?q=1"),
    ("the fire department captain", "Feuerwehrhauptmann"),
    ("What a pity that is!", "Schade!"),
    ("He is a very tired man.", "他是一个非常疲倦的人。"),
    ("I am a very tired man.", "ฉันเป็นผู้ชายที่เหนื่อยมาก"),
    ("<b>tired</b> of it", "es <b>müde</b>"),
    ("1 < 2 and 3 > 2", "1 ist weniger als 2, 3 > 2"),
    ("Tom!", "Tom!"),  # a name may be the same
    ("New York City", "New York City"),
    ("`a_b` self.c(x=1) /usr/lib f() <i> d_e", "`a_b` self.c(x=1) /usr/lib f() <i> d_e"),
    ("a\tb", "c\td"),
    ("It costs 1,000.50 dollars.", "Es kostet 1.000,50 Dollar."),
    ("It costs 1 000 euros.", "Ça coûte 1\u202f000 euros."),
    ("Two people at 5.", "2 Leute um fünf."[2:]),
    ("Two of 5 people.", "2 von 5 Leuten."),
    ("Two people.", "2 Leute."),  # written in letters on one side
    ("At 2:30.", "À 2h30."),
    ("At 2:30.", "À 2 h 30."),
    ("Page ٢٥.", "Seite 25."),
    ("委员会将于明年春天再次开会。", "The committee will meet again next spring."),
    ("위원회는 내년 봄에 다시 열린다.", "The committee will meet again next spring."),
    ("« À », dit-il. CAFÉ\u00a0: é", "„Ä“, sagte er. Café: ê"),
    ("No.", "Nein, danke."),
    ("Tom lives in Boston, too.", "Tom lebt auch in Boston."),
    ("a" * 2000, "b" * 2000),
]


def found(source: str, target: str, **limits: object) -> list[str]:
    rules = pair_rules(CleaningSettings.parse(limits))
    return [rule.name for rule in rules if rule.doubt(source, target) >= 1]


@pytest.mark.parametrize(("rule", "source", "target"), BAD)
def test_bad_pairs_are_found_and_explained(rule: str, source: str, target: str) -> None:
    assert rule in found(source, target)
    if rule != "empty":  # nobody can train on nothing: it cannot be switched off
        assert rule not in found(source, target, off=[rule])
    (explain,) = (each.detail for each in pair_rules(CleaningSettings()) if each.name == rule)
    assert explain(source, target)


@pytest.mark.parametrize(("source", "target"), GOOD)
def test_good_pairs_are_left_alone(source: str, target: str) -> None:
    assert found(source, target) == []


def test_limits_are_settings() -> None:
    assert found("a" * 101, "b" * 100, max_characters=100) == ["too_long"]
    assert found("a" * 100, "b" * 100, max_characters=100) == []
    # 30 + 10 letters beside 10 + 10 are the ratio 2
    assert length_ratio("a" * 30, "b" * 10) == 2
    assert found("a" * 30, "b" * 10, max_length_ratio=2.1) == []
    assert found("a" * 30, "b" * 10, max_length_ratio=2) == ["length_ratio"]
    assert overlap("a b c d e", "a b c d x") == 0.8
    assert overlap("a b c d e", "a b c d e f g h i j") == 0.5
    assert overlap("a a a a", "a b c d") == 0.25
    assert overlap("a b c", "a b c") == 0
    assert found("a b c d e", "a b c d x", max_overlap=0.81) == []
    assert found("a b c d e", "a b c d x", max_overlap=0.8) == ["copied"]


@pytest.mark.parametrize(
    ("source", "target", "differ"),
    [
        ("1,234.5 and 1 000 000", "1.234,5 und 1.000.000", False),
        ("at 2:30 p.m., 7 times", "um 14.30 Uhr, 7 Mal", False),
        ("in 1990 and '98", "1990 und 1998", False),
        ("from 5 to 20", "von 5 bis 21", True),
        ("25 dollars", "52 Dollar", True),
        # Written out on one side it is no fault.
        ("5 of 20", "fünf von 20", False),
    ],
)
def test_numbers_are_compared_across_their_forms(source: str, target: str, differ: bool) -> None:
    assert ("numbers" in found(source, target)) is differ


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_can_be_judged(source: str, target: str) -> None:
    for rule in pair_rules(CleaningSettings()):
        assert rule.doubt(source, target) >= 0
        assert isinstance(rule.detail(source, target), str)
    assert length_ratio(source, target) == length_ratio(target, source) >= 1
    assert 0 <= overlap(source, target) <= 1


def test_without_ftfy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    module._is_damaged.cache_clear()
    with pytest.raises(ConfigError, match="ftfy"):
        pair_rules(CleaningSettings())
    assert pair_rules(CleaningSettings(off=("mojibake",)))
    monkeypatch.undo()
    module._is_damaged.cache_clear()
