"""A translator that was trained here and exported gives the same translations in the programs it
was exported to, and the same ones after it was imported again.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import ctranslate2
import pytest
import torch
from safetensors.torch import load_file

from heedful.cli.main import main
from heedful.pipelines.translation import TranslationPipeline

WORDS = {"red": "rot", "Big": "Groß", "cat": "Katze", "dog": "Hund", "café": "Café", "12": "12"}
SETTINGS = {
    "preset": "tiny",
    "model.width": 32,
    "model.encoder-layers": 1,
    "model.decoder-layers": 1,
    "model.feedforward": 64,
    "model.dropout": 0,
    "tokenizer.vocabulary-size": 120,
    "data.batch-tokens": 192,
    "objective.label-smoothing": 0,
    "schedule.peak-learning-rate": 0.008,
    "schedule.warmup-steps": 20,
    "max-steps": 300,
    "precision": "fp32",
    "seed": 3,
}
TEXTS = ["red cat", "Big dog café", "12", "dog cat red"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run that learned to translate word by word."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    draw = random.Random(1)
    sources = [" ".join(draw.choices(list(WORDS), k=draw.randint(1, 3))) for _ in range(1500)]
    for name, lines in (
        ("source", sources),
        ("target", [" ".join(WORDS[word] for word in line.split()) for line in sources]),
    ):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    flags = [word for key, value in SETTINGS.items() for word in (f"--{key}", str(value))]
    corpus = ["--train", str(folder / "source"), str(folder / "target")]
    assert main(["train", str(folder / "run"), *corpus, *flags]) == 0
    return folder / "run"


def ours(path: Path, **settings) -> list[tuple[str, float]]:
    # Everything is translated: texts without a known letter, which would come back, are too.
    found = TranslationPipeline.load(path, precision="fp32").translate(
        TEXTS, protect=[], **settings
    )
    return [(str(translation), translation.score) for translation in found]


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    """The run's model for transformers."""
    out = run.parent / "hf"
    assert main(["export", str(run), str(out), "--format", "hf"]) == 0
    return out


def test_it_has_learned(run: Path) -> None:
    right = [" ".join(WORDS[word] for word in text.split()) for text in TEXTS]
    assert [text for text, _ in ours(run)] == right


def test_transformers_translates_alike(run: Path, exported: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(exported)
    model, told = AutoModelForSeq2SeqLM.from_pretrained(exported, output_loading_info=True)
    assert not any(told.values()), told
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    for beam in (1, 4):
        ids = model.generate(**inputs, num_beams=beam, length_penalty=0.0, max_length=40)
        theirs = tokenizer.batch_decode(ids, skip_special_tokens=True)
        assert theirs == [text for text, _ in ours(run, beam=beam, length_penalty=0.0)]


def test_imported_again_it_is_the_same_model(run: Path, exported: Path, tmp_path) -> None:
    back, again = tmp_path / "back", tmp_path / "again"
    assert main(["import", str(exported), str(back)]) == 0
    before, after = ours(run), ours(back)
    assert [text for text, _ in before] == [text for text, _ in after]
    assert [s for _, s in before] == pytest.approx([s for _, s in after], abs=1e-5)
    pipelines = [TranslationPipeline.load(path, precision="fp32") for path in (run, back)]
    scores = [
        [row.score for row in pipeline.score(TEXTS, ["Hund", "rot Katze", "Café ⁇", ""])]
        for pipeline in pipelines
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert main(["export", str(back), str(again)]) == 0
    tensors = [load_file(path / "model.safetensors") for path in (exported, again)]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())
    for name in {file.name for file in exported.iterdir()} - {"model.safetensors"}:
        contents = [json.loads((path / name).read_text("utf-8")) for path in (exported, again)]
        assert contents[0] == contents[1], name


def test_ctranslate2_translates_alike(run: Path, tmp_path) -> None:
    import tokenizers

    out = tmp_path / "out"
    assert main(["export", str(run), str(out), "--format", "ctranslate2"]) == 0
    library = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    sources = [library.encode(text).tokens for text in TEXTS]
    translator = ctranslate2.Translator(str(out), compute_type="float32", intra_threads=1)
    for beam in (1, 4):
        found = translator.translate_batch(
            sources,
            beam_size=beam,
            length_penalty=0,
            min_decoding_length=0,  # by default it takes an end token first to be impossible
            return_scores=True,
        )
        expected = ours(run, beam=beam, length_penalty=0.0)
        for theirs, (text, score) in zip(found, expected, strict=True):
            ids = [library.token_to_id(token) for token in theirs.hypotheses[0]]
            assert library.decode(ids) == text
            assert theirs.scores[0] == pytest.approx(score, abs=1e-4)
