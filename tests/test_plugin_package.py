"""The example of a package with parts of its own, installed by pip and used by the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from heedful import registry
from heedful.cli.main import main

PACKAGE = Path(__file__).parent / "plugin_package"
ROOT = Path(__file__).parents[1]


def run(*words: object, path: str = "") -> None:
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_installed_package_trains_translates_and_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "_entries", {family: {} for family in registry.FAMILIES})
    monkeypatch.setattr(registry, "_loaded", set())
    site, source, model = (tmp_path / name for name in ("site", "source", "run"))
    shutil.copytree(PACKAGE, source)  # a build leaves files beside the project
    offline = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile"]
    run("pip", "install", *offline, "--target", site, source)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{words}\t{words}\n" for words in ("a b", "b c", "c a", "b a") * 8))
    sizes = {"width": 16, "num-heads": 2, "encoder-layers": 1, "decoder-layers": 1}
    flags = [part for name, value in sizes.items() for part in (f"--model.{name}", value)]
    flags += ["--model.mixer", "min_gru", "--tokenizer.kind", "characters", "--max-steps", 2]
    flags += ["--validation.metrics", "exact", "--validation.choose-by", "exact"]
    flags += ["--train", pairs, "--valid", pairs, "--device", "cpu"]
    run("heedful", "train", model, *flags, path=os.pathsep.join([str(ROOT), str(site)]))
    lines = (model / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["exact"] == 0.0

    # Whoever loads the model without the package is told what to install.
    system, reference, baseline = (tmp_path / name for name in ("system", "reference", "baseline"))
    for path, text in ((system, "a b c d"), (reference, "a b x y"), (baseline, "a x c d")):
        path.write_text(text.replace(" ", "\n") + "\n")
    translate = ["translate", str(model), "--input", str(system), "--device", "cpu"]
    assert main(translate) == 2
    assert "no mixer is called 'min_gru'" in capsys.readouterr().err
    monkeypatch.syspath_prepend(str(site))
    assert main(translate) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    files = [str(system), "--reference", str(reference), "--baseline", str(baseline)]
    assert main(["evaluate", *files, "--metrics", "exact", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["scores"]["exact"]["score"] == 50
    assert result["scores"]["exact"]["signature"] == "exact|class:min_gru_parts.Exact"
    assert result["comparison"]["exact"]["difference"]["score"] == 25
    sys.modules.pop("min_gru_parts")
