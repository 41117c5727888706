"""`heedful evaluate` and `heedful score`."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

SHORT = ("--beam", "2", "--max-length", "4")


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Path]:
    """A source, a reference, a good and a bad set of translations."""
    reference = [f"the small dog number {i} runs over the green hill" for i in range(30)]
    lines = {
        "source": ["abc de"] * 30,
        "reference": reference,
        "good": [
            line.replace("green", "blue") if i % 5 == 0 else line
            for i, line in enumerate(reference)
        ],
        "bad": [line.replace("small", "big").replace("runs", "ran") for line in reference],
    }
    paths = {name: tmp_path / name for name in lines}
    for name, path in paths.items():
        path.write_text("".join(f"{line}\n" for line in lines[name]), encoding="utf-8")
    return paths


def test_files_need_no_model(run, texts) -> None:
    done = run("evaluate", texts["reference"], "--reference", texts["reference"], "--json")
    assert done.status == 0, done.err
    (summary,) = map(json.loads, done.lines)
    assert summary["scores"]["bleu"]["score"] == pytest.approx(100.0)
    assert summary["scores"]["chrf"]["score"] == pytest.approx(100.0)
    assert "version:" in summary["scores"]["bleu"]["signature"]
    assert summary["lines"] == 30


def test_answers_are_scored_by_measures_of_their_own(run, tmp_path) -> None:
    output, right = tmp_path / "output", tmp_path / "right"
    output.write_text("(S (NP (X a)) (X b))\nperson: Ada\n", encoding="utf-8")
    right.write_text("(S (NP (X a)) (VP (X b)))\n(S (X c))\n", encoding="utf-8")
    asked = ("--reference", right, "--metrics", "bracket_f1", "answer_exact", "--json")
    (summary,) = map(json.loads, run("evaluate", output, *asked).lines)
    assert summary["scores"]["bracket_f1"]["score"] == pytest.approx(200 * 2 / 6)
    assert summary["scores"]["answer_exact"]["score"] == 0
    done = run("evaluate", output, "--reference", output, "--metrics", "bracket_f1")
    assert done.status != 0
    assert "Traceback" not in done.err
    assert "person: Ada" in done.err


SCRIPTS = {
    "zh": ("今天天气很好，我们去公园吧。", "zh"),
    "ja": ("今日はとてもいい天気ですね。", "char"),
    "th": ("วันนี้อากาศดีมากเราไปสวนกัน", "char"),
    "ko": ("오늘은 날씨가 아주 좋습니다 공원에 갑시다.", "13a"),
    "km": ("ថ្ងៃនេះអាកាសធាតុល្អណាស់។", "char"),
    "lo": ("ມື້ນີ້ອາກາດດີຫຼາຍໄປສວນກັນ.", "char"),
    "my": ("ဒီနေ့ရာသီဥတုသိပ်ကောင်းတယ်။", "char"),
    "ar": ("الطقس جميل جدا اليوم، الساعة 12:30.", "13a"),
}


@pytest.mark.parametrize("language", SCRIPTS)
def test_scripts_are_scored_by_their_own_words(run, tmp_path, language) -> None:
    sentence, tokenizer = SCRIPTS[language]
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(f"{sentence}\n" * 4, encoding="utf-8")
    wrong.write_text(f"{sentence}\n{sentence[:-4]}{sentence[-1]}\n" * 2, encoding="utf-8")
    asked = ("--reference", right, "--baseline", wrong, "--samples", "20", "--json")
    (summary,) = map(json.loads, run("evaluate", right, *asked).lines)
    bleu = summary["comparison"]["bleu"]
    assert f"tok:{tokenizer}|" in bleu["signature"]
    assert 20 < bleu["a"]["score"] < bleu["b"]["score"] == pytest.approx(100)


def test_a_reference_in_another_spelling_is_named(run, tmp_path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("Die Bären schlafen müde über dem Café.\n" * 3, encoding="utf-8")
    theirs.write_text(unicodedata.normalize("NFD", ours.read_text("utf-8")), encoding="utf-8")
    for words in ((ours, "--reference", theirs), (theirs, "--reference", ours)):
        done = run("evaluate", *words, "--json")
        assert json.loads(done.lines[0])["scores"]["bleu"]["score"] == pytest.approx(100)
        assert "3 lines are not in Unicode's usual spelling" in done.err
    assert "spelling" not in run("evaluate", ours, "--reference", ours).err


def test_the_prefix_of_a_task_stands_before_each_source(run, model, texts, monkeypatch) -> None:
    read: list[str] = []

    def translate(system: Path, sources: list[str], *_: object) -> list[str]:
        read.extend(sources)
        return sources

    monkeypatch.setattr("heedful.cli.evaluate.translate_all", translate)
    flags = ("--source", texts["source"], "--task-prefix", "say: ")
    done = run("evaluate", model, *flags, "--reference", texts["reference"])
    assert done.status == 0, done.err
    assert read == ["say: abc de"] * 30


def test_two_systems(run, texts) -> None:
    asked = (
        "--reference",
        texts["reference"],
        "--baseline",
        texts["bad"],
        "--metrics",
        "bleu",
        "ter",
    )
    (summary,) = map(json.loads, run("evaluate", texts["good"], *asked, "--json").lines)
    assert list(summary["scores"]) == ["bleu", "ter"]
    bleu, ter = (summary["comparison"][name] for name in ("bleu", "ter"))
    assert bleu["b"]["score"] == pytest.approx(summary["scores"]["bleu"]["score"])
    assert bleu["difference"]["score"] > 0 > ter["difference"]["score"]
    assert bleu["p_value"] < 0.01
    same = run("evaluate", texts["bad"], *asked, "--json", "--samples", "50")
    assert json.loads(same.lines[0])["comparison"]["bleu"]["p_value"] == 1.0


def test_tables_are_for_people(run, texts) -> None:
    done = run(
        "evaluate", texts["good"], "--reference", texts["reference"], "--baseline", texts["bad"]
    )
    assert done.status == 0
    assert done.out == ""
    assert "nrefs:1|case:mixed" in done.err
    assert "95 %" in done.err


def test_tokenize_and_lowercase_reach_the_metric(run, texts) -> None:
    asked = ("--reference", texts["reference"], texts["good"], "--tokenize", "none", "--lowercase")
    (summary,) = map(json.loads, run("evaluate", texts["good"], *asked, "--json").lines)
    signature = summary["scores"]["bleu"]["signature"]
    assert "tok:none" in signature
    assert "case:lc" in signature
    assert "nrefs:2" in signature
    wrong = run("evaluate", texts["good"], "--reference", texts["good"], "--tokenize", "13b")
    assert wrong.status == 2
    assert "Did you mean '13a'?" in wrong.err


def test_a_model_translates_as_translate_does(run, model: Path, texts, tmp_path: Path) -> None:
    kept, report = tmp_path / "kept", tmp_path / "report.json"
    sides = ("--source", texts["source"], "--reference", texts["reference"])
    done = run("evaluate", model, *SHORT, *sides, "-o", kept, "--report", report)
    assert done.status == 0, done.err
    assert kept.read_text() == run("translate", model, *SHORT, "-i", texts["source"]).out
    facts = json.loads(report.read_text(encoding="utf-8"))
    assert facts["settings"]["beam"] == 2
    assert set(facts["scores"]) == {"bleu", "chrf"}
    without = run("evaluate", model, "--reference", texts["reference"])
    assert without.status == 2
    assert "--source" in without.err


def test_scores_are_those_of_the_search(run, model: Path, tmp_path: Path) -> None:
    """Where decoding and encoding agree on the tokens, as they do for single characters."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("abc\nde f\nhgf\n", encoding="utf-8")
    asked = ("--beam", "3", "--min-length", "2", "--max-length", "4", "--json", "-i", source)
    found = [json.loads(line) for line in run("translate", model, *asked).lines]
    target.write_text("".join(f"{item['text']}\n" for item in found), encoding="utf-8")
    done = run("score", model, "--source", source, "--target", target, "--json")
    assert done.status == 0, done.err
    scored = [json.loads(line) for line in done.lines]
    for item in scored:
        assert item["score"] == pytest.approx(sum(t["score"] for t in item["tokens"]), abs=1e-6)
        assert item["tokens"][-1]["token"] is None  # the end token
    plain = run("score", model, "--source", source, "--target", target).lines
    assert plain == [f"{item['score']:.6f}" for item in scored]
    finished = [
        i
        for i, item in enumerate(found)
        if len(item["text"].split()) and item_ended(item, scored[i])
    ]
    for i in finished:
        assert scored[i]["score"] == pytest.approx(found[i]["score"], abs=1e-4)


def item_ended(found: dict[str, object], scored: dict[str, object]) -> bool:
    """Whether the search ended the sentence itself: then its score holds an end token."""
    return abs(float(found["score"]) - float(scored["score"])) < 1.0  # type: ignore[arg-type]
