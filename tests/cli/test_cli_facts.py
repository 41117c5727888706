"""`heedful info`, `presets`, `doctor`, and what all verbs share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful.cli.main import VERBS
from heedful.engines.inference.packed_linear import int8_linear
from heedful.models.preset_files import preset_names


def summary(done) -> dict:
    assert done.status == 0, done.err
    assert len(done.lines) == 1
    return json.loads(done.lines[0])


def test_the_papers_models(run) -> None:
    """With the paper's vocabulary of about 37,000 pieces, which it calls 65 and 213 million."""
    sizes = {
        name: summary(run("info", name, "--vocabulary", "37000", "--json"))["parameters"]["total"]
        for name in ("transformer-base", "transformer-big")
    }
    # By hand: V·D, per layer 4(D²+D) an attention, 2·D·F + D + F a feed-forward, 2·D a norm.
    for name, width, inner in (("transformer-base", 512, 2048), ("transformer-big", 1024, 4096)):
        attention, feedforward = 4 * (width**2 + width), 2 * width * inner + width + inner
        encoder, decoder = (
            attention + feedforward + 4 * width,
            2 * attention + feedforward + 6 * width,
        )
        assert sizes[name] == 37000 * width + 6 * (encoder + decoder)


def test_a_model_directory(run, model: Path) -> None:
    facts = summary(run("info", model, "--json"))
    stored = load_file(str(model / "model.safetensors"))
    assert facts["parameters"]["total"] == sum(t.numel() for t in stored.values())
    assert sum(row["total"] for row in facts["parameters"]["table"]) == facts["parameters"]["total"]
    assert facts["model"]["width"] == 16
    assert run("info", model, "--vocabulary", "10").status == 2


def test_recorded_scores_are_shown_and_labels_have_no_perplexity(run) -> None:
    for name, has_perplexity in (("digits", False), ("english", True)):
        shown = run("info", name).err
        assert "scores on the validation set" in shown
        assert ("perplexity" in shown) is has_perplexity


def test_tables_go_to_standard_error(run, model: Path) -> None:
    for words in (["info", "tiny"], ["info", model], ["presets"], ["doctor", "--width", "64"]):
        done = run(*words)
        assert done.status == 0, done.err
        assert done.out == ""
        assert done.err.count("\n") > 3


def test_presets(run) -> None:
    found = summary(run("presets", "--json"))["presets"]
    assert {preset["name"] for preset in found} == set(preset_names())
    counts = [preset["parameters"] for preset in found]
    assert counts == sorted(counts)


def test_published_models_stand_beside_their_published_counts(run) -> None:
    found = {preset["name"]: preset for preset in summary(run("presets", "--json"))["presets"]}
    assert found["gpt2"]["parameters"] == found["gpt2"]["published_parameters"] == 124_439_808
    assert found["gpt2"]["kind"] == "causal_lm"
    assert found["tiny"]["published_parameters"] is None
    facts = summary(run("info", "gpt2", "--json"))
    assert facts["parameters"]["total"] == facts["published_parameters"] == 124_439_808
    assert sum(row["total"] for row in facts["parameters"]["table"]) == 124_439_808
    assert "published: 124,439,808" in " ".join(run("info", "gpt2").err.split())
    assert run("info", "gpt2", "--vocabulary", "10").status == 2


def test_doctor(run) -> None:
    facts = summary(run("doctor", "--json", "--width", "64"))
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["precision"]["fp32_gflops"] > 0
    exact = int8_linear() is not None
    assert ((facts["precision"]["int8_gflops"] or 0) > 0) == exact
    assert "compiled (" in facts["compiling"]["chosen_by_auto"]
    assert facts["compiling"]["compiler"]
    assert run("doctor", "--width", "0").status == 2


def test_reports(run, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    printed = summary(run("presets", "--json", "--report", file))
    written = json.loads(file.read_text(encoding="utf-8"))
    assert printed == written
    assert written["command"] == "presets"
    assert written["version"] == heedful.__version__
    assert written["peak_memory_bytes"] > 10**6
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_json_and_report(run, verb: str) -> None:
    done = run(*verb.split(), "--help")
    assert done.status == 0
    assert "--json" in done.out
    assert "--report" in done.out


def test_no_words_shows_the_help(run) -> None:
    done = run()
    assert done.status == 0
    for verb in VERBS:
        assert verb in done.out
    assert run("--version").out.strip() == heedful.__version__
