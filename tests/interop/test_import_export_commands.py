"""`heedful import` and `heedful export`: what they tell, and what they refuse."""

from __future__ import annotations

import json

import pytest
import torch

from heedful.cli.main import main
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec


def test_in_and_out(theirs, tmp_path, capsys) -> None:
    original = theirs.tensors()
    out, again = tmp_path / "ours", tmp_path / "again"
    report = tmp_path / "report.json"
    assert main(["import", str(theirs.path), str(out), "--json", "--report", str(report)]) == 0
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert facts == json.loads(report.read_text())
    assert facts["kind"] == "causal_lm"
    assert facts["model_type"] == "gpt2"
    count = sum(tensor.numel() for name, tensor in original.items() if "lm_head" not in name)
    assert facts["parameters"] == count
    assert f"{count:,} parameters in float32" in printed.err
    assert "257 pieces" in printed.err
    assert main(["info", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"]["total"] == count
    assert main(["info", str(out)]) == 0
    assert main(["export", str(out), str(again), "--format", "hf", "--json"]) == 0
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert facts["model_type"] == "gpt2"
    assert set(facts["files"]) == {file.name for file in again.iterdir()}
    theirs.path = again
    assert all(torch.equal(tensor, original[name]) for name, tensor in theirs.tensors().items())


def test_dtype(theirs, tmp_path, capsys) -> None:
    theirs.save({name: tensor.bfloat16() for name, tensor in theirs.tensors().items()})
    for dtype, found in (("keep", "bfloat16"), ("float32", "float32")):
        words = ["import", str(theirs.path), str(tmp_path / dtype), "--dtype", dtype, "--json"]
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["dtype"] == found


@pytest.mark.parametrize("verb", ["import", "export"])
def test_nothing_is_overwritten(theirs, tmp_path, capsys, verb) -> None:
    for out in (theirs.path, tmp_path / "missing" / "out"):
        assert main([verb, str(theirs.path), str(out)]) == 2
    told = capsys.readouterr().err
    assert "exists already" in told
    assert "missing: No such directory" in told
    assert theirs.tensors()


def test_wrong_requests(theirs, tmp_path, capsys) -> None:
    theirs.write_config(model_type="mamba")
    out = str(tmp_path / "out")
    assert main(["import", str(theirs.path), out]) == 2
    assert main(["import", str(tmp_path / "nowhere"), out]) == 2
    assert main(["export", str(tmp_path / "nowhere"), out]) == 2
    assert main(["export", str(theirs.path), out]) == 2
    assert main(["export", str(theirs.path), out, "--format", "gguf"]) == 2
    told = capsys.readouterr().err
    assert "'mamba'" in told
    assert "heedful import" in told
    assert {file.name for file in tmp_path.iterdir()} == {"theirs"}


def test_without_a_format_the_first_that_has_such_models(make_model, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    shape = TranslatorShape(width=16, num_heads=4, feedforward=24, norm_placement="pre", norm="rms")
    directory = make_model(tmp_path / "model", lambda n: translator_spec(shape, n, n))
    assert main(["export", str(directory), str(out), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["model_type"] == "TransformerSpec"  # of CTranslate2
    assert "No architecture of transformers" in printed.err
