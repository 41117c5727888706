"""Translations that keep to their sources, by the translator at hand."""

from __future__ import annotations

import pytest

from heedful.apps.quality.consistency import ConsistentTranslation
from heedful.apps.quality.unknown_words import names_to_copy
from heedful.errors import ConfigError, DataError
from heedful.pipelines.glossary import Glossary, Term
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.search_settings import SearchSettings


@pytest.fixture(scope="module")
def in_capitals(translator: TranslationPipeline) -> ConsistentTranslation:
    return ConsistentTranslation(translator, capitals=True, languages=("en", "de"))


def test_capitals_are_translated_as_sentences(
    translator: TranslationPipeline, in_capitals: ConsistentTranslation
) -> None:
    plain = translator.translate(["Do not open the door."])[0]
    assert in_capitals.translate(["DO NOT OPEN THE DOOR."]) == [plain.upper()]


def test_other_sentences_of_the_text_stay(
    translator: TranslationPipeline, in_capitals: ConsistentTranslation
) -> None:
    parts = translator.translate(["We walk.", "Do not open the door.", "The dog sleeps."])
    found = in_capitals.translate(["We walk. DO NOT OPEN THE DOOR. The dog sleeps.\n\nWe walk."])
    assert found == [f"{parts[0]} {parts[1].upper()} {parts[2]}\n\n{parts[0]}"]


def test_without_capitals_nothing_changes(
    translator: TranslationPipeline, in_capitals: ConsistentTranslation
) -> None:
    texts = ["Tom reads a book.", "", "  ", "The NASA\nA Dog Sleeps."]
    expected = translator.translate(texts, alignment=True, n_best=2)
    found = in_capitals.translate(texts, alignment=True, n_best=2)
    assert found == expected
    assert [vars(each) for each in found] == [vars(each) for each in expected]


def test_alignments_and_candidates_are_of_the_texts_as_they_are(
    in_capitals: ConsistentTranslation,
) -> None:
    source = "DO NOT TOUCH THE DOOR. Tom sleeps."
    (found,) = in_capitals.translate([source], alignment=True, n_best=2)
    for each in found.n_best:
        assert each.alignment is not None
        assert each.alignment.source_words == tuple(source.split())
        assert each.alignment.target_words == tuple(each.split())
        assert "TÜR" in each
    pairs = {
        (found.alignment.source_words[i], found.alignment.target_words[j])
        for i, j, _ in found.alignment.links
    }
    assert {("NOT", "NICHT"), ("Tom", "Tom")} <= pairs


def test_terms_are_found_and_stay_as_they_are(in_capitals: ConsistentTranslation) -> None:
    terms = Glossary([Term("NASA", ("NaSa",)), Term("door", ("Pforte",), ignore_case=True)])
    (found,) = in_capitals.translate(["OPEN THE DOOR OF NASA NOW."], glossary=terms)
    assert "NaSa" in found
    assert "Pforte" in found
    assert found.replace("NaSa", "").replace("Pforte", "").isupper()
    assert found.missing == ()


def test_a_string_is_refused(in_capitals: ConsistentTranslation) -> None:
    with pytest.raises(DataError, match="single string"):
        in_capitals.translate("DO NOT OPEN.")


def test_numbers_that_are_missing_are_required(translator: TranslationPipeline) -> None:
    source = "A man and his 3 dogs are walking 2 miles."
    assert "3" not in translator.translate([source])[0]
    ours = ConsistentTranslation(translator, numbers="keep", languages=("en", "de"))
    found, other = ours.translate([source, "Tom sleeps."])
    assert "3" in found.split() + [word.strip(",.") for word in found.split()]
    assert other == translator.translate(["Tom sleeps."])[0]
    assert (found.alignment, found.required, found.missing) == (None, 0, ())
    assert (ours.mended, ours.unmended) == (1, 0)


def test_samples_cannot_be_required_to_have_numbers(translator: TranslationPipeline) -> None:
    ours = ConsistentTranslation(translator, numbers="keep", languages=("en", "de"))
    source = "3 boys and 4 girls and 5 dogs were playing in the park with 6 balls."
    (found,) = ours.translate([source], sampling=True, temperature=0.1)
    assert "5" not in found
    assert ours.unmended == 1


@pytest.mark.parametrize("options", [{"alternatives": 3}, {"risk_samples": 4, "seed": 2}])
def test_searches_without_required_phrases_still_serve(
    translator: TranslationPipeline, options: dict[str, int]
) -> None:
    ours = ConsistentTranslation(
        translator, copy_unknown=True, numbers="keep", languages=("en", "de")
    )
    source = "A cowboy in a rodeo trying to beat the 8 second clock."
    for given in (options, {"settings": SearchSettings(**options)}):
        found = ours.translate([source, "Дмитрий sleeps."], **given)
        assert "Дмитрий" in found[1]


def test_prefixes_and_terms_hold_in_the_second_search(translator: TranslationPipeline) -> None:
    ours = ConsistentTranslation(translator, numbers="keep", languages=("en", "de"))
    sources = ["Tom sleeps.", "6 people are gathered around to eat a big dinner."]
    terms = Glossary([Term("dinner", ("Festmahl",))])
    found = ours.translate(sources, prefixes=["", "Die Menschen"], glossary=terms)[1]
    assert found.startswith("Die Menschen")
    assert "Festmahl" in found
    assert "6" in found
    assert (found.required, found.missing) == (1, ())


def test_unknown_languages_have_no_signs(translator: TranslationPipeline) -> None:
    with pytest.raises(ConfigError, match="the languages of the model must be known"):
        ConsistentTranslation(translator, numbers="localize")


@pytest.fixture(scope="module")
def copying(translator: TranslationPipeline) -> ConsistentTranslation:
    return ConsistentTranslation(translator, copy_unknown=True, languages=("en", "de"))


def test_unknown_words_are_copied_where_a_name_would_stand(
    translator: TranslationPipeline, copying: ConsistentTranslation
) -> None:
    source = "Дмитрий Иванов knows 李雷.\nTom lives in Łódź."
    assert not {"Дмитрий", "李雷", "Łódź"} & set(translator.translate([source])[0].split())
    found = copying.translate([source], alignment=True, n_best=2)[0]
    for each in found.n_best:
        assert all(word in each for word in ("Дмитрий Иванов", "李雷", "Tom", "Łódź"))
        assert each.count("\n") == 1
        assert each.alignment.source_words == tuple(source.replace("李雷.", "李 雷 .").split())
        assert "".join(each.alignment.target_words) == "".join(each.split())
    pairs = {
        (found.alignment.source_words[i], found.alignment.target_words[j])
        for i, j, _ in found.alignment.links
    }
    assert {("Łódź.", "Łódź."), ("Иванов", "Иванов")} & pairs
    assert (found.required, found.missing) == (3, ())


def test_words_that_are_known_change_nothing(
    translator: TranslationPipeline, copying: ConsistentTranslation
) -> None:
    texts = ["Tom met us in Zürich.", "", "I am happy 😀."]
    assert copying.translate(texts) == translator.translate(texts)


def test_names_that_the_model_misspells_are_those_of_the_source(
    translator: TranslationPipeline, copying: ConsistentTranslation
) -> None:
    sources = ["Heidelberg is a small town.", "We met Priyanka in Ouagadougou.\nI love cats."]
    before = translator.translate(sources)
    assert "Heidelberg" not in before[0]  # such as Eridelberg
    assert "Ouagadougou" not in before[1]
    town, met = copying.translate(sources, alignment=True)
    assert town == "Heidelberg ist eine kleine Stadt."
    assert "Ouagadougou" in met
    assert met.endswith("\nIch liebe Katzen.")
    assert "Heidelberg" in town.alignment.target_words


def test_a_text_of_unknown_words_alone_is_left_as_it_is(copying: ConsistentTranslation) -> None:
    texts = ["李雷", "Дмитрий Иванов!", "李雷 sleeps."]
    alone, signed, sentence = copying.translate(texts, alignment=True)
    assert [alone, signed] == texts[:2]
    assert "".join(signed.alignment.target_words) == "ДмитрийИванов!"
    assert sentence.startswith("李雷 schläft")


def test_names_that_the_model_leaves_out_are_copied(
    translator: TranslationPipeline, copying: ConsistentTranslation
) -> None:
    source = "Shouldn't we help Thimphu?"
    assert "Th" not in translator.translate([source])[0]
    [found] = copying.translate([source], alignment=True)
    assert "Thimphu" in found
    assert found.alignment.source_words == tuple(source.split())
    [sampled] = copying.translate([source], sampling=True, seed=1)
    assert (sampled.required, sampled.missing) == (0, ())  # samples cannot be required to have it


def test_words_that_the_model_translates_are_no_lost_names(
    translator: TranslationPipeline, copying: ConsistentTranslation
) -> None:
    # They begin a sentence, have many pieces, and the translation has nothing like them.
    sources = ["Lemons are sour.", "Although he may be clever, he is not wise."]
    for source in sources:
        target = str(translator.translate([source])[0])
        names = names_to_copy(source, target, ("en", "de"), translator.tokenizers)
        assert names == {source.split()[0]}
    assert copying.translate(sources) == translator.translate(sources)


def test_more_unknown_words_than_names_and_long_lines(copying: ConsistentTranslation) -> None:
    many = " and ".join(f"Лев{i}" for i in range(20))
    assert copying.translate([f"We saw {many}."])[0].count("Лев") >= 12
    long = "We met Дмитрий. " + "The dog sleeps in the house. " * 60 + "We met 李雷."
    found = copying.translate([long])[0]
    assert found.count("Дмитрий") == found.count("李雷") == 1


def test_all_at_once(translator: TranslationPipeline) -> None:
    ours = ConsistentTranslation(
        translator, capitals=True, copy_unknown=True, numbers="localize", languages=("en", "de")
    )
    source = "TOM HAS 1,234.50 DOLLARS. We met Łucja. МИША IS VERY TIRED."
    found = ours.translate([source], alignment=True)[0]
    assert "1.234,50" in found
    assert "Łucja" in found
    assert found.endswith(". МИША IST SEHR MÜDE.")
    assert found.startswith("TOM HAT")
    assert ours.translate([source], sampling=True)[0].count("\n") == 0


def test_terms_hold_beside_copies(copying: ConsistentTranslation) -> None:
    terms = Glossary([Term("house", ("Gebäude",))])
    found = copying.translate(["Миша sees the house."], glossary=terms)[0]
    assert "Миша" in found
    assert "Gebäude" in found
    assert (found.required, found.missing) == (2, ())
