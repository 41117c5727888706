"""What the examination counts, beside what is plain from the pairs themselves."""

from __future__ import annotations

import gzip
import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.apps.cleaning.check_report import check_corpus, prepare
from heedful.apps.cleaning.cleaning_settings import CleaningSettings
from heedful.apps.cleaning.corpus_clean import clean_corpus
from heedful.apps.cleaning.corpus_statistics import SideCounter, WordCounter
from heedful.apps.cleaning.examination import examine, rules_of
from heedful.apps.cleaning.language_check import LanguageCheck, guess_languages
from heedful.apps.cleaning.leak_index import LeakIndex
from heedful.apps.cleaning.neighbours import likenesses, shifted_rows
from heedful.apps.cleaning.raw_pairs import RawPair
from heedful.apps.cleaning.repeats import past_the_first, repeated
from heedful.data.corpus_spec import CorpusSpec
from heedful.data.pair_corpus import Pair
from heedful.errors import ConfigError, DataError

PLAIN = CleaningSettings(off=("language",))


def rules_per_line(path: Path, limits: CleaningSettings = PLAIN, **rest: object) -> list[list[str]]:
    corpus, tools = prepare(CorpusSpec(file=str(path)), limits, **rest)
    return [rules_of(int(bits)) for bits in examine(corpus, tools).found]


def test_lines_that_are_no_pairs_are_told_and_reading_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_bytes(b"a\tb\nno tab\na\xff\tb\na\tb\tc\n\tb\nNUL\x00\tb\nc\td\n")
    assert rules_per_line(path) == [
        [],
        ["no_pair"],
        ["undecodable"],
        ["no_pair"],
        ["empty"],
        ["undecodable"],
        [],
    ]
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"source": "a", "target": "b"}\n{"source": "a"}\n[\n\xff\n')
    assert rules_per_line(path) == [[], ["no_pair"], ["no_pair"], ["undecodable"]]


def test_aligned_files_with_wrong_bytes_on_one_side(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"one\ntwo\xfe\nthree\n")
    (tmp_path / "t").write_bytes(b"eins\nzwei\ndr\xffei\n")
    spec = CorpusSpec(source=str(tmp_path / "s"), target=str(tmp_path / "t"))
    corpus, tools = prepare(spec, PLAIN)
    checked = check_corpus(corpus, tools)
    (rule,) = (each for each in checked.rules if each.rule == "undecodable")
    assert rule.pairs == rule.removed == 2
    assert [e.line for e in rule.examples] == [2, 3]
    reasons = [e.reasons["undecodable"] for e in rule.examples]
    assert reasons[0].startswith("source: Line 2 is not UTF-8 (byte 4")
    assert reasons[1].startswith("target: Line 3 is not UTF-8 (byte 3")


def test_hopeless_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("1\n2\n", encoding="utf-8")
    (tmp_path / "t").write_text("1\n", encoding="utf-8")
    (tmp_path / "u.tsv").write_text("a\tb\n", encoding="utf-16")
    (tmp_path / "e.tsv").write_bytes(b"")
    two = CorpusSpec(source=str(tmp_path / "s"), target=str(tmp_path / "t"))
    for spec, message in (
        (two, "source has 2 lines and its target has 1"),
        (CorpusSpec(file=str(tmp_path / "u.tsv")), "UTF-16"),
        (CorpusSpec(file=str(tmp_path / "e.tsv")), "no pairs"),
        (CorpusSpec(file=str(tmp_path / "none.tsv")), "No such file"),
        (CorpusSpec(file=str(tmp_path / "s")), "read from .tsv, .csv, .jsonl"),
    ):
        with pytest.raises(DataError, match=message):
            examine(*prepare(spec, PLAIN))


def test_duplicates_and_many_targets_keep_the_first(tsv) -> None:
    pairs = [("a", "1"), ("a", "2"), ("a", "1"), ("b", "1"), ("a", "3"), (" a ", "1 "), ("b", "1")]
    limits = CleaningSettings(off=("language",), max_targets=2)
    assert rules_per_line(tsv(pairs), limits) == [
        [],
        [],
        ["duplicate"],
        [],
        ["many_targets"],
        ["duplicate"],
        ["duplicate"],
    ]
    checked = check_corpus(*prepare(CorpusSpec(file=str(tsv(pairs))), limits))
    assert checked.sources["sources"] == 2
    assert checked.sources["targets_of_a_source"]["3-5"] == 1
    assert checked.most_targets == (("a", 3),)
    bad = [("x" * 60, "yes")] * 2  # what went for another reason is no duplicate besides
    assert rules_per_line(tsv(bad)) == [["length_ratio"]] * 2
    off = CleaningSettings(off=("language", "duplicate", "many_targets"))
    assert set(map(tuple, rules_per_line(tsv(pairs), off))) == {()}


@given(st.lists(st.integers(0, 6), max_size=40), st.data(), st.integers(1, 3))
def test_repeats_are_those_of_a_dictionary(keys: list[int], data, limit: int) -> None:
    rows = [n for n in range(len(keys)) if data.draw(st.booleans())]
    array, index = np.array(keys, np.uint64), np.array(rows, np.intp)
    seen: Counter[int] = Counter()
    again, past = [], []
    for row in rows:
        again += [row] * (seen[keys[row]] > 0)
        past += [row] * (seen[keys[row]] >= limit)
        seen[keys[row]] += 1
    assert repeated(array, index).tolist() == again
    found, counts = past_the_first(array, index, limit)
    assert found.tolist() == past
    assert counts.sources == len(seen)
    assert sum(counts.bins.values()) == len(seen)
    assert [n for n, _ in counts.most] == sorted((n for n in seen.values() if n > 1), reverse=True)
    assert all(keys.index(keys[row], 0) <= row for _, row in counts.most)


def jaccard(one: str, other: str) -> float:
    sets = []
    for text in (one, other):
        words = re.findall(r"[a-z]+", text.lower())
        padded = [None, *words, None]
        sets.append(
            {(padded[i], padded[i + 1]) for i in range(len(words) + 1)} if len(words) > 2 else set()
        )
    union = sets[0] | sets[1]
    return len(sets[0] & sets[1]) / len(union) if sets[0] and sets[1] else 0.0


SENTENCES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(SENTENCES, min_size=1, max_size=6),
    st.lists(SENTENCES, max_size=6),
    st.sampled_from([0.3, 0.5, 0.7, 1.0]),
)
def test_near_leaks_are_those_of_comparing_all(
    tests: list[str], sources: list[str], near: float
) -> None:
    index = LeakIndex([Pair(1, text, "x") for text in tests], near)
    for source in sources:
        by_letters = source.replace(" ", "") in [text.replace(" ", "") for text in tests]
        wanted = by_letters or any(jaccard(source, text) >= near - 1e-9 for text in tests)
        assert index.has_near(source) == wanted, source
        assert index.has(source) == (source in tests)


def test_leaks(tsv) -> None:
    test = tsv([("The cat sat on the mat.", "Die Katze."), ("Yes.", "Ja.")], "test.tsv")
    train = tsv(
        [
            ("The cat sat on the mat.", "x"),
            ("the cat sat on the mat!", "y"),
            ("The cat sat on the red mat.", "z"),
            ("A dog ran off.", "Ja."),
            ("YES", "w"),
        ]
    )
    against = [CorpusSpec(file=str(test))]
    limits = CleaningSettings(off=("language", "length_ratio"), near=0.6)
    expected = [["leak"], ["near_leak"], ["near_leak"], [], ["near_leak"]]
    assert rules_per_line(train, limits, against=against) == expected
    strict = CleaningSettings(off=("language", "length_ratio"), near=1.0)
    assert rules_per_line(train, strict, against=against)[2] == []
    off = CleaningSettings(off=("language", "length_ratio", "near_leak", "leak"))
    assert rules_per_line(train, off, against=against) == [[]] * 5
    checked = check_corpus(*prepare(CorpusSpec(file=str(train)), limits, against=against))
    assert checked.known_targets == 1
    assert "leak" in check_corpus(*prepare(CorpusSpec(file=str(train)), PLAIN)).not_applied


EN = ["The weather is lovely this morning.", "We are going to the market together."]
DE = ["Das Wetter ist heute Morgen herrlich.", "Wir gehen zusammen auf den Markt."]


def test_languages(tsv) -> None:
    pairs = [*zip(EN * 3, DE * 3, strict=True), (EN[0], EN[1]), (DE[0], DE[1]), ("Ok", "12 345")]
    limits = CleaningSettings(languages=("en", "de"), off=("duplicate",))
    wanted = [[]] * 6 + [["language"], ["language"], []]
    assert rules_per_line(tsv(pairs), limits) == wanted
    assert rules_per_line(tsv(pairs), CleaningSettings(off=("duplicate",))) == wanted  # guessed
    checked = check_corpus(*prepare(CorpusSpec(file=str(tsv(pairs))), CleaningSettings()))
    assert checked.languages == ("en", "de")
    (rule,) = (each for each in checked.rules if each.rule == "language")
    assert re.match(r"target: en \d+%", rule.examples[0].reasons["language"])
    neither = CleaningSettings(off=("duplicate", "language"))
    assert rules_per_line(tsv(pairs), neither) == [[]] * 9
    assert guess_languages([("1", "2")]) is None
    french = "Il fait très beau ce matin dans la ville."
    assert guess_languages([(EN[0], DE[0])] * 2 + [(french, DE[1])]) == ("en", "de")
    assert guess_languages([(EN[0], DE[0]), (french, DE[1]), (DE[0], DE[0])]) is None
    assert (
        "language"
        in check_corpus(
            *prepare(CorpusSpec(file=str(tsv([("1", "2")]))), CleaningSettings())
        ).not_applied
    )


def test_code_and_markup_are_in_no_language() -> None:
    check = LanguageCheck(("fr", "fr"), 0.01)
    code = "`pip_install` /usr/share/python3.11 self.assertEqual(x=3) <span> @property"
    assert check.doubts([(code, code)]).tolist() == [0]
    assert check.doubts([(EN[0], EN[0])])[0] > 1


@pytest.mark.parametrize(
    ("languages", "message"),
    [(("en", "deu"), "'deu' is unknown"), (("en",), "1 languages instead of two")],
)
def test_languages_that_cannot_be(languages: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LanguageCheck(languages, 0.01)


def test_a_model_scores_what_no_other_rule_finds(tsv) -> None:
    asked = []

    def scorer(sources: list[str], targets: list[str]) -> list[float]:
        asked.extend(sources)
        return [-1.0 if source == "bad" else 1.1 for source in sources]

    path = tsv([("good", "gut"), ("bad", "gut"), ("worse", " ")])
    limits = CleaningSettings(off=("language",), min_model_gain=1)
    assert rules_per_line(path, limits, scorer=scorer) == [[], ["model"], ["empty"]]
    assert asked == ["good", "bad"]
    checked = check_corpus(*prepare(CorpusSpec(file=str(path)), limits, scorer=scorer))
    (rule,) = (each for each in checked.rules if each.rule == "model")
    assert rule.examples[0].reasons == {"model": "gain of -1.00 a token"}
    off = CleaningSettings(off=("language", "model"))
    assert rules_per_line(path, off, scorer=scorer)[1] == []


def test_the_worst_pairs_come_first(tsv) -> None:
    fine = [(f"word number {'a' * n}", f"Wort Nummer {'b' * n}") for n in range(150)]
    bad = [("x" * 60, "yes"), ("x" * 3000, "\x01 \ufffd"), ("It is 5.", "Es ist 6.")]
    path = tsv([*fine, *bad, *bad])
    checked = check_corpus(*prepare(CorpusSpec(file=str(path)), PLAIN))
    assert len(checked.worst) == 100
    lines = [pair.line for pair in checked.worst]
    assert set(lines[:2]) == {152, 155}
    assert set(lines[2:6]) == {151, 153, 154, 156}
    assert lines[:2] == [152, 155], "of equals the first comes first"
    assert all(pair.reasons for pair in checked.worst[:6])
    assert not checked.worst[6].reasons
    again = check_corpus(*prepare(CorpusSpec(file=str(path)), PLAIN))
    assert again.plain() == checked.plain()


def test_statistics_are_those_of_counting_all() -> None:
    counter = SideCounter()
    texts = ["the cat the dog", "the 3 é ж", "", "漢字!"]
    counter.add(texts[:2])
    counter.add(texts[2:])
    found = counter.result()
    assert found.words == 9
    assert found.characters == sum(map(len, texts))
    assert found.different_words == 7
    assert not found.is_estimated
    assert found.top_words["the"] == 3
    assert found.shares[100] == 1
    assert found.scripts["Latin"] == 16
    assert found.scripts["Cyrillic"] == 1
    assert found.scripts["Cjk"] == 2
    assert found.scripts["digits"] == 1
    assert found.rare_characters["U+0436"] == "CYRILLIC SMALL LETTER ZHE"
    assert found.different_characters == len(set("".join(texts)))
    assert found.lengths["longest"] == 4
    assert sum(found.histogram.values()) == 4


def test_words_are_estimated_where_there_are_too_many() -> None:
    counter = WordCounter(most=1000)
    for first in range(0, 30_000, 500):
        counter.add([f"w{n % 20_000}" for n in range(first, first + 500)] + ["the"] * 50)
    assert counter.is_estimated
    assert len(counter.counts) <= 1000
    assert counter.counts["the"] == 60 * 50
    assert counter.total == 33_000
    assert counter.different == pytest.approx(20_001, rel=0.07)  # three standard errors


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=1, max_size=20))
def test_anything_can_be_checked(pairs: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.tsv"
        text = "".join(f"{a}\t{b}\n" for a, b in pairs)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        checked = check_corpus(*prepare(CorpusSpec(file=str(path)), CleaningSettings()))
        assert checked.pairs == text.count("\n")
        assert sum(rule.removed for rule in checked.rules) == checked.removed
        assert all(rule.removed <= rule.pairs for rule in checked.rules)


MEMORY = """<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en-US"><seg>He is <bpt i="1">&lt;b&gt;</bpt>tired<ept i="1"/>
 &amp; old.</seg></tuv><tuv xml:lang="de"><seg>Er ist müde und alt.</seg></tuv></tu>
<tu><tuv xml:lang="en-US"><seg>She sleeps.</seg></tuv></tu>
<tu><tuv xml:lang="de"><seg>Er schläft.</seg></tuv>
<tuv xml:lang="en-GB"><seg>He sleeps.</seg></tuv></tu>
</body></tmx>"""


@pytest.mark.parametrize("packed", [False, True])
def test_a_translation_memory_is_a_corpus(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("m.tmx.gz" if packed else "m.tmx")
    path.write_bytes(gzip.compress(MEMORY.encode()) if packed else MEMORY.encode())
    limits = CleaningSettings(off=("language",), languages=("en", "de"))
    corpus, tools = prepare(CorpusSpec(file=str(path)), limits)
    assert [(pair.source, pair.target) for pair in corpus if pair.fault is None] == [
        ("He is tired & old.", "Er ist müde und alt."),
        ("He sleeps.", "Er schläft."),
    ]
    assert [rules_of(int(bits)) for bits in examine(corpus, tools).found] == [[], ["no_pair"], []]
    cleaned = clean_corpus(corpus, tools, tmp_path / "out")
    assert [Path(file).name for file in cleaned.files] == ["m.tsv.gz" if packed else "m.tsv"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('<!DOCTYPE tmx [<!ENTITY a "b">]><tmx>&a;</tmx>', "declares entities"),
        ("<tmx><body><tu>", "no element found"),
        ("", "no element found"),
        (
            MEMORY.replace("</tuv></tu>", '</tuv><tuv xml:lang="fr"><seg/></tuv></tu>', 1),
            "languages en-US, de, fr",
        ),
    ],
)
def test_memories_that_cannot_be_read_are_refused(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "m.tmx"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        examine(*prepare(CorpusSpec(file=str(path)), PLAIN))


NAMES = [
    f"{a}{b}" for a in ("Bar", "Lin", "Mor", "Tav", "Ush") for b in ("dov", "kel", "nim", "po")
]


def pairs_of(count: int) -> list[tuple[str, str]]:
    """Pairs with names, of several lengths."""
    name = NAMES.__getitem__
    return [
        (
            f"{name(n % 20)} saw {n + 10} big houses{' in the old town' * (n % 3)}.",
            f"{name(n % 20)} sah {n + 10} große Häuser{' in der alten Stadt' * (n % 3)}.",
        )
        for n in range(count)
    ]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 100), st.integers(60, 150), st.sampled_from([-2, -1, 1, 2]))
def test_lines_out_of_step_are_found_and_no_others(first: int, length: int, by: int) -> None:
    pairs = pairs_of(260)
    end = first + length
    targets = [pairs[(n + by * (first <= n < end)) % 260][1] for n in range(260)]
    rows = [RawPair(n, pairs[n][0], target, ()) for n, target in enumerate(targets, start=0)]
    chunks = [likenesses(rows[:n], rows[n : n + 100]) for n in range(0, 260, 100)]
    gaps = np.array([value for chunk in chunks for value in chunk], np.int8).reshape(260, -1)
    found = np.zeros(260, bool)
    found[shifted_rows(gaps)] = True
    assert found[first:end].sum() >= 0.9 * length
    assert not found[: max(first - 12, 0)].any()  # a mean at the edge has lines of both
    assert not found[end + 12 :].any()


def test_one_target_of_many_sources_stays_so_often(tsv) -> None:
    pairs = [*pairs_of(100), *((source, "Ja, das ist so.") for source, _ in pairs_of(160)[100:])]
    limits = CleaningSettings(off=("language", "numbers", "length_ratio", "shifted"), max_sources=5)
    found = rules_per_line(tsv(pairs), limits)
    assert found == [[]] * 105 + [["many_sources"]] * 55


def test_processes_find_what_one_does(tsv) -> None:
    pairs = pairs_of(700)
    pairs[7] = (pairs[7][0], "")
    pairs[600] = (pairs[600][0], f"<p>{pairs[600][1]}</p>")
    path = tsv([*pairs, *pairs[:3]])
    alone, two = (rules_per_line(path, workers=workers) for workers in (1, 2))
    assert alone == two
    assert alone[7] == ["empty", "length_ratio"]
    assert alone[600] == ["markup"]
    assert alone[-3:] == [["duplicate"]] * 3
