"""Every verb that takes a model, on every model at hand and on models without attention heads.

A verb gets what it requires and nothing else: it works, or says what is wrong and what to do.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from heedful.cli.main import VERBS
from heedful.cli.models import LONGEST
from heedful.models.build import build_model
from heedful.models.checkpoint import save_model
from heedful.models.images.autoencoder_spec import AutoencoderSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.nn.pixel_spec import PixelSpec
from heedful.pretrained.catalogue import FOLDER, models_at_hand
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

from .conftest import Run

SOURCES, TARGETS = ["I have a cat.", "We like dogs."], ["Ich habe eine Katze.", "Wir mögen Hunde."]
PAIRS, REFERENCES = "--source a.en --target a.de", "--source a.en --reference a.de"
CALLS = {
    "info": "MODEL",
    "translate": "MODEL 'I have a cat.'",
    "translate-file": "a.txt new --model MODEL --format text",
    "check": "a.en a.de --model MODEL",
    "score": f"MODEL {PAIRS}",
    "score text": "MODEL --text 'I have a cat.'",
    "calibrate": f"MODEL {REFERENCES}",
    "shortlist": f"MODEL {PAIRS}",
    "act": "MODEL",
    "data codes": "MODEL pictures.jsonl --out new",
    "data pictures": "MODEL codes.jsonl --out new",
    "generate": "MODEL --prompt 'I have'",
    "fill": "MODEL 'I have a [MASK].'",
    "classify": "MODEL 'I have a cat.'",
    "classify labels": "MODEL 'I have a cat.' --labels bad good",
    "tag": "MODEL 'I have a cat.'",
    "answer": "MODEL 'Who?\tI have a cat.'",
    "embed": "MODEL 'I have a cat.'",
    "evaluate": f"MODEL {REFERENCES}",
    "evaluate text": "MODEL --text a.en",
    "evaluate data": "MODEL --data labels.tsv",
    "frontier": f"MODEL {REFERENCES}",
    "inspect": "MODEL 'I have a cat.'",
    "heads": f"MODEL {PAIRS}",
    "heads data": "MODEL --data a.en",
    "align": f"MODEL {PAIRS}",
    "ablate": f"MODEL {PAIRS}",
    "ablate data": "MODEL --data a.en",
    "prune": f"MODEL new {PAIRS}",
    "prune data": "MODEL new --data a.en",
    "export hf": "MODEL new --format hf",
    "export ctranslate2": "MODEL new --format ctranslate2",
    "export onnx": "MODEL new --format onnx",
    "export gguf": "MODEL new --format gguf",
    "merge": "MODEL no-adapter new",
    "plan": "MODEL --devices 1xH100",
    "serve": "MODEL",
}
"""What each verb requires; several calls of a verb have a second word."""
WITHOUT_MODEL = {
    *("data check", "data clean", "data midi", "data shard", "data split", "data world"),
    "models",
}
WITHOUT_MODEL |= {"compare", "demo", "doctor", "import", "presets", "studio", "sweep", "train"}

ANY = {"info", "plan"}
PAIRS_ONLY = {"translate", "translate-file", "check", "score", "evaluate"}
WRITES = ANY | {"generate", "evaluate text", "score text", "classify labels", "embed", "serve"}
"""What every causal language model of texts does."""
RECORDS = ANY | {"serve"}
"""What every model of records does with a text; `generate` takes records, as its card says."""
WORKS = {
    "en-de": ANY | PAIRS_ONLY | {"inspect", "heads", "align", "ablate", "prune", "frontier"}
    | {"export hf", "export ctranslate2", "serve"},
    "english": WRITES | {"inspect", "heads data", "ablate data", "export gguf"}
    | {"prune data", "export hf", "export ctranslate2"},
    "english-masked": ANY | {"fill", "embed", "evaluate text", "score text", "inspect"}
    | {"heads data", "ablate data", "prune data", "export hf", "export onnx"},
    "digits": ANY | {"export hf", "export onnx"},
    "digit-pixels": RECORDS,
    "bach-chorales": RECORDS,
    "room-actor": RECORDS | {"act"},
    "coin-player": RECORDS,
    "seasonal-series": RECORDS,
    "spoken-digits": ANY | {"export hf", "export onnx"},
    "rnn": ANY | (PAIRS_ONLY - {"check"}) | {"shortlist", "ablate", "frontier", "serve"},
    "lstm": ANY | (PAIRS_ONLY - {"check"}) | {"shortlist", "ablate", "frontier", "serve"},
    "mamba": WRITES | {"ablate data"},
    "rwkv": WRITES | {"ablate data"},
    "linear": ANY | PAIRS_ONLY | {"shortlist", "inspect", "heads", "align", "ablate", "prune"}
    | {"frontier", "serve"},
    "codes": ANY | {"data codes", "data pictures"},
}  # fmt: skip
"""The calls that a model serves; every other one is refused."""
ELSEWHERE = {"frontier", "serve"}
"""Verbs that measure for minutes or go on for ever: called here only where they refuse."""
REASONS = {
    ("en-de", "shortlist"): "cannot be written into the package",
    ("digits", "classify"): "No such file",
    ("digits", "inspect"): "takes no text",
    ("digit-pixels", "generate"): "This is no record: 'I have'",
    ("digit-pixels", "act"): "The model acts on label, pixels",
    ("rnn", "check"): "This model has no attention to its source",
    ("rnn", "heads"): "No layer of this model has attention weights",
    ("lstm", "prune"): "This model has no attention heads. See the effect of its sub-layers",
    ("mamba", "heads data"): "No layer of this model has attention weights",
    ("rwkv", "prune data"): "This model has no attention heads. See the effect of its sub-layers",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of text, and untrained models without the heads of attention."""
    place = tmp_path_factory.mktemp("every")
    pair = train_pair(TokenizerSpec(kind="characters"), SOURCES * 3, TARGETS * 3)
    size = pair.source.size
    shape = {"width": 16, "encoder_layers": 1, "decoder_layers": 1}
    mixers = {
        mixer: TranslatorShape.parse(
            {**shape, "num_heads": 2, "feedforward": 32, "max_length": 64, "mixer": mixer}
        )
        for mixer in ("mamba", "rwkv", "linear_attention")
    }
    cells = {
        cell: TranslatorShape.parse({**shape, "positions": "none", "recurrent": {"cell": cell}})
        for cell in ("rnn", "lstm")
    }
    specs = {
        "mamba": causal_lm_spec(mixers["mamba"], size, 64),
        "rwkv": causal_lm_spec(mixers["rwkv"], size, 64),
        "linear": translator_spec(mixers["linear_attention"], size, size),
        **{name: translator_spec(shape, size, size) for name, shape in cells.items()},
    }
    for name, spec in specs.items():
        torch.manual_seed(0)
        save_model(build_model(spec), pair, place / name)
    images = TranslatorShape.parse({**shape, "num_heads": 2, "positions": "learned"})
    pixels = PixelSpec(mean=(0.5,), std=(0.5,))
    codes = AutoencoderSpec.of_shape(images, 8, 1, 4, pixels, codes=5, code_width=2)
    save_model(build_model(codes), None, place / "codes")
    files = {
        "a.en": SOURCES,
        "a.txt": SOURCES,
        "a.de": TARGETS,
        "pictures.jsonl": [json.dumps({"image": [[0] * 8] * 8, "caption": "dark"})],
        "codes.jsonl": ['{"codes": [[0, 1], [2, 3]]}'],
        "labels.tsv": ["good\tI", "bad\tI"],
    }
    for name, lines in files.items():
        (place / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return place


SLOW = [
    ("en-de", "prune"),
    ("en-de", "ablate"),
    ("english", "prune data"),
    ("english-masked", "prune data"),
    ("english-masked", "export onnx"),
    ("digits", "export onnx"),
    ("spoken-digits", "export onnx"),
    ("room-actor", "act"),
]
CASES = [
    (model, call)
    for model in WORKS
    for call in CALLS
    if (model, call) not in SLOW and (call not in ELSEWHERE or call not in WORKS[model])
]

Check = Callable[[str, str], None]


@pytest.fixture
def check(place: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Check:
    """Runs a call of a verb on a model, which works or says why not."""

    def check_it(model: str, call: str) -> None:
        monkeypatch.chdir(place)
        put = {"MODEL": model, "new": str(tmp_path / "new")}
        before = sorted(FOLDER.rglob("*.*"))
        verb = call.split() if call in VERBS else call.split()[:1]
        done = run(*verb, *(put.get(word, word) for word in shlex.split(CALLS[call])))
        assert done.status == (0 if call in WORKS[model] else 2), done.err
        assert "Traceback" not in done.err
        if done.status:
            assert done.out == ""
            # The reason and the remedy are the last line.
            last = done.err.splitlines()[-1]
            assert re.search(r"\S\. [A-Z]\S+ .*\.$", last), last
            assert REASONS.get((model, call), "") in last
        assert sorted(FOLDER.rglob("*.*")) == before  # what comes with the package stays as it is

    return check_it


@pytest.mark.filterwarnings("ignore::heedful.pipelines.text_pipeline.LongerThanTraining")
@pytest.mark.parametrize(("model", "call"), CASES, ids=map("-".join, CASES))
def test_a_verb_works_or_says_why_not(check: Check, model: str, call: str) -> None:
    check(model, call)


@pytest.mark.parametrize(("model", "call"), SLOW, ids=map("-".join, SLOW))
def test_a_slow_verb_works(check: Check, model: str, call: str) -> None:
    check(model, call)


def test_every_verb_and_every_model_is_here() -> None:
    called = {call if call in VERBS else call.split()[0] for call in CALLS}
    assert called | WITHOUT_MODEL == set(VERBS)
    assert set(models_at_hand()) <= set(WORKS)
    assert set(REASONS) <= {(model, call) for model in WORKS for call in CALLS}


@pytest.mark.parametrize("model", list(models_at_hand()))
def test_the_examples_of_a_card_are_commands_that_run(run: Run, model: str) -> None:
    card = run("models", model)
    assert card.status == 0
    examples = [line.strip() for line in card.lines if line.startswith("  heedful ")]
    texts = [example.text for example in models_at_hand()[model].card().examples]
    texts = [text for text in texts if len(text) <= LONGEST and "\n" not in text]
    assert len(examples) == len(texts)
    for command, text in zip(examples, texts, strict=True):
        program, *words = shlex.split(command)
        assert (program, words[-1]) == ("heedful", text)
        done = run(*words)
        assert done.status == 0, done.err
        assert len(done.lines) == 1
        assert done.lines[0].strip()
