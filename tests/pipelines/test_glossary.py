"""Glossaries: their files, terms in sources, and terms in translations."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.errors import ConfigError, DataError, ModelError
from heedful.pipelines.glossary import Glossary, Term, spellings
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.lexical_shortlist import make_shortlist
from heedful.search.required_phrases import PhraseSelection


@pytest.fixture(scope="module")
def translator():
    return heedful.load("en-de", device="cpu")


def glossary(*rows):
    return Glossary([Term(source, tuple(targets), fold) for source, targets, fold in rows])


def found(text, *sources, fold=False):
    return [
        text[each.start : each.end]
        for each in glossary(*((source, ["x"], fold) for source in sources)).find(text)
    ]


@pytest.mark.parametrize(
    ("text", "sources", "expected"),
    [
        ("a cat, a Cat; cats (cat)", ["cat"], ["cat", "cat"]),
        ("a cat at https://cat.org/cat?cat=1 or cat@cat.org", ["cat"], ["cat"]),
        ("`cat` <code>cat</code> a <b>cat</b> {cat} %(cat)s", ["cat"], ["cat"]),
        ('<i translate="no">a cat</i> <cat x="cat"> cat', ["cat"], ["cat"]),
        ("Cats and Cats", ["cats"], ["Cats"]),  # only where a sentence begins
        ("the user guide for a user", ["user", "user guide"], ["user guide", "user"]),
        ("user  guide", ["user guide"], ["user  guide"]),
        ("use C++ and C", ["C", "C++"], ["C++", "C"]),
        ("foo - bar foo-bar", ["foo-bar"], ["foo-bar"]),
        ("东京大学很好", ["大学"], ["大学"]),
        ("snake_case snake", ["snake"], ["snake"]),
        ("dog's", ["dog"], ["dog"]),
        ("", ["dog"], []),
    ],
)
def test_terms_are_whole_words_and_the_longest_wins(text, sources, expected):
    assert found(text, *sources) == expected


def test_case_is_ignored_where_a_term_says_so():
    assert found("A BANK, the Bank, banks", "bank", fold=True) == ["BANK", "Bank"]
    assert found("A BANK, the Bank, banks", "bank") == []


WORDS = st.lists(st.sampled_from(["a", "b", "ab", "A", "c-b"]), min_size=1, max_size=6).map(
    " ".join
)


@given(text=WORDS, sources=st.lists(WORDS, min_size=1, max_size=4, unique=True))
@settings(max_examples=80, deadline=None)
def test_matches_are_those_of_a_pattern(text, sources):
    longest_first = sorted(sources, key=lambda s: -len(re.findall(r"\w+|[^\w\s]", s)))
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(s)}(?!\w)" for s in longest_first))
    text = f"x {text}"  # no sentence begins with a term
    assert found(text, *sources) == pattern.findall(text)


def test_files_are_read(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text(
        "\ufeffsource\ttarget\tflags\r\nbank\tBank | Kreditinstitut\t\r\n\r\n"
        "user  guide\tHandbuch\tignore-case\nHeedful\t\tkeep\nbank\tSparkasse\n",
        encoding="utf-8",
    )
    assert Glossary.read(path).terms == (
        Term("bank", ("Bank", "Kreditinstitut", "Sparkasse"), line=2),
        Term("user guide", ("Handbuch",), ignore_case=True, line=4),
        Term("Heedful", ("Heedful",), line=5),
    )


def test_each_form_of_a_term_is_found_and_the_same_translations_serve(tmp_path):
    file = tmp_path / "terms.tsv"
    file.write_text("cat | cats\tKatze | Katzen\nTom | Toms\t\tkeep\n")
    found = Glossary.read(file).find("The cats of Toms; a cathedral, a cat.")
    assert [(one.term.source, one.term.targets) for one in found] == [
        ("cats", ("Katze", "Katzen")),
        ("Toms", ("Toms",)),
        ("cat", ("Katze", "Katzen")),
    ]


@pytest.mark.parametrize(
    ("content", "place", "what"),
    [
        ("a\tb\na\n", ":2", "no target"),
        ("a\tb\n\tb\n", ":2", "no source"),
        ("a\t|\n", ":1", "no target"),
        ("a\tb\tkeeep\n", ":1", "no flag 'keeep'"),
        ("a\tb\tkeep\n", ":1", "no other translation"),
        ("a\tb\t\td\n", ":1", "4 columns"),
        ("", "", "no terms"),
        ("source\ttarget\n", "", "no terms"),
        ("a\tb\n\x00\n", "", "Line 2 holds a NUL"),
    ],
)
def test_a_line_that_is_no_term_is_named(tmp_path, content, place, what):
    path = tmp_path / "terms.tsv"
    path.write_text(content)
    with pytest.raises(DataError, match=what) as error:
        Glossary.read(path)
    assert error.value.where == f"{path}{place}"


MARTIF = """<?xml version='1.0'?>
<!DOCTYPE martif SYSTEM "TBXBasiccoreStructV02.dtd">
<martif type="TBX-Basic" xml:lang="en"><text><body>
<termEntry id="c1">
 <descrip type="subjectField">law</descrip>
 <langSet xml:lang="EN-us"><tig><term>user
   <hi>guide</hi></term></tig><tig><term>manual</term></tig></langSet>
 <langSet xml:lang="de"><ntig><termGrp><term>Handbuch</term></termGrp></ntig>
  <tig><term>Anleitung</term><termNote type="administrativeStatus">preferredTerm-admn-sts</termNote>
  </tig><tig><term>Manual</term>
  <termNote type="administrativeStatus">deprecatedTerm-admn-sts</termNote></tig></langSet>
</termEntry>
<termEntry><langSet xml:lang="fr"><tig><term>banque</term></tig></langSet></termEntry>
</body></text></martif>"""

TBX = """<tbx type="TBX-Basic" style="dct" xml:lang="en" xmlns="urn:iso:std:iso:30042:ed-2"
 xmlns:min="http://www.tbxinfo.net/ns/min"><text><body><!-- a comment --><conceptEntry id="c1">
<langSec xml:lang="en"><termSec><term>bank</term></termSec></langSec>
<langSec xml:lang="de-AT"><termSec><term>Geldhaus</term></termSec></langSec>
<langSec xml:lang="de"><termSec><term>Bank</term></termSec><termSec><term>Kasse</term>
<min:administrativeStatus>supersededTerm-admn-sts</min:administrativeStatus></termSec></langSec>
</conceptEntry></body></text></tbx>"""


def test_a_termbase_is_a_glossary(tmp_path):
    file = tmp_path / "terms.tbx"
    file.write_text(MARTIF)
    targets = ("Anleitung", "Handbuch")
    assert Glossary.read(file, languages=("en", "de-DE")).terms == (
        Term("user guide", targets, line=4),
        Term("manual", targets, line=4),
    )
    file.write_bytes(TBX.encode("utf-16"))
    for code, target in (("de", "Bank"), ("de_AT", "Geldhaus"), ("de-CH", "Bank")):
        terms = Glossary.read(file, languages=("en", code)).terms
        assert terms == (Term("bank", (target,), line=2),)


@pytest.mark.parametrize(
    ("content", "languages", "what"),
    [
        (TBX, ("en", "fr"), "no terms in both en and fr"),
        (TBX, ("en", None), "is not known"),
        (TBX[:-5], ("en", "de"), "cannot be read: unclosed token"),
        ("<tmx/>", ("en", "de"), "The root is <tmx>"),
        ("<?xml version='1.0' encoding='foo'?><tbx/>", ("en", "de"), "unknown encoding: foo"),
        ("<!DOCTYPE tbx SYSTEM 'x'><tbx>&x;</tbx>", ("en", "de"), "undefined entity"),
        ("<!DOCTYPE tbx [<!ENTITY a 'b'>]><tbx/>", ("en", "de"), "Line 1 declares an entity"),
    ],
)
def test_what_is_no_termbase_of_the_languages_is_said(tmp_path, content, languages, what):
    path = tmp_path / "terms.TBX"
    path.write_text(content)
    with pytest.raises(DataError, match=what) as error:
        Glossary.read(path, languages=languages)
    assert error.value.where == str(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        Glossary.read(tmp_path / "none.tsv")


TERMS = glossary(
    ("dog", ["Köter", "Kläffer"], False),
    ("horse", ["Gaul"], False),
    ("bicycle", ["Drahtesel"], False),
    ("Boston", ["Boston"], False),
)
SENTENCES = [
    "I have a dog.",
    "She likes cats.",
    "Where is the horse?",
    "Tom sold his bicycle in Boston.",
    "",
    '"dog" or (horse)',
]


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"beam": 6, "n_best": 3}])
def test_terms_are_in_the_translations(translator, options):
    plain = translator.translate(SENTENCES, **options)
    results = translator.translate(SENTENCES, glossary=TERMS, **options)
    assert [len(each.n_best) for each in results] == [len(each.n_best) for each in plain]
    for text, result, without in zip(SENTENCES, results, plain, strict=True):
        occurrences = TERMS.find(text)
        assert result.required == len(occurrences)
        assert result.missing == ()
        if not occurrences:
            assert (result, result.score) == (without, without.score)
        for candidate in result.n_best:
            words = re.findall(r"\w+", candidate)
            assert all(set(each.term.targets) & set(words) for each in occurrences)
    for text, result in zip(SENTENCES, results, strict=True):
        (alone,) = translator.translate([text], glossary=TERMS, **options)
        assert alone == result
        assert alone.score == pytest.approx(result.score, abs=1e-4)


def test_sentences_with_terms_are_one_batch_whatever_their_terms(translator, monkeypatch):
    batches = []
    build = PhraseSelection.of

    def record(requirements, width, *rest):
        batches.append((width, len(requirements.phrases), all(requirements.phrases)))
        return build(requirements, width, *rest)

    monkeypatch.setattr(PhraseSelection, "of", record)
    translator.translate(SENTENCES, glossary=TERMS)
    translator.translate(SENTENCES, glossary=TERMS, beam=1)
    assert batches == [(4, 4, True)] * 2


@pytest.mark.parametrize("reduced", ["int8", "shortlist"])
def test_terms_are_in_translations_of_engines(translator, tmp_path, reduced):
    pipeline, files = translator, [tmp_path / "text.en", tmp_path / "text.de"]
    if reduced == "int8":
        pipeline = heedful.load("en-de", device="cpu", precision="int8")
    else:  # none of its tokens is in a term
        for file, text in zip(files, ("yes\n", "ja\n"), strict=True):
            file.write_text(text * 3)
        learned = make_shortlist(*files, translator.tokenizers, per_token=1, frequent=5)
        models, tokenizers = translator.models, translator.tokenizers
        pipeline = TranslationPipeline(models, tokenizers, shortlist=learned.shortlist)
    results = pipeline.translate(SENTENCES, glossary=TERMS)
    for text, result in zip(SENTENCES, results, strict=True):
        words = re.findall(r"\w+", result)
        assert all(set(each.term.targets) & set(words) for each in TERMS.find(text))


def test_what_has_no_room_is_named(translator):
    (result,) = translator.translate(
        ["The dog and the horse."], glossary=TERMS, max_length=2, beam=2
    )
    assert result.required == 2
    assert set(result.missing) & {"dog → Köter | Kläffer", "horse → Gaul"}


def test_samples_and_unknown_characters_are_refused(translator):
    with pytest.raises(ConfigError, match="beam search"):
        translator.translate(["a dog"], glossary=TERMS, sampling=True)
    with pytest.raises(DataError, match="cannot spell '漢'"):
        translator.translate(["a dog"], glossary=glossary(("dog", ["漢"], False)))


def test_a_phrase_after_a_sign_is_spelled_without_space(translator):
    target = translator.tokenizers.target
    spaced, glued = spellings("Gaul", target, spaced=False)
    assert target.decode(spaced) == "Gaul"
    assert target.decode([*target.encode("ein ("), *glued]) == "ein (Gaul"
    assert spellings("Gaul", target, spaced=True) == [spaced]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("a dog and a dog", "ein Hund und ein Hund", ["Hund", "Hund"]),
        ("a dog and a dog", "ein Hund und eine Katze", ["Hund"]),  # no word is of two terms
        ("a dog", "ein Hunderennen", []),
        ("a dog", "ein Welpe", ["Welpe"]),
        ("run fast", "Schnell laufen", ["laufen"]),
        ("run fast", "Laufen, schnell", ["laufen"]),  # where a sentence begins
        ("run fast", "schnell Laufen", []),
        ("my user guide", "mein Hand- buch", ["Hand- buch"]),
        ("nothing", "Hund", []),
    ],
)
def test_terms_that_a_pair_agrees_with(source, target, expected):
    terms = glossary(
        ("dog", ["Hund", "Welpe"], False),
        ("run", ["laufen"], False),
        ("user guide", ["Hand- buch"], False),
        ("user", ["Hand"], False),
    )
    found = terms.agreed(source, target)
    assert [each.target for each in found] == expected
    assert all(source[each.start : each.end] in ("dog", "run", "user guide") for each in found)


def test_soft_terms_require_nothing_and_need_a_model_that_knows_them(translator):
    soft = Glossary(TERMS.terms, is_soft=True)
    tokenizer = translator.tokenizers.target
    assert soft.phrases("a dog", tokenizer) == ()
    assert [each.target for each in soft.inline("a dog, a horse")] == ["Köter", "Gaul"]
    assert TERMS.inline("a dog") == []
    with pytest.raises(ModelError, match="has not learned soft terms") as error:
        translator.translate(["a dog"], glossary=soft)
    assert "--soft-terms" in error.value.remedy
