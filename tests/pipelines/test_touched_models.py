"""A loaded model is an ordinary module: whatever is done to it works or is refused in words."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from heedful.engines.inference.model_changes import checksums, is_as_specified
from heedful.errors import ConfigError, DataError, ModelError
from heedful.models.build import build_model
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import causal_lm_spec, translator_spec
from heedful.nn.feedforward import FeedForward
from heedful.pretrained.catalogue import models_at_hand
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

SCRIPT = Path(__file__).with_name("touches.py")
REFUSED = {
    "meta", "emptied", "shrunk", "wrong shape", "identity", "linear", "part removed", "no stack",
    "parameter removed", "another model",
}  # fmt: skip
"""Touches after which there is nothing to compute; all others work."""
EITHER = {"to_empty", "half a model", "half", "bfloat16"}
"""These depend on what the memory held, and on what PyTorch computes in 16 bits."""


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("touched")
    texts = ["abcd dcba ab", "bcad", "dab"]
    tokenizers = train_pair(TokenizerSpec(kind="characters"), texts, texts)
    size = tokenizers.source.size
    shape = TranslatorShape(
        width=32, encoder_layers=2, decoder_layers=2, num_heads=2, feedforward=64, max_length=40
    )
    specs = {
        "translator": translator_spec(shape, size, tokenizers.target.size),
        "writer": causal_lm_spec(shape, size, 40),
    }
    for name, spec in specs.items():
        model = build_model(spec)
        with torch.no_grad():
            for p in model.parameters():
                p += 0.1 * torch.randn_like(p)
        save_model(model, tokenizers, folder / name)
    return folder


@pytest.mark.parametrize(
    ("kind", "precision"), [("translator", "fp32"), ("translator", "int8"), ("writer", "fp32")]
)
def test_forty_touches(directories, kind, precision):
    command = [sys.executable, str(SCRIPT), str(directories / kind), precision]
    one = os.environ | {"OMP_NUM_THREADS": "1"}  # small products: threads only wait
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=one)
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, (list(found)[-1:], done.stderr[-2000:])
    assert len(found) > 40
    wrong = {
        name: outcome
        for name, outcome in found.items()
        if outcome != ("refused" if name in REFUSED else "works")
        and not (name in EITHER and outcome in ("works", "refused"))
        # In 8 bits the definition has other numbers than the engine.
        and not (precision == "int8" and outcome.startswith("wrong"))
    }
    assert not wrong


@pytest.mark.parametrize("name", sorted(models_at_hand()))
def test_models_at_hand_are_what_their_specs_describe(name):
    """Otherwise a look at the model would take its engine away."""
    assert is_as_specified(heedful.load(name, device="cpu").model)


def test_nobody_pays_for_a_model_that_nobody_has(directories, monkeypatch):
    pipeline = heedful.load(directories / "translator", device="cpu")
    held = pipeline._held[0]
    before = pipeline.engines
    monkeypatch.setattr("heedful.engines.inference.model_changes.checksums", None)
    pipeline.translate(["abc"], max_length=3)
    assert held._model is None
    assert pipeline.engines is before


def test_an_engine_is_made_once_for_a_model_that_stays(directories):
    pipeline = heedful.load(directories / "writer", device="cpu")
    assert pipeline.model is pipeline.model
    assert pipeline.engine is pipeline.engine
    assert pipeline.engine is not pipeline.model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [(7, 5), (300, 130), (40_001,), (200, 257)])
def test_sums_change_with_any_element_and_any_exchange(dtype, size):
    torch.manual_seed(0)
    model = torch.nn.ParameterList([torch.randn(size).to(dtype)])
    (p,) = model
    flat = p.data.view(-1)
    before = checksums(model)
    assert checksums(model) == before
    for place in (0, len(flat) // 2, len(flat) - 1):
        kept = flat[place].clone()
        flat[place] += 1
        assert checksums(model) != before
        flat[place] = kept
        other = (place + 3) % len(flat)
        flat[[place, other]] = flat[[other, place]].clone()
        assert checksums(model) != before
        flat[[place, other]] = flat[[other, place]].clone()
    assert checksums(model) == before


@pytest.mark.parametrize("when", ["before it is loaded", "after", "with the definition at hand"])
@pytest.mark.parametrize("kind", ["translator", "writer"])
def test_a_method_that_is_put_into_a_class_is_called_until_it_is_taken_out(
    directories, monkeypatch, kind, when
):
    def answers(pipeline):
        verb = pipeline.translate if kind == "translator" else pipeline.generate
        return [each.score for each in verb(["abcd", "dcba ab"], max_length=6)]

    def patch():
        for name in ("forward", "step"):
            before = getattr(FeedForward, name, None)
            if before is not None:
                monkeypatch.setattr(FeedForward, name, lambda *args, old=before: 0 * old(*args))

    usual = answers(heedful.load(directories / kind, device="cpu"))
    if when == "before it is loaded":
        patch()
    pipeline = heedful.load(directories / kind, device="cpu")
    if when == "with the definition at hand":
        assert pipeline.model is not None
    if when != "before it is loaded":
        assert answers(pipeline) == usual
        patch()
    changed = answers(pipeline)
    assert changed != pytest.approx(usual, abs=1e-3)
    # The definition itself says the same.
    with_definition = type(pipeline)(
        pipeline.model, pipeline.tokenizers if kind == "translator" else pipeline.tokenizer
    )
    assert changed == pytest.approx(answers(with_definition), abs=1e-4)
    monkeypatch.undo()
    assert answers(pipeline) == pytest.approx(usual, abs=1e-4)


EVERY_KIND = """
import numpy, torch, heedful
USES = {
    "digits": lambda m: m.classify([numpy.zeros((28, 28), numpy.uint8)]),
    "en-de": lambda m: [each.score for each in m.translate(["A cat.", "Two."] * 5, max_length=4)],
    "english": lambda m: [m.generate(["A cat"], max_length=4), "".join(m.stream("A", seed=1))],
    "english-masked": lambda m: m.fill(["A [MASK]."]),
}
for name, use in USES.items():
    expected = repr(use(heedful.load(name, device="cpu")))
    loaded, asked = (heedful.load(name, device="cpu") for _ in range(2))
    asked.model
    for set_default, value in (
        (torch.set_default_device, "meta"), (torch.set_default_dtype, torch.float64)
    ):
        set_default(value)
        for each in (loaded, asked, heedful.load(name, device="cpu")):
            assert repr(use(each)) == expected, (name, value)
        assert torch.get_default_device().type == "meta" or torch.empty(0).dtype == value
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
"""


def test_default_device_and_dtype_of_a_notebook_change_nothing():
    """A process of its own: kernels that get another device's addresses would end it."""
    command = [sys.executable, "-c", EVERY_KIND]
    one = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=one)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("digits", lambda m: m.classify([np.zeros((28, 28), np.uint8)])),
        ("en-de", lambda m: m.translate(["A cat."])),
        ("english", lambda m: m.generate(["A cat"])),
        ("english-masked", lambda m: m.fill(["A [MASK]."])),
        ("english-masked", lambda m: m.embed(["A cat."])),
    ],
)
def test_weights_that_are_no_numbers_are_refused(name, use):
    pipeline = heedful.load(name, device="cpu")
    for p in pipeline.model.parameters():
        p.data.fill_(float("nan"))
    with pytest.raises(ModelError, match="NaN"):
        use(pipeline)


@pytest.mark.parametrize("name", ["to", "cuda", "parameters", "state_dict"])
def test_a_pipeline_names_its_module_to_whoever_takes_it_for_one(directories, name):
    pipeline = heedful.load(directories / "writer", device="cpu")
    with pytest.raises(AttributeError, match=r"\.model is one"):
        getattr(pipeline, name)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("digits", lambda m: m.classify("seven.png")),
        ("en-de", lambda m: m.translate("A cat.")),
        ("english", lambda m: m.generate("A cat")),
        ("english-masked", lambda m: m.fill("A [MASK].")),
        ("english-masked", lambda m: m.embed("A cat.")),
    ],
)
def test_a_string_in_the_place_of_a_list_is_refused(name, use):
    with pytest.raises(DataError, match="is a single string"):
        use(heedful.load(name, device="cpu"))


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("en-de", "translate"),
        ("english", "generate"),
        *[("english-masked", v) for v in ("fill", "embed")],
    ],
)
@pytest.mark.parametrize("wrong", [3, None, b"A cat."])
def test_what_is_no_text_is_refused_with_its_place(name, verb, wrong):
    use = getattr(heedful.load(name, device="cpu"), verb)
    with pytest.raises(DataError, match=r"item 2: .*no text.*Give a list of strings"):
        use(["A [MASK].", wrong])
    with pytest.raises(DataError, match="is an object of the type"):
        use(3)


def test_images_in_memory_are_bytes_in_any_form():
    """What a notebook has at hand: an array, a tensor, lists, a picture of Pillow."""
    pixels = np.arange(784, dtype=np.uint8).reshape(28, 28)
    pipeline = heedful.load("digits", device="cpu")
    expected = pipeline.classify([pixels])
    forms = [torch.from_numpy(pixels), pixels.tolist(), Image.fromarray(pixels)]
    forms.append(Image.fromarray(pixels).convert("P"))
    for form in forms:
        assert pipeline.classify([form]) == expected
    for wrong in (pixels / 255, (pixels.astype(int) + 9).tolist(), pixels == 0, None, []):
        with pytest.raises(DataError, match="image 1"):
            pipeline.classify([wrong])


@pytest.mark.parametrize("name", ["float16", "fp23", None, torch.float16])
def test_an_unknown_precision_is_refused(name):
    with pytest.raises(ConfigError, match=r"Unknown precision .* Use auto, fp32, bf16, fp16, int8"):
        heedful.load("en-de", device="cpu", precision=name)


def test_training_knows_its_own_device_and_dtype(tmp_path):
    """With the defaults of a notebook a run is the same, and the defaults are there afterwards."""
    pairs = [("ab ba", "ba ab"), ("ab", "ba")]
    settings = {"preset": "tiny", "max_steps": 2, "precision": "fp32", "valid": pairs}
    losses = {heedful.train(pairs, tmp_path / "plain", **settings).scores["loss"]}
    try:
        torch.set_default_device("meta")
        losses.add(heedful.train(pairs, tmp_path / "device", **settings).scores["loss"])
        assert torch.empty(0).is_meta
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float64)
        losses.add(heedful.train(pairs, tmp_path / "dtype", **settings).scores["loss"])
        assert torch.empty(0).dtype == torch.float64
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert len(losses) == 1


FORKS = """
import multiprocessing, numpy, torch, heedful
torch.set_num_threads(2)
texts = [f"I have {i} cats in the house." for i in range(40)]
USES = {
    "digits": lambda m: m.classify([numpy.zeros((28, 28), numpy.uint8)] * 200),
    "en-de": lambda m: m.translate(texts, beam=1),
    "english": lambda m: m.generate(texts, max_length=4),
    "english-masked": lambda m: m.fill([f"{each} [MASK]" for each in texts]),
}
for name, use in USES.items():
    pipeline = heedful.load(name, device="cpu")
    expected = [str(each)[:40] for each in use(pipeline)]
    fork = multiprocessing.get_context("fork")
    inbox = fork.Queue()
    child = fork.Process(target=lambda: inbox.put([str(each)[:40] for each in use(pipeline)]))
    child.start()
    try:
        assert inbox.get(timeout=60) == expected, name
        child.join()
    finally:
        child.kill()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_computes():
    """After several threads have computed: a fork has none of them, and waited for them forever."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
