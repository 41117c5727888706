"""Corpus metrics against sacreBLEU's own command line and against computations by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import unicodedata
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.apps.evaluation.bootstrap import paired_bootstrap, score_intervals
from heedful.errors import ConfigError, DataError
from heedful.evaluate.corpus_metrics import (
    bits_per_unit,
    corpus_scores,
    describe_spelling,
    exact_match,
    perplexity,
)

HYPOTHESES = [
    "The cat sat on the mat .",
    "A man is riding a green horse, slowly.",
    "Two dogs play in the snow",
    "",
    "It costs 1,234.50 dollars today",
]
REFERENCES = [
    "The cat is sitting on the mat .",
    "A man rides a brown horse slowly.",
    "Two dogs are playing in the snow",
    "Nothing was said",
    "it costs 1,234.50 Dollars today",
]


def sacrebleu_command(folder: Path, *options: str) -> dict[str, tuple[float, str]]:
    """Scores and signatures of sacreBLEU's command line."""
    reference, hypothesis = folder / "ref", folder / "hyp"
    reference.write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    hypothesis.write_text("\n".join(HYPOTHESES) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", str(reference), "-i", str(hypothesis)]
    command += ["-m", "bleu", "chrf", "ter", "--width", "10", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        item["name"].lower().replace("chrf2", "chrf"): (item["score"], item["signature"])
        for item in json.loads(done.stdout)
    }


@pytest.mark.parametrize(
    ("settings_", "options"),
    [
        ({}, ()),
        (
            {"tokenize": "none", "lowercase": True},
            ("--tokenize", "none", "-lc", "--chrf-lowercase"),
        ),
    ],
    ids=["default", "tokenised and lower-cased"],
)
def test_equal_to_sacrebleu_command(
    tmp_path: Path, settings_: dict[str, object], options: tuple[str, ...]
) -> None:
    theirs = sacrebleu_command(tmp_path, *options)
    ours = corpus_scores(HYPOTHESES, REFERENCES, **settings_)  # type: ignore[arg-type]
    assert list(ours) == ["bleu", "chrf", "ter"]
    for name, (score, signature) in theirs.items():
        assert ours[name].score == pytest.approx(score, abs=1e-9)
        assert ours[name].signature == signature


def plain_bleu(hypotheses: list[str], references: list[str]) -> float:
    """BLEU of white-space tokens as in Papineni 2002, without smoothing."""
    log_precision = 0.0
    for order in range(1, 5):
        right = total = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            grams = [
                Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))
                for words in (hypothesis.split(), reference.split())
            ]
            right += sum((grams[0] & grams[1]).values())
            total += sum(grams[0].values())
        if right == 0:
            return math.nan
        log_precision += math.log(right / total) / 4
    ours = sum(len(line.split()) for line in hypotheses)
    theirs = sum(len(line.split()) for line in references)
    return 100 * math.exp(log_precision + min(0.0, 1 - theirs / ours))


words = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9).map(" ".join)


@settings(max_examples=60)
@given(st.lists(st.tuples(words, words), min_size=1, max_size=6))
def test_bleu_by_definition(pairs: list[tuple[str, str]]) -> None:
    hypotheses, references = [a for a, _ in pairs], [b for _, b in pairs]
    expected = plain_bleu(hypotheses, references)
    score = corpus_scores(hypotheses, references, ["bleu"], tokenize="none")["bleu"]
    if not math.isnan(expected):
        assert score.score == pytest.approx(expected)


def test_spellings_that_look_alike_score_alike() -> None:
    references = ["Der Bär über dem Café schläft müde.", "Schöne Grüße an alle Bücher"]
    outputs = ["Der Bär über dem Café schläft heute.", "Schöne Grüße an die Bücher"]
    wanted = corpus_scores(outputs, references)
    apart = [unicodedata.normalize("NFD", line) for line in references]
    odd = [line.replace("ü", "ü\u00ad").replace(" ", "\u00a0") for line in references]
    for other in (apart, odd):
        assert corpus_scores(outputs, other) == wanted
        assert corpus_scores(other, [outputs]) == corpus_scores(references, [outputs])
        assert score_intervals(outputs, other, samples=5) == score_intervals(
            outputs, references, samples=5
        )
        pairs = [paired_bootstrap(outputs, each, references, samples=5) for each in (other, apart)]
        assert pairs[0] == pairs[1]
        assert "2 lines are not in" in (describe_spelling(outputs, other) or "")
    assert describe_spelling(outputs, references) is None
    assert exact_match(outputs, outputs) == 1
    assert exact_match(apart, references) == 0


def test_details_by_hand() -> None:
    scores = corpus_scores(["a b c d e"], ["a b c d f g"], ["bleu", "ter"], tokenize="none")
    details = scores["bleu"].details
    assert details["precisions"] == pytest.approx([80, 75, 200 / 3, 50])
    assert details["brevity_penalty"] == pytest.approx(math.exp(1 - 6 / 5))
    assert (details["hypothesis_length"], details["reference_length"]) == (5, 6)
    # one word replaced and one missing of six
    assert scores["ter"].score == pytest.approx(100 * 2 / 6)
    assert scores["ter"].details == {"edits": 2, "reference_length": 6}
    assert json.loads(json.dumps(scores["bleu"].plain()))["name"] == "bleu"


def test_several_references() -> None:
    score = corpus_scores(["the cat sat there now"], [["no"], ["the cat sat there now"]], ["bleu"])
    assert score["bleu"].score == pytest.approx(100)
    assert "nrefs:2" in score["bleu"].signature


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a", "b"], ["a"], "2 lines to score, but the reference has 1"),
        (["a", "b"], [["a", "b"], ["a"]], "reference 2 has 1"),
        (["a"], [], "1 lines to score, but the reference has 0"),
        ([], [], "nothing to score"),
    ],
)
def test_lines_must_correspond(hypotheses: list[str], references: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        corpus_scores(hypotheses, references)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'bleu'"):
        corpus_scores(["a"], ["a"], ["blue"])
    with pytest.raises(ConfigError, match="Unknown tokenizer '13b'"):
        corpus_scores(["a"], ["a"], ["bleu"], tokenize="13b")
    # the tokenizer is BLEU's alone
    assert corpus_scores(["a"], ["a"], ["chrf"], tokenize="13b")["chrf"].score == 100


def test_exact_match_is_to_the_last_character() -> None:
    assert exact_match(["a b", "a\u00a0b", "C", ""], ["a b", "a b", "c", ""]) == 0.5
    assert exact_match(["a"], ["a"]) == 1.0
    with pytest.raises(DataError, match="1 lines to score, but the reference has 2"):
        exact_match(["a"], ["a", "b"])
    with pytest.raises(DataError, match="nothing to score"):
        exact_match([], [])


def test_perplexity_of_a_fair_choice_is_its_size() -> None:
    assert perplexity(10 * math.log(7), 10) == pytest.approx(7)
    assert perplexity(0.0, 3) == 1.0
    assert perplexity(1e6, 1) == math.inf


def test_bits() -> None:
    # eight characters, each one of four equally likely: two bits each
    assert bits_per_unit(8 * math.log(4), 8) == pytest.approx(2)


JAPANESE = "ja-mecab" if find_spec("MeCab") and find_spec("ipadic") else "char"


@pytest.mark.parametrize(
    ("reference", "hypothesis", "tokenizer"),
    [
        ("汤姆昨天住在波士顿的旧房子里。", "汤姆今天住在波士顿的旧房子里。", "zh"),
        ("彼は昨日ボストンに住んでいました。", "彼は今日ボストンに住んでいました。", JAPANESE),
        ("ทอมอยู่ที่บอสตันเมื่อวานนี้", "ทอมอยู่ที่บอสตันเมื่อวาน", "char"),
        ("ខ្ញុំទៅផ្ទះនៅថ្ងៃនេះ។", "ខ្ញុំទៅផ្ទះថ្ងៃនេះ។", "char"),
        ("ຂ້ອຍໄປເຮືອນມື້ນີ້", "ຂ້ອຍໄປເຮືອນມື້ວານ", "char"),
        ("သူသည်ယနေ့အိမ်သို့ပြန်သွားသည်။", "သူသည်အိမ်သို့ပြန်သွားသည်။", "char"),
    ],
)
def test_the_tokenizer_follows_the_script(reference: str, hypothesis: str, tokenizer: str) -> None:
    """By spaces, such a sentence is one word, and all but perfect translations score 0."""
    scores = corpus_scores([hypothesis], [reference])
    assert f"tok:{tokenizer}" in scores["bleu"].signature
    assert 20 < scores["bleu"].score < 100
    if tokenizer == "zh":  # sacreBLEU divides Chinese for TER, but none of the others
        assert scores["ter"].score < 60
    assert corpus_scores([reference], [reference])["bleu"].score == pytest.approx(100)
    assert corpus_scores([hypothesis], [reference], ["bleu"], tokenize="13a")["bleu"].score < 1


@pytest.mark.parametrize("reference", ["Tom lives in Boston.", "나는 집에 간다.", "123", ""])
def test_other_scripts_are_tokenized_as_before(reference: str) -> None:
    assert "tok:13a" in corpus_scores([reference], [reference], ["bleu"])["bleu"].signature
