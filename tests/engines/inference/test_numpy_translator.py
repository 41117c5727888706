"""Translating without PyTorch gives what translating with it gives, or leaves it to that."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import heedful
from heedful.apps.pruning import ablated
from heedful.engines.inference.cpu_model import share_weights
from heedful.engines.inference.lowering import PackedWeight
from heedful.engines.inference.numpy_translator import sinusoids
from heedful.engines.inference.packed_linear import NativeLinear
from heedful.errors import ConfigError, ModelError, TorchMissing, UserError
from heedful.kernels.library import has_int8_kernels, kernels
from heedful.models.checkpoint import load_translator, save_model
from heedful.models.model_directory import renew_digests
from heedful.models.model_spec import TranslatorSpec
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.nn.positions import SinusoidalPositions
from heedful.pipelines import numpy_translation as lean_pipeline
from heedful.pipelines import segment_search
from heedful.pipelines.numpy_translation import NumpyTranslationPipeline, searches
from heedful.pipelines.text_splitting import Translation, cut_texts
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.alignment import Alignment
from heedful.search.lexical_shortlist import Shortlist
from heedful.search.search_settings import SearchSettings
from heedful.text.tokenizer_pair import UNRECORDED, TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

SHAPE = {"width": 64, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4, "feedforward": 96}

Write = Callable[..., Path]


pytestmark = pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")


@functools.cache
def texts() -> list[str]:
    """Lines of words that mean nothing."""
    draw = random.Random(3)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 5))) for _ in range(60)]
    return [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(200)]


@functools.cache
def tokenizers() -> TokenizerPair:
    """What cuts them."""
    return train_pair(TokenizerSpec(vocabulary_size=120), texts(), texts())


def spec_of(**dials: Any) -> TranslatorSpec:
    """A small translator, but for these dials."""
    pair = tokenizers()
    shape = TranslatorShape.model_validate({**SHAPE, **dials})
    return translator_spec(shape, pair.source.size, pair.target.size)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the directory of a model that is sure of what it says."""

    def write(spec: TranslatorSpec | None = None, seed: int = 0, name: str = "model") -> Path:
        torch.manual_seed(seed)
        model = Translator(spec or spec_of())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter)).mul_(1.5)
        save_model(model, tokenizers(), tmp_path / name)
        return tmp_path / name

    return write


DIALS: list[dict[str, Any]] = [
    {},
    {"norm_placement": "pre"},
    {"norm": "rms", "norm_placement": "pre", "activation": "swiglu"},
    {"num_kv_heads": 2, "share_embeddings": "target"},
    {"positions": "learned", "max_length": 140, "activation": "gelu_tanh"},
    {"positions": "rotary", "norm_placement": "pre", "num_kv_heads": 1},
    {"positions": "none", "share_embeddings": "none", "activation": "geglu", "bias": False},
    {"mixer": "ssru", "norm_placement": "pre"},
    {"mixer": "average_attention", "attention_every": 2},
]
SEARCHES: list[dict[str, Any]] = [
    {"beam": 1},
    {"beam": 4},
    {"beam": 5, "length_penalty": 1.0, "n_best": 3},
    {"beam": 3, "length_penalty": 0.0, "min_length": 5, "max_length": 9},
    {"beam": 4, "min_length": 100, "max_length": 120},
]
PRECISIONS = ["auto", "int8"]


def content(translation: Translation) -> list[tuple[Any, ...]]:
    """All that is known of it and of the next-best ones."""
    return [
        (
            str(each),
            each.score,
            each.normalized_score,
            each.finished,
            each.tokens,
            each.token_scores,
        )
        for each in translation.n_best
    ]


def load(path: Path, precision: Any = "auto") -> NumpyTranslationPipeline:
    found = NumpyTranslationPipeline.load(path, device="cpu", precision=precision)
    assert found is not None
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dials", DIALS, ids=lambda dials: "-".join(map(str, dials)) or "plain")
def test_every_bit_is_that_of_a_sentence_by_itself(
    write: Write, dials: dict[str, Any], precision: Any
) -> None:
    if precision == "int8" and not has_int8_kernels():
        pytest.skip("no kernels for 8-bit integers here")
    draw = random.Random(str(dials))
    path = write(spec_of(**dials), seed=len(str(dials)))
    whole = heedful.load(path, device="cpu", precision=precision)
    few = load(path, precision)
    for asked in SEARCHES:
        settings = SearchSettings.parse(asked)
        lines = [*draw.sample(texts(), 4), "", "  a\nb c "]
        expected = whole.translate(lines, settings=settings, batch_size=1)
        assert [*map(content, few.translate(lines, settings))] == [*map(content, expected)]


@pytest.mark.parametrize("dials", DIALS, ids=lambda dials: "-".join(map(str, dials)) or "plain")
def test_pytorch_alone_finds_the_same(write: Write, dials: dict[str, Any]) -> None:
    """The model as it is trained, which no kernel of those it runs on has a part in."""
    path = write(spec_of(**dials), seed=1)
    plain = TranslationPipeline(*load_translator(path))
    for asked in SEARCHES[:4]:
        settings = SearchSettings.parse(asked)
        lines = texts()[:6]
        expected = plain.translate(lines, settings=settings)
        for one, other in zip(load(path).translate(lines, settings), expected, strict=True):
            assert one.tokens == other.tokens
            assert one.token_scores == pytest.approx(other.token_scores, abs=1e-4)


def test_a_spec_with_everything_that_dials_do_not_turn(write: Write) -> None:
    plain = spec_of(norm_placement="pre").plain()
    plain["output_bias"], plain["output_scale"] = True, 0.7
    plain["share_embeddings"] = "inputs"
    plain["embedding"]["scale"] = False
    plain["embedding"]["norm"] = {"kind": "rms"}
    plain["embedding"]["positions"]["layout"] = "halves"
    own = parts(plain["decoder"])["self_attention"]
    own.update(head_width=32, scale=0.2, output_bias=False)
    parts(plain["decoder"])["cross_attention"].update(num_heads=2, head_width=48)
    path = write(type(spec_of()).parse(plain))
    settings = SearchSettings.parse({"beam": 4})
    expected = heedful.load(path, device="cpu").translate(
        texts()[:8], settings=settings, batch_size=1
    )
    assert [*map(content, load(path).translate(texts()[:8], settings))] == [*map(content, expected)]


def parts(stack: Any) -> dict[str, Any]:
    """Parts of the sub-layers of a stack's only block, by name."""
    return {each["name"]: each["part"] for each in stack["pattern"][0]["sublayers"]}


def edited(**changes: Any) -> Any:
    """A spec with other values at some addresses."""
    plain = spec_of().plain()
    for address, value in changes.items():
        *way, last = address.split("__")
        part = plain
        for name in way:
            if name == "block":
                part = parts(part)
            else:
                part = part[name]
        part[last] = value
    return type(spec_of()).parse(plain)


@pytest.mark.parametrize(
    "rotary",
    [
        {"layout": "pairs", "width": 6, "base": 50.0},
        {"scaling": "yarn", "factor": 4.0, "original_length": 16},
    ],
    ids=["pairs", "yarn"],
)
def test_rotary_positions_of_every_kind(write: Write, rotary: dict[str, Any]) -> None:
    changes = {
        f"{stack}__block__self_attention__rotary": rotary for stack in ("encoder", "decoder")
    }
    path = write(edited(**changes))
    settings = SearchSettings.parse({"beam": 3, "min_length": 70, "max_length": 80})
    expected = heedful.load(path, device="cpu").translate(
        texts()[:4], settings=settings, batch_size=1
    )
    assert [*map(content, load(path).translate(texts()[:4], settings))] == [*map(content, expected)]


@pytest.mark.parametrize("eagerness", [1.0, 3.0, 5.0])
def test_models_that_would_rather_end(write: Write, eagerness: float) -> None:
    path = write(edited(output_bias=True))
    weights = load_file(path / "model.safetensors")
    weights["output_bias"][tokenizers().target.eos] = eagerness
    save_file(weights, path / "model.safetensors")
    renew_digests(path)
    whole, few = heedful.load(path, device="cpu"), load(path)
    for asked in (*SEARCHES[:4], {"beam": 3, "length_penalty": 2.5}):
        settings = SearchSettings.parse(asked)
        found = few.translate(texts()[:15], settings)
        expected = whole.translate(texts()[:15], settings=settings, batch_size=1)
        assert [*map(content, found)] == [*map(content, expected)]


def test_sources_of_every_length(write: Write) -> None:
    path = write(spec_of(max_length=20))
    word = texts()[0].split()[0]
    lines = [" ".join([word] * count) for count in range(1, 70, 4)]
    settings = SearchSettings.parse({"beam": 2, "max_length": 6})
    told: list[str] = []
    found = load(path).translate(lines, settings, first_line=5, warn=told.append)
    expected_told: list[str] = []
    expected = heedful.load(path, device="cpu").translate(
        lines, settings=settings, batch_size=1, first_line=5, warn=expected_told.append
    )
    assert [*map(content, found)] == [*map(content, expected)]
    assert told == expected_told
    assert any("line 12" in warning for warning in told)


@pytest.mark.parametrize("layout", ["pairs", "halves"])
@pytest.mark.parametrize("width", [6, 64, 512])
def test_sinusoids_are_those_of_training(layout: Any, width: int) -> None:
    expected = SinusoidalPositions(width, layout)(torch.arange(1024)[None])[0]
    assert np.array_equal(sinusoids(1024, width, layout), expected.numpy())


NEEDING_MORE: list[Any] = [
    spec_of(positions="alibi"),
    spec_of(positions="t5"),
    spec_of(positions="relative_keys"),
    spec_of(num_experts=2, experts_per_token=2),
    spec_of(window=4),
    spec_of(num_heads=16),  # heads of 4 numbers
    edited(decoder__block__self_attention__softcap=3.0),
    edited(decoder__block__cross_attention__mask={"kind": "causal"}),
    edited(encoder__block__self_attention__mask={"kind": "causal"}),
    edited(embedding__num_segments=2),
    edited(encoder__block__self_attention__kept_heads=[0, 1]),
    edited(encoder__shared_position_bias={"kind": "t5"}),
    edited(encoder__shared_position_bias={"kind": "alibi"}),
    edited(embedding__positions={"kind": "learned", "max_length": 64}, max_length=64),
]


@pytest.mark.parametrize("spec", NEEDING_MORE, ids=range(len(NEEDING_MORE)))
def test_models_that_need_more_are_left_to_pytorch(write: Write, spec: Any) -> None:
    path = write(spec)
    assert NumpyTranslationPipeline.load(path, device="cpu") is None
    assert heedful.load(path, device="cpu").translate(["ab"], max_length=3)


def test_other_devices_and_precisions_are_left_to_pytorch(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write()
    assert NumpyTranslationPipeline.load(path, device="cuda") is None
    assert NumpyTranslationPipeline.load(path, device="cpu", precision="bf16") is None
    assert NumpyTranslationPipeline.load(path / "model.safetensors", device="cpu") is None
    assert NumpyTranslationPipeline.load(tmp_path / "nowhere", device="cpu") is None
    (tmp_path / "device").touch()
    monkeypatch.setattr(lean_pipeline, "_ACCELERATORS", (str(tmp_path / "device"),))
    assert NumpyTranslationPipeline.load(path) is None
    monkeypatch.setattr(lean_pipeline, "_ACCELERATORS", (str(tmp_path / "none"),))
    monkeypatch.setattr("sys.platform", "linux")
    assert NumpyTranslationPipeline.load(path) is not None
    monkeypatch.setattr("sys.platform", "darwin")
    assert NumpyTranslationPipeline.load(path) is None
    monkeypatch.setattr(lean_pipeline, "kernels", lambda: None)
    assert NumpyTranslationPipeline.load(path, device="cpu") is None


def test_files_that_do_not_fit_are_left_to_pytorch_which_says_so(write: Write) -> None:
    path = write()
    file = path / "model.safetensors"
    whole = load_file(file)
    name = "encoder.blocks.1.feedforward.up.weight"
    cases = {
        "missing": {key: value for key, value in whole.items() if key != name},
        "unknown": {**whole, "other": torch.zeros(3)},
        "another shape": {**whole, name: whole[name].T.contiguous()},
    }
    for said, weights in cases.items():
        save_file(weights, file)
        assert NumpyTranslationPipeline.load(path, device="cpu") is None
        with pytest.raises(ModelError, match=said):
            heedful.load(path, device="cpu")
    save_file({key: value.bfloat16() for key, value in whole.items()}, file)
    renew_digests(path)
    assert NumpyTranslationPipeline.load(path, device="cpu") is None
    save_file(whole, file)
    renew_digests(path)
    assert NumpyTranslationPipeline.load(path, device="cpu") is not None
    file.write_bytes(file.read_bytes()[:-100])
    assert NumpyTranslationPipeline.load(path, device="cpu") is None
    file.unlink()
    assert NumpyTranslationPipeline.load(path, device="cpu") is None
    save_file(whole, file)
    (path / "tokenizer.json").unlink()
    assert NumpyTranslationPipeline.load(path, device="cpu") is None
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "schema_version": 99}))
    assert NumpyTranslationPipeline.load(path, device="cpu") is None


def test_rotary_widths_that_no_head_has_are_refused_as_ever(write: Write) -> None:
    path = write()
    config = json.loads((path / "config.json").read_text())
    own = parts(config["model"]["encoder"])["self_attention"]
    own["rotary"] = {"width": 5}
    (path / "config.json").write_text(json.dumps(config))
    assert NumpyTranslationPipeline.load(path, device="cpu") is None
    with pytest.raises(ConfigError, match="cannot be rotated in 5"):
        heedful.load(path, device="cpu")


def test_a_model_without_numbers_is_refused_as_ever(write: Write) -> None:
    path = write()
    file = path / "model.safetensors"
    weights = load_file(file)
    weights["decoder.blocks.1.feedforward_norm.bias"][0] = float("nan")
    save_file(weights, file)
    renew_digests(path)
    for translate in (
        lambda: load(path).translate(["ab"], SearchSettings()),
        lambda: heedful.load(path, device="cpu").translate(["ab"]),
    ):
        with pytest.raises(ModelError, match="not numbers"):
            translate()


def test_lengths_beyond_learned_positions_are_refused_as_ever(write: Write) -> None:
    path = write(spec_of(positions="learned", max_length=30))
    for line in ("ab", " "):
        with pytest.raises(ConfigError, match="max_length = 31"):
            load(path).translate([line], SearchSettings(max_length=31))
    settings = SearchSettings(min_length=30)
    (found,) = load(path).translate(texts()[:1], settings)
    (expected,) = heedful.load(path, device="cpu").translate(texts()[:1], settings=settings)
    assert len(found.tokens) == 30
    assert content(found) == content(expected)


def test_a_table_of_positions_that_begins_later(write: Write) -> None:
    positions = {"kind": "learned", "max_length": 300, "unused_rows": 2}
    path = write(edited(embedding__positions=positions))
    settings = SearchSettings(beam=2)
    expected = heedful.load(path, device="cpu").translate(
        texts()[:4], settings=settings, batch_size=1
    )
    assert [*map(content, load(path).translate(texts()[:4], settings))] == [*map(content, expected)]


@pytest.mark.skipif(not has_int8_kernels(), reason="no kernels for 8-bit integers here")
def test_weights_are_rounded_to_8_bits_as_ever() -> None:
    for seed in range(20):  # of so many numbers some lie between two integers
        weight = torch.randn(256, 512, generator=torch.Generator().manual_seed(seed))
        found = PackedWeight(weight.numpy(), None, int8=True)
        expected = NativeLinear(weight, None, int8=True).packed
        for part in ("packed", "scale", "correction"):
            assert np.array_equal(getattr(found, part), getattr(expected, part))


def test_searches_that_need_more() -> None:
    assert searches(SearchSettings(beam=9, n_best=3, min_length=2, max_length=5, length_penalty=0))
    assert not searches(SearchSettings(sampling=True))
    assert not searches(SearchSettings(coverage_penalty=0.1))
    assert not searches(SearchSettings(no_repeat_ngram=3))


def test_few_texts_are_served(write: Write) -> None:
    few = load(write())
    assert few.serves(["a"] * lean_pipeline.MOST_LINES)
    assert not few.serves(["a"] * (lean_pipeline.MOST_LINES + 1))
    assert few.serves(["a" * lean_pipeline.MOST_CHARACTERS])
    assert not few.serves(["a" * lean_pipeline.MOST_CHARACTERS, "b"])


def test_tokenizers_are_the_models(write: Write) -> None:
    (found,) = load(write()).translate(["ab cd"], SearchSettings(beam=1, max_length=4))
    ids = [tokenizers().target.pieces([i])[0] for i in range(tokenizers().target.size)]
    assert set(found.tokens) <= set(ids)


def by_itself(
    pipeline: TranslationPipeline, line: str, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Translation:
    """What is found for one line where batches are forbidden."""
    with monkeypatch.context() as forbidding:
        forbidding.setattr(segment_search.SegmentSearch, "_search_batch", None)
        return pipeline.translate([line], **options)[0]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dials", DIALS, ids=lambda dials: "-".join(map(str, dials)) or "plain")
def test_a_loaded_model_translates_one_sentence_so(
    write: Write, dials: dict[str, Any], precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if precision == "int8" and not has_int8_kernels():
        pytest.skip("no kernels for 8-bit integers here")
    whole = heedful.load(write(spec_of(**dials), seed=4), device="cpu", precision=precision)
    for asked in SEARCHES:
        settings = SearchSettings.parse(asked)
        lines = texts()[3:6]
        expected = whole.translate(lines, settings=settings, batch_size=1)
        found = [by_itself(whole, line, monkeypatch, settings=settings) for line in lines]
        assert [*map(content, found)] == [*map(content, expected)]


@pytest.mark.parametrize(
    "parts",
    [{"output_bias": True, "share_embeddings": "inputs"}, {"share_embeddings": "none"}],
    ids=["bias", "three tables"],
)
def test_weights_are_shared_not_copied(write: Write, parts: Any) -> None:
    whole = heedful.load(write(edited(**parts)), device="cpu")
    model = whole.engines[0]
    few = share_weights(model)
    assert few is not None
    layer = model.output_projection.packed
    assert isinstance(layer, NativeLinear)
    assert few.output.packed_weight == layer.packed.struct.packed_weight
    assert few.source_input.table[0] == model.source_embedding.weight.data_ptr()
    assert few.target_input.table[0] == model.target_embedding.weight.data_ptr()


@pytest.mark.parametrize(
    "options",
    [
        {"alignment": True},
        {"prefixes": [texts()[9]]},
        {"sampling": True, "seed": 3},
        {"no_repeat_ngram": 2},
        {"coverage_penalty": 0.3},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_is_asked_for_besides_takes_a_batch(
    write: Write, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = heedful.load(write(), device="cpu")
    assert whole.translate([texts()[0]], **options)
    with pytest.raises(TypeError):
        by_itself(whole, texts()[0], monkeypatch, **options)


def test_several_pieces_or_models_take_a_batch(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write()
    whole, both = heedful.load(path, device="cpu"), heedful.load([path, path], device="cpu")
    bfloat = heedful.load(path, device="cpu", precision="bf16")
    plain = TranslationPipeline(*load_translator(path))
    assert by_itself(whole, "ab", monkeypatch) == whole.translate(["ab", "c"])[0]
    for pipeline, text in ((whole, "ab\nc"), (both, "ab"), (bfloat, "ab"), (plain, "ab")):
        assert pipeline.translate([text])
        with pytest.raises(TypeError):
            by_itself(pipeline, text, monkeypatch)
    assert whole.translate([" \n"]) == [""]


def test_a_shortlist_holds_for_one_sentence_too(write: Write) -> None:
    whole = heedful.load(write(), device="cpu")
    size, likely = tokenizers().target.size, np.empty(0, np.int64)
    ends, common = np.zeros(tokenizers().source.size + 1, np.int64), np.arange(3, 9)
    short = Shortlist(common, ends, likely, size, False, "")
    narrow = TranslationPipeline(whole.engines, tokenizers(), shortlist=short)
    (found,) = narrow.translate([texts()[0]], min_length=8, max_length=12)
    assert set(found.tokens) <= set(tokenizers().target.pieces(common.tolist()))
    assert found != whole.translate([texts()[0]], min_length=8, max_length=12)[0]


def test_a_sentence_beyond_learned_positions_is_refused_as_ever(write: Write) -> None:
    whole = heedful.load(write(NEEDING_MORE[-1]), device="cpu")
    line, source = " ".join(texts()[:30]), tokenizers().source
    cuts = [
        (line[:end], cut_texts([line[:end]], source, 64, UNRECORDED)[0])
        for end in range(1, len(line))
    ]
    piece = next(text for text, cut in cuts if len(cut.segments[0].ids) == 64)
    with pytest.raises(UserError) as one:
        whole.translate([piece], max_length=3)
    with pytest.raises(UserError) as several:
        whole.translate([piece] * 2, max_length=3)
    assert type(one.value) is type(several.value)


@pytest.mark.parametrize("part", ["encoder.positions", "decoder.1.self.residual"])
def test_what_is_taken_away_is_missed(write: Write, part: str) -> None:
    whole = heedful.load(write(), device="cpu")
    line, options = texts()[0], {"min_length": 8, "max_length": 12}
    before = whole.translate([line], **options)
    with ablated(whole.engines[0], [part]):
        (without,) = whole.translate([line], **options)
        assert content(without) == content(whole.translate([line, line], **options)[0])
    assert content(without) != content(before[0])
    assert content(whole.translate([line], **options)[0]) == content(before[0])


@pytest.mark.parametrize("count", [1, 3])
def test_hooks_on_a_block_are_called(write: Write, count: int) -> None:
    whole = heedful.load(write(), device="cpu")
    calls: list[object] = []
    whole.engines[0].decoder.blocks[-1].register_forward_hook(lambda *hook: calls.append(hook))
    assert whole.translate(["ab"] * count)
    assert calls


def test_progress_is_told_of_one_sentence_and_memory_may_run_out(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = heedful.load(write(), device="cpu")
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    expected = whole.translate(["ab"], progress=progress)
    assert told == [(1, 1)]

    def run_out(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(NumpyTranslationPipeline, "find", run_out)
    assert whole.translate(["ab"], progress=progress) == expected
    assert told == [(1, 1)] * 2


@pytest.mark.parametrize("dials", DIALS, ids=lambda dials: "-".join(map(str, dials)) or "plain")
def test_without_pytorch_alignments_and_scores_are_the_same(
    write: Write, dials: dict[str, Any]
) -> None:
    path = write(spec_of(**dials), seed=len(str(dials)))
    whole, own = heedful.load(path, device="cpu"), TranslationPipeline.torch_free([path])
    lines = [*texts()[:3], "", "  a\nb c ", "see https://example.org, {n} a", "a. b. c"]
    expected = whole.translate(lines, beam=3, n_best=2, alignment=True, batch_size=1)
    found = own.translate(lines, beam=3, n_best=2, alignment=True)
    assert [*map(content, found)] == [*map(content, expected)]
    for one, other in zip(found, expected, strict=True):
        same_alignment(one.alignment, other.alignment)
    pairs = [(line, str(each)) for line, each in zip(lines, expected, strict=True) if each]
    sides = [list(side) for side in zip(*pairs, strict=True)]
    scores = zip(
        own.score(*sides, alignment=True), whole.score(*sides, alignment=True), strict=True
    )
    for score, wanted in scores:
        assert score.tokens == wanted.tokens
        assert score.token_scores == pytest.approx(wanted.token_scores, rel=1e-5, abs=1e-5)
        same_alignment(score.alignment, wanted.alignment)


def same_alignment(found: Alignment | None, wanted: Alignment | None) -> None:
    if wanted is None or found is None:  # of an empty line
        assert found is wanted
        return
    assert found.source_words == wanted.source_words
    assert found.target_words == wanted.target_words
    assert np.array(found.matrix) == pytest.approx(np.array(wanted.matrix), abs=2e-6)


def test_what_needs_pytorch_is_refused_where_there_is_none(write: Write) -> None:
    path = write()
    for options in ({"device": "cuda"}, {"precision": "bf16"}):
        with pytest.raises(TorchMissing, match=r"pip install 'heedful\[torch\]'"):
            TranslationPipeline.torch_free([path], **options)
    own = TranslationPipeline.torch_free([path])
    refused: list[dict[str, Any]] = [{"sampling": True}, {"no_repeat_ngram": 2}]
    for asked in [*refused, {"prefixes": ["a"]}]:
        with pytest.raises(TorchMissing):
            own.translate(["a b"], **asked)
