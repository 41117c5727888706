"""`heedful info` foresees memory; `--batch-tokens auto` picks by it and says what."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest


def peaks(run, *words: str) -> dict:
    done = run("info", *words, "--json")
    assert done.status == 0, done.err
    return json.loads(done.lines[0])["peak_memory"]


@pytest.mark.parametrize("name", ["tiny", "gpt2", "bert-base", "vit-b-16"])
def test_info_foresees_the_peaks_of_every_kind(run, name: str) -> None:
    found = peaks(run, name, "--batch-tokens", "2048", "--precision", "bf16")
    assert found["batch_tokens"] == 2048
    assert found["precision"] == "bf16"
    assert found["available"] > 0
    for verb in ("training", "decoding"):
        parts = found[verb]
        assert parts["total"] == sum(parts[n] for n in ("process", "model", "batch", "slack"))
    assert found["training"]["total"] > found["decoding"]["total"]
    larger = peaks(run, name, "--batch-tokens", "40960", "--precision", "bf16")
    assert larger["training"]["batch"] > 10 * found["training"]["batch"]
    assert larger["training"]["model"] == found["training"]["model"]


def test_info_says_whether_it_fits(run, model: Path) -> None:
    done = run("info", model, "--batch-tokens", "1000000000")
    assert done.status == 0
    assert "training: Does not fit: " in done.err
    assert "training: Fits: " in run("info", model, "--batch-tokens", "64").err


def test_auto_picks_a_batch_says_so_and_changes_nothing(run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("abc\nbad cab\nfed\n")
    words = ["translate", model, "-i", tmp_path / "text", "--beam", "2", "--precision", "fp32"]
    plain = run(*words)
    picked = run(*words, "--batch-tokens", "auto")
    assert plain.status == picked.status == 0, picked.err
    assert picked.out == plain.out
    said = re.search(r"Batches of ([\d,]+) positions.* needed at fp32, .* free on cpu", picked.err)
    assert said is not None
    assert 1 <= int(said[1].replace(",", "")) <= 16_384
    score = ["score", model, "--source", tmp_path / "text", "--target", tmp_path / "text"]
    assert run(*score, "--batch-tokens", "auto").out == run(*score).out


def test_a_word_that_is_no_number_is_refused(run, model: Path) -> None:
    done = run("translate", model, "--batch-tokens", "most")
    assert done.status == 2
    assert "batch-tokens" in done.err
