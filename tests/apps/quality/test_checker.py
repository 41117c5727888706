"""Reports on translations of a real model, good and damaged ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from heedful.apps.quality.checker import Checker
from heedful.apps.quality.model_checks import evidence_of_relation
from heedful.apps.quality.reports import TranslationReport
from heedful.apps.quality.text_checks import CHECKS, CheckSettings
from heedful.errors import DataError
from heedful.pipelines.text_splitting import Translation
from heedful.pipelines.translation import TranslationPipeline
from heedful.text.seen_words import SeenWords

SOURCES = [
    "A man rides a bicycle.",
    "Tom has lived in Boston for 12 years.",
    "I have lost the key to the house.",
    "We were very tired, so we went to bed early.",
]


def checker(translator: TranslationPipeline) -> Checker:
    return Checker(translator, ("en", "de"), detached=True)


def report_pairs(translator: TranslationPipeline, targets: list[str]) -> list[TranslationReport]:
    return checker(translator).report_pairs(SOURCES[: len(targets)], targets)


def test_good_translations_pass_every_check(translator: TranslationPipeline) -> None:
    translations = translator.translate(SOURCES, alignment=True)
    for report in checker(translator).reports(SOURCES, translations):
        assert report.failed == ()
        # Unseen words are checked where the model's directory has the words of its training.
        known = translator.tokenizers.words is not None
        made = [name for name in CHECKS if known or name != "unseen_word"]
        assert [each.name for each in report.checks] == made
        json.dumps(report.plain())


def test_given_translations_are_judged_like_the_models_own(
    translator: TranslationPipeline,
) -> None:
    translations = translator.translate(SOURCES, alignment=True, beam=1)
    own = checker(translator).reports(SOURCES, translations)
    given = report_pairs(translator, [str(each) for each in translations])
    for one, other in zip(own, given, strict=True):
        assert one.failed == other.failed == ()
        for name in ("unsure", "unsure_word", "uncovered", "detached"):
            assert one[name].value == pytest.approx(other[name].value, abs=1e-5)


def test_the_translation_of_another_sentence_is_detached(translator: TranslationPipeline) -> None:
    translations = [str(each) for each in translator.translate(SOURCES)]
    for report in report_pairs(translator, translations[1:] + translations[:1]):
        assert report["detached"].failed
        assert report["unsure"].failed


def test_words_that_nobody_attended_to_are_named(translator: TranslationPipeline) -> None:
    (report,) = checker(translator).report_pairs([SOURCES[3]], ["Wir waren sehr müde."])
    result = report["uncovered"]
    assert result.failed
    assert {"went", "early."} & {each.text for each in result.evidence}
    for each in result.evidence:
        assert SOURCES[3][each.start : each.end] == each.text


def test_an_unlikely_word_is_named(translator: TranslationPipeline) -> None:
    target = "Ein Mann fährt Elefant."
    (report,) = checker(translator).report_pairs(SOURCES[:1], [target])
    places = [(each.start, each.end) for each in report["unsure_word"].evidence]
    assert places
    assert all(target.index("Elefant") <= start < end <= len(target) for start, end in places)


def test_a_word_that_is_made_up_is_named(translator: TranslationPipeline) -> None:
    words = SeenWords.of(["Der Übersetzer ist müde", "Ein Hund mit Namen"])
    tokenizers = replace(translator.tokenizers, words=words)
    pipeline = TranslationPipeline(translator.model, tokenizers)
    source = "Translator Hawking is a fog machine."
    target = "Übersetzer Hawking ist ein Nebelwerkwerk mit HUND."
    (own,) = Checker(pipeline).reports([source], [Translation(target)])
    (place,) = own["unseen_word"].evidence
    assert target[place.start : place.end] == place.text == "Nebelwerkwerk"
    assert place.note == "not seen in training"
    assert own.failed == ("unseen_word",)
    (gone,) = Checker(pipeline, ("en", "de")).reports([source], [Translation("ein Hund")])
    assert [each.text for each in gone["lost_names"].evidence] == ["Hawking"]
    # People write words that a model has not seen: of given translations it is advice.
    (given,) = Checker(pipeline).report_pairs([source], [target])
    assert given["unseen_word"].failed
    assert "unseen_word" not in given.failed
    # A model without the file is not checked.
    (unknown,) = Checker(
        TranslationPipeline(translator.model, replace(tokenizers, words=None))
    ).reports([source], [Translation(target)])
    with pytest.raises(KeyError):
        unknown["unseen_word"]


def test_texts_alone_are_checked_without_a_model() -> None:
    (report,) = Checker(languages=("en", "de")).reports(["12 cats"], [Translation("elf Katzen")])
    assert report.failed == ("numbers",)
    assert {each.name for each in report.checks} == set(list(CHECKS)[:13])
    with pytest.raises(KeyError):
        report["detached"]


def test_what_is_empty_or_of_several_lines_gets_a_report(translator: TranslationPipeline) -> None:
    sources = ["", "  ", "A dog runs.\nA cat sleeps.", "?"]
    translations = translator.translate(sources, alignment=True)
    reports = checker(translator).reports(sources, translations)
    assert [report.failed for report in reports[:3]] == [(), (), ()]
    with pytest.raises(KeyError):  # its lines were translated apart
        reports[2]["detached"]


def test_a_report_does_not_depend_on_its_neighbours(translator: TranslationPipeline) -> None:
    targets = [str(each) for each in translator.translate(SOURCES)]
    together = report_pairs(translator, targets)
    (alone,) = checker(translator).report_pairs(SOURCES[:1], targets[:1])
    assert alone == together[0]


def test_as_many_translations_as_sources(translator: TranslationPipeline) -> None:
    with pytest.raises(DataError, match="4 sources and 1 translations"):
        Checker().reports(SOURCES, [Translation("a")])


def many(translator: TranslationPipeline) -> tuple[list[str], list[str]]:
    """Pairs enough to be compared with each other."""
    sources = [
        *SOURCES,
        *(
            f"{who} {what}."
            for who in ("Tom", "Mary", "My brother", "The old man")
            for what in ("is reading a book", "went to Boston", "wants a new car", "never sings")
        ),
    ]
    return sources, [str(each) for each in translator.translate(sources)]


def test_given_translations_are_compared_with_other_sources(
    translator: TranslationPipeline,
) -> None:
    sources, targets = many(translator)
    checks = Checker(translator, ("en", "de"))
    assert sum(each.in_doubt for each in checks.report_pairs(sources, targets)) <= 1
    moved_targets = targets[10:] + targets[:10]
    moved = checks.report_pairs(sources, moved_targets)
    assert sum("detached" in each.failed for each in moved) >= 0.9 * len(sources)
    # A threshold that is set holds, whatever the other lines of the file are like.
    loose = Checker(translator, ("en", "de"), CheckSettings(least_difference=-9.0))
    assert not any(each["detached"].failed for each in loose.report_pairs(sources, moved_targets))
    halves = [" ".join(each.split()[: len(each.split()) // 2]) for each in targets]
    cut = checks.report_pairs(sources, halves)
    assert sum("too_short" in each.failed for each in cut) >= 0.9 * len(sources)


def test_a_missing_end_before_a_full_stop_is_found(translator: TranslationPipeline) -> None:
    checks = Checker(translator, ("en", "de"))
    sources = ["Tom was able to open the door with a key.", "She will come back to us tomorrow."]
    whole = ["Tom konnte die Tür mit einem Schlüssel öffnen.", "Sie kommt morgen zu uns zurück."]
    cut = ["Tom konnte die Tür mit einem.", "Sie kommt morgen zu."]
    assert not any(each["too_short"].failed for each in checks.report_pairs(sources, whole))
    assert all(each["too_short"].failed for each in checks.report_pairs(sources, cut))


def test_headlines_and_quotations_end_without_a_full_stop(translator: TranslationPipeline) -> None:
    checks = Checker(translator, ("en", "de"))
    source, target = (
        "We were not able to open that old door any more on yesterday evening",
        "Wir konnten gestern Abend die alte Tür nicht mehr öffnen",
    )
    sources, targets = [source, f'He said: "{source}."'], [target, f'Er sagte: "{target}".']
    for report in checks.report_pairs(sources, targets):
        assert report["too_short"].value < -0.3
        assert not report["too_short"].failed


def test_another_name_is_named(translator: TranslationPipeline) -> None:
    checks = Checker(translator, ("en", "de"))
    (other,) = checks.report_pairs(["I met Obama in Paris."], ["Ich traf Merkel in Paris."])
    assert other.failed == ("names",)
    assert [each.text for each in other["names"].evidence] == ["Obama", "Merkel"]
    for source, target in (
        ("I met Obama in Paris.", "Ich traf Obama in Paris."),
        ("We went to Lisbon.", "Wir fuhren nach Lissabon."),
        ("He lives in Germany.", "Er lebt in Deutschland."),
        ("The man is in the house.", "Der Mann ist im Haus."),
    ):
        (report,) = checks.report_pairs([source], [target])
        assert not report["names"].failed


def test_given_translations_need_no_model() -> None:
    checks = Checker(languages=("en", "de"))
    good, bad = checks.report_pairs(["He has 12 sons."] * 2, ["Er hat 12 Söhne.", "Er hat Söhne."])
    assert (good.failed, bad.failed) == ((), ("numbers",))


def test_advice_puts_nothing_in_doubt() -> None:
    pair = ['He said "yes".'], ["Er sagte ja."]
    (advised,) = Checker(languages=("en", "de")).report_pairs(*pair)
    assert (advised["quotes"].failed, advised["quotes"].advisory, advised.failed) == (
        True,
        True,
        (),
    )
    strict = Checker(languages=("en", "de"), settings=CheckSettings(advisory=()))
    assert strict.report_pairs(*pair)[0].failed == ("quotes",)


def test_two_directions_are_one_opinion(translator: TranslationPipeline) -> None:
    # English to German in the place of German to English: no opinion on German sources.
    both = Checker(translator, ("en", "de"), reverse=translator)
    (one,), (two,) = (
        each.report_pairs(SOURCES[:1], ["Ein Mann fährt Fahrrad."])
        for each in (Checker(translator, ("en", "de")), both)
    )
    assert two["detached"].value < one["detached"].value


def test_what_texts_have_in_common_is_evidence_that_they_belong_together() -> None:
    def evidence(target: str) -> float:
        return evidence_of_relation("Did Tchaikovsky write 6 symphonies?", target, [0.5])

    best = evidence("Schrieb Tschaikowski 6 Symphonien?")
    for poorer in (
        "Schrieb Tschaikowski 9 Symphonien?",
        "Schrieb Tschaikowski 6 Symphonien.",
        "Schrieb er 6 davon, und wann hat er das getan?",
    ):
        assert evidence(poorer) < best - 0.25
    # Signs of other scripts are the same signs.
    signs = "\uff1f\uff01\uff1a"
    assert evidence_of_relation("a?!:", f"b{signs}", []) == evidence_of_relation("a?!:", "b?!:", [])


def test_files_of_like_lines_do_not_raise_the_threshold(translator: TranslationPipeline) -> None:
    sources = [f"Tom lives in house number {n}." for n in range(10, 34)]
    targets = [f"Tom wohnt im Haus Nummer {n}." for n in range(10, 34)]
    reports = Checker(translator, ("en", "de")).report_pairs(sources, targets)
    assert reports[0]["detached"].threshold <= 1.2
    assert not any(each["detached"].failed for each in reports)
