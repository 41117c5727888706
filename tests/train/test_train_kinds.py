"""A causal language model that is trained to label texts and words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.cli.main import main
from heedful.errors import ModelError
from heedful.events import Events
from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings

TEXTS = [f"{a} {b}" for a in ("one", "two", "red") for b in ("cat", "dog", "bird", "fish")]
SMALL = {"width": 32, "encoder_layers": 1, "num_heads": 2, "feedforward": 32, "dropout": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model, and texts whose label is decided by their first word."""
    folder = tmp_path_factory.mktemp("kinds")
    tokenizer = train_tokenizer(TokenizerSpec(kind="bpe", vocabulary_size=60), TEXTS * 3)
    shape = TranslatorShape.parse({**SMALL, "decoder_layers": 1, "positions": "learned"})
    torch.manual_seed(1)
    model = CausalLM(causal_lm_spec(shape, tokenizer.size, 16)).eval()
    save_model(model, TokenizerPair(tokenizer, tokenizer), folder / "writer")
    lines = [f"{text}\t{'warm' if text.startswith('red') else 'cold'}" for text in TEXTS]
    (folder / "texts.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = [
        "\n".join(f"{word}\t{'A' if word in ('one', 'two', 'red') else 'N'}" for word in t.split())
        for t in TEXTS
    ]
    (folder / "words.conll").write_text("\n\n".join(words) + "\n", encoding="utf-8")
    return folder


def train(folder: Path, run: Path, task: str, **more: Any) -> Any:
    file = str(folder / ("texts.tsv" if task == "classify" else "words.conll"))
    corpus = {"train": [{"file": file}], "valid": [{"file": file}], "max_length": 16}
    settings = {
        "task": task,
        "data": {**corpus, "batch_tokens": 128},
        "max_steps": 60,
        "schedule": {"peak_learning_rate": 0.01, "warmup_steps": 5},
        "validation": {"every_steps": 60, "metrics": ["accuracy"], "choose_by": "accuracy"},
        "precision": "fp32",
        **more,
    }
    run_training(run, RunSettings.parse(settings), events=Events([]))
    return heedful.load(run, device="cpu")


@pytest.mark.parametrize("start", ["writer", "nothing"])
def test_a_causal_model_learns_to_label_texts(folder: Path, tmp_path: Path, start: str) -> None:
    own = (
        {"init": str(folder / "writer")}
        if start == "writer"
        else {"model": SMALL | {"mask": "causal"}}
    )
    if start == "nothing":
        own["tokenizer"] = {"kind": "bpe", "vocabulary_size": 60}
    judge = train(folder, tmp_path / "judge", "classify", **own)
    assert judge.spec.heads[0].source == "last"
    assert judge.spec.encoder.is_causal
    found = [labels[0].label for labels in judge.classify(["red dog", "two fish"])]
    assert found == ["warm", "cold"]
    # Padding and neighbours change nothing.
    alone = judge.classify(["red dog"])[0][0].probability
    beside = judge.classify(["red dog", "two fish red cat one bird"])[0][0].probability
    assert alone == pytest.approx(beside, abs=1e-5)


def test_a_causal_model_learns_to_label_words(folder: Path, tmp_path: Path) -> None:
    tagger = train(folder, tmp_path / "tagger", "tag", init=str(folder / "writer"))
    assert [each.label for each in tagger.tag(["red fish"])[0]] == ["A", "N"]


def test_it_hides_no_tokens(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "plain.txt"
    text.write_text("one cat\n", encoding="utf-8")
    data = {"train": [{"file": str(text)}], "max_length": 16}
    settings: dict[str, Any] = {"task": "masked_lm", "init": str(folder / "writer"), "data": data}
    settings["validation"] = {"metrics": [], "choose_by": "loss"}
    with pytest.raises(ModelError, match="trains one of the kind encoder"):
        run_training(tmp_path / "reader", RunSettings.parse(settings), events=Events([]))


def test_vectors_are_pooled_states(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = heedful.load(folder / "writer", device="cpu")
    tokenizer = writer.tokenizer
    ids = torch.tensor([[tokenizer.bos, *tokenizer.encode("red cat"), tokenizer.eos]])
    with torch.no_grad():
        states = writer.model(ids)[0].numpy()
    for pooling, expected in (("last", states[-1]), ("mean", states.mean(0))):
        found = heedful.embed(folder / "writer", ["red cat"], pooling=pooling)[0]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert main(["embed", str(folder / "writer"), "red cat", "--pooling", "last"]) == 0
    printed = [float(number) for number in capsys.readouterr().out.split()]
    np.testing.assert_allclose(printed, states[-1], atol=1e-5)
