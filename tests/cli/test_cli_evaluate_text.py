"""`heedful evaluate` of language models, and of translations by length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

LINE = "abc de fgh ij klm nop "


def write_model(directory: Path, **changes: Any) -> Path:
    tokenizer = train_tokenizer(TokenizerSpec(kind="characters"), [LINE] * 3)
    shape = TranslatorShape(width=16, decoder_layers=1, num_heads=2, feedforward=16, **changes)
    torch.manual_seed(1)
    model = CausalLM(causal_lm_spec(shape, tokenizer.size, 16))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    save_model(model, TokenizerPair(tokenizer, tokenizer), directory)
    return directory


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "writer", positions="rotary")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(LINE.strip() + "\n" + LINE[4:].strip() + "\n", encoding="utf-8")
    return path


def test_text_has_a_perplexity(run, writer: Path, text: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run("evaluate", writer, "--text", text, "--json", "--report", report)
    assert done.status == 0, done.err
    (summary,) = map(json.loads, done.lines)
    assert summary["scores"] == json.loads(report.read_text(encoding="utf-8"))["scores"]
    assert (summary["length"], summary["stride"], summary["texts"]) == (16, 8, 1)
    assert summary["bytes"] == text.stat().st_size == summary["tokens"] - 1
    lines = run("evaluate", writer, "--text", text, "--documents", "line", "--json").lines
    assert json.loads(lines[0])["texts"] == 2
    shown = run("evaluate", writer, "--text", text, "--stride", "16")
    assert "bits per byte" in shown.err
    assert "windows of 16 tokens, a stride of 16" in shown.err


def test_a_model_with_a_memory_reads_texts_as_wholes(run, text: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", positions="transformer_xl", memory=5)
    shown = run("evaluate", model, "--text", text)
    assert "read as wholes, with a memory of 5 tokens" in shown.err
    lines = [
        json.loads(run("evaluate", model, "--text", text, "--length", n, "--json").lines[0])
        for n in ("3", "16")
    ]
    assert [each["memory"] for each in lines] == [5, 5]
    losses = [each["negative_log_likelihood"] for each in lines]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    refused = run("evaluate", model, "--text", text, "--stride", "2")
    assert refused.status == 2
    assert "texts are read as wholes, not in windows" in refused.err
    written = run("generate", model, "--prompt", "abc", "--max-length", "9")
    assert written.status == 0, written.err


def test_loss_by_position_with_a_chart(run, writer: Path, text: Path, tmp_path: Path) -> None:
    chart = tmp_path / "positions.json"
    words = ("--text", text, "--by-position", "--length", "32")
    done = run("evaluate", writer, *words, "--chart", chart, "--json")
    assert done.status == 0, done.err
    (summary,) = map(json.loads, done.lines)
    assert summary["trained_length"] == 16
    rows = summary["by_position"]
    assert [(row["first"], row["last"]) for row in rows] == [(1, 16), (17, 32)]
    drawn = json.loads(chart.read_text(encoding="utf-8"))
    assert "vega-lite" in drawn["$schema"]
    assert f"{rows[0]['loss']:.9f}"[:9] in chart.read_text(encoding="utf-8")
    stretched = run(
        "evaluate", writer, *words, "--rotary-scaling", "yarn", "--rotary-factor", "2", "--json"
    )
    other = json.loads(stretched.lines[0])["by_position"]
    assert other[1]["loss"] != rows[1]["loss"]
    assert "1–16" in run("evaluate", writer, *words).err


def test_generation_takes_stretched_positions(run, writer: Path) -> None:
    words = ("generate", writer, "--prompt", "abc de fgh ij", "--max-length", "12", "--json")
    plain = run(*words)
    stretched = run(*words, "--rotary-scaling", "linear", "--rotary-factor", "8")
    assert stretched.status == 0, stretched.err
    assert stretched.out != plain.out


def test_a_masked_model_has_a_pseudo_perplexity(
    run, encoder_directory: Path, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat\n", encoding="utf-8")
    done = run("evaluate", encoder_directory, "--text", path, "--json")
    assert done.status == 0, done.err
    assert json.loads(done.lines[0])["scores"]["pseudo_perplexity"] > 1
    refused = run("evaluate", encoder_directory, "--text", path, "--by-position")
    assert "reads all positions at once" in refused.err


@pytest.fixture
def translations(tmp_path: Path) -> dict[str, Path]:
    reference = [f"the small dog number {i} runs over the green hill" for i in range(40)]
    lines = {
        "source": [" ".join(["wort"] * (i % 10 + 1)) for i in range(40)],
        "reference": reference,
        "system": [
            line.replace("green", "blue") if i % 10 > 4 else line
            for i, line in enumerate(reference)
        ],
    }
    paths = {name: tmp_path / name for name in lines}
    for name, path in paths.items():
        path.write_text("".join(f"{line}\n" for line in lines[name]), encoding="utf-8")
    return paths


def test_scores_by_length(run, translations: dict[str, Path], tmp_path: Path) -> None:
    paths, chart = translations, tmp_path / "lengths.svg"
    words = ("evaluate", paths["system"], "--reference", paths["reference"], "--metrics", "bleu")
    asked = (*words, "--source", paths["source"], "--by-length", "--samples", "50")
    done = run(*asked, "--length-bins", "5", "--baseline", paths["reference"], "--json",
               "--chart", chart)  # fmt: skip
    assert done.status == 0, done.err
    (summary,) = map(json.loads, done.lines)
    short, long = summary["by_length"]["system"]
    assert (short["sentences"], long["sentences"]) == (20, 20)
    assert short["scores"]["bleu"]["score"] == pytest.approx(100)
    assert long["scores"]["bleu"]["high"] < 100
    assert summary["by_length"]["baseline"][1]["scores"]["bleu"]["score"] == pytest.approx(100)
    assert "up to 5" in chart.read_text(encoding="utf-8")
    one = json.loads(run(*asked, "--length-bins", "99", "--json").lines[0])
    found = one["by_length"]["system"][0]["scores"]["bleu"]["score"]
    assert found == pytest.approx(one["scores"]["bleu"]["score"])
    shown = run(*asked)
    assert "6–10" in shown.err
    assert "95 %" in shown.err


def test_flags_that_do_not_go_together(
    run, writer: Path, model: Path, text: Path, translations: dict[str, Path], tmp_path: Path
) -> None:
    files = (translations["system"], "--reference", translations["reference"])
    cases = [
        ((*files, "--by-length"), "--source FILE"),
        ((*files, "--length-bins", "5"), "Add --by-length"),
        ((*files, "--chart", tmp_path / "a.svg"), "Add --by-length"),
        ((*files, "--chart", tmp_path / "a.pdf"), "Charts are not written as '.pdf'"),
        ((*files, "--by-position"), "Add --text FILE"),
        ((*files, "--rotary-factor", "2"), "Add --text FILE"),
        ((writer, "--text", text, "--chart", tmp_path / "a.svg"), "Add --by-position"),
        ((writer, "--text", text, "--by-position", "--stride", "4"), "do not overlap"),
        ((writer, "--text", text, "--rotary-factor", "4"), "Give both"),
        ((writer, "--text", tmp_path / "none.txt"), "none.txt"),
        ((model, "--text", text), "is no language model"),
    ]
    for words, message in cases:
        done = run("evaluate", *words)
        assert done.status == 2, words
        assert message in done.err, done.err
        assert "Traceback" not in done.err
