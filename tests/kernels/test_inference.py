"""Kernels in C: as exact as the operations they stand for, for every set of instructions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heedful.apps.pruning import ablated
from heedful.apps.pruning.head_pruning import without_heads
from heedful.device import Precision
from heedful.engines.inference.packed_linear import NativeLinear
from heedful.engines.inference.prepare import prepare
from heedful.kernels import library, topk
from heedful.nn.capture import Capture

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(library.kernels() is None, reason="no kernels were compiled here")
SIZES = st.tuples(st.integers(1, 30), st.integers(1, 70), st.integers(1, 90))


def drawn(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("level")
@given(
    sizes=SIZES, seed=st.integers(0, 99), bias=st.booleans(), then=st.sampled_from(["none", "relu"])
)
@settings(max_examples=40)
@torch.inference_mode()
def test_products_in_float32(sizes, seed, bias, then):
    rows, width, out = sizes
    x, w = drawn(rows, width, seed=seed), drawn(out, width, seed=seed + 1)
    b = drawn(out, seed=seed + 2) if bias else None
    expected = x.numpy().astype(np.float64) @ w.numpy().astype(np.float64).T
    expected += 0.0 if b is None else b.numpy()
    expected = np.maximum(expected, 0.0) if then == "relu" else expected
    found = NativeLinear(w, b, then)(x[None])
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-5, atol=1e-5 * width**0.5)


@pytest.mark.skipif(not library.has_int8_kernels(), reason="no kernels for 8-bit products here")
@pytest.mark.usefixtures("level")
@given(sizes=SIZES, seed=st.integers(0, 99), bias=st.booleans(), scale=st.sampled_from([1e-3, 1e3]))
@settings(max_examples=60)
@torch.inference_mode()
def test_products_in_8_bits_are_exact_products_of_rounded_rows(sizes, seed, bias, scale):
    rows, width, out = sizes
    x, w = drawn(rows, width, seed=seed, scale=scale).numpy(), drawn(out, width, seed=seed + 1)
    b = drawn(out, seed=seed + 2) if bias else None

    def rounded(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        largest = np.abs(matrix).max(1, keepdims=True)
        scaled = matrix * (np.float32(127) / largest)
        assume(np.abs(np.abs(scaled) % 1 - 0.5).min() > 2e-5)  # else either neighbour is right
        return np.rint(scaled).astype(np.int64), largest.astype(np.float64) / 127

    (left, left_scale), (right, right_scale) = rounded(x), rounded(w.numpy())
    expected = (left @ right.T) * left_scale * right_scale.T + (0.0 if b is None else b.numpy())
    found = NativeLinear(w, b, int8=True)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(
    "AVX-512" not in (library.instructions() or ""), reason="no two sets of instructions here"
)
@given(
    rows=st.integers(1, 100),
    width=st.integers(1, 300),
    out=st.integers(1, 200),
    then=st.sampled_from(["none", "relu"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
@torch.inference_mode()
def test_every_set_of_instructions_gives_the_same_integers(rows, width, out, then, seed):
    x, weight = drawn(rows, width, seed=seed), drawn(out, width, seed=seed + 1)
    x[seed % rows] *= 1e6
    found = []
    try:
        for level in (1, 2, 3):
            library.kernels().heedful_select(level)
            found.append(NativeLinear(weight, drawn(out, seed=seed + 2), then, int8=True)(x))
    finally:
        library.kernels.cache_clear()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.skipif(not library.has_int8_kernels(), reason="no kernels for 8-bit products here")
@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("width", [63, 64])
@torch.inference_mode()
def test_8_bits_at_their_largest_do_not_saturate(width):
    found = NativeLinear(torch.ones(70, width), None, int8=True)(torch.ones(9, width))
    assert torch.equal(found, torch.full((9, 70), float(width)))
    found = NativeLinear(-torch.ones(70, width), None, int8=True)(torch.ones(9, width))
    assert torch.equal(found, torch.full((9, 70), -float(width)))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("int8", [False, True])
@torch.inference_mode()
def test_a_row_does_not_depend_on_its_neighbours_nor_on_threads(int8):
    if int8 and not library.has_int8_kernels():
        pytest.skip("no kernels for 8-bit products here")
    layer = NativeLinear(drawn(300, 130, seed=1), drawn(300, seed=2), int8=int8)
    x = drawn(97, 130, seed=3)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        whole = layer(x)
    finally:
        torch.set_num_threads(threads)
    for first, last in ((0, 1), (1, 6), (6, 97)):
        assert torch.equal(layer(x[first:last]), whole[first:last])


SHAPES = {
    "2017": {},
    "pre-norm, RMS, SwiGLU, no bias": {
        "norm_placement": "pre",
        "norm": "rms",
        "activation": "swiglu",
        "bias": False,
    },
    "rotary, grouped, GELU": {"positions": "rotary", "num_kv_heads": 2, "activation": "gelu"},
    "alibi, multi-query, GEGLU": {"positions": "alibi", "num_kv_heads": 1, "activation": "geglu"},
    "t5, GELU by tanh": {"positions": "t5", "activation": "gelu_tanh"},
    "relative keys, window, SiLU": {
        "positions": "relative_keys",
        "window": 3,
        "activation": "silu",
    },
    "wide heads": {"num_heads": 1},
}


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.inference_mode()
def test_blocks_are_computed_as_their_modules_say(build, name, side, monkeypatch):
    """Encoder, and a beam search's steps with sentences and beams that come and go."""
    plain = build(**SHAPES[name])
    engine = prepare(plain, Precision("fp32", "cpu"))
    for stack in (engine.encoder, engine.decoder):
        assert all(stack.cpu_blocks)
        monkeypatch.setattr(stack, "program", None)  # else no block is called by itself
    lengths, size = [9, 4, 1, 7], 9
    positions = torch.tensor(
        [
            [-1] * (size - n) + [*range(n)] if side == "left" else [*range(n)] + [-1] * (size - n)
            for n in lengths
        ]
    )
    source = drawn(4, size, seed=5).mul(9).long().abs().add(4).clamp(max=49)
    real = positions >= 0
    found, expected = (m.encode(source, positions).states[real] for m in (engine, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)

    states = [m.start(source, positions) for m in (plain, engine)]
    tokens = torch.full((4, 1), 2)
    reorders = [[[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]], [[1, 0, 1], [9, 11, 10]], [[3, 3, 4]]]
    for step in range(6):
        steps = [m.step(s, tokens) for m, s in zip((plain, engine), states, strict=True)]
        torch.testing.assert_close(steps[1][0], steps[0][0], rtol=1e-4, atol=5e-5)
        states = [state for _, state in steps]
        if step % 2 == 0:
            rows = torch.tensor(reorders[step // 2])
            states = [m.reorder(s, rows) for m, s in zip((plain, engine), states, strict=True)]
            tokens = torch.zeros_like(rows)
        tokens = (tokens + 5 + step) % 46 + 4


@torch.inference_mode()
def test_what_is_looked_at_or_taken_away_is_computed_by_modules(build):
    model = prepare(build(), Precision("fp32", "cpu"))
    source, positions = torch.full((1, 3), 7), torch.arange(3)[None]
    whole = model.encode(source, positions).states
    with ablated(model, "encoder.1.self.residual"):
        assert all(stack.by_definition for stack in (model.encoder, model.decoder))
        assert not torch.allclose(model.encode(source, positions).states, whole)
    assert torch.equal(model.encode(source, positions).states, whole)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("fused", [True, False])
@torch.inference_mode()
def test_padding_at_the_end_is_left_out(build, name, fused, monkeypatch):
    plain = build(**SHAPES[name])
    engine = prepare(plain, Precision("fp32", "cpu"))
    rows: list[int] = []

    def counted(run):
        return lambda x, *a, **named: rows.append(len(x.flatten(0, 1))) or run(x, *a, **named)

    for stack in (engine.encoder, engine.decoder):
        program = stack.program if fused else None
        monkeypatch.setattr(stack, "program", program and counted(program))
        monkeypatch.setattr(stack, "cpu_blocks", [*map(counted, stack.cpu_blocks)])
    lengths = torch.tensor([3, 7, 0, 1])
    slots = torch.arange(7).expand(4, -1)
    positions = torch.where(slots < lengths[:, None], slots, -1)
    source = drawn(4, 7, seed=5).mul(9).long().abs().add(4).clamp(max=49)
    real = positions >= 0
    decoded = [m.decode(m.encode(source, positions), source, positions) for m in (plain, engine)]
    torch.testing.assert_close(decoded[1][real], decoded[0][real], rtol=1e-4, atol=5e-5)
    by_slot = SHAPES[name].get("positions") in ("alibi", "t5", "relative_keys")
    assert set(rows) == {28 if by_slot else 11}
    ahead = torch.where(slots >= 7 - lengths[:, None], slots - 7 + lengths[:, None], -1)
    rows.clear()
    engine.encode(source, ahead)
    assert set(rows) == {28}


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.inference_mode()
def test_kernels_show_the_weights_of_attention(build, name, side, monkeypatch):
    plain = build(**SHAPES[name])
    if name == "2017":  # pruned, too
        gone = {
            ("encoder", 0, "self_attention"): [1],
            ("decoder", 1, "cross_attention"): [0, 2],
            ("encoder", 1, "self_attention"): range(4),
            ("decoder", 0, "cross_attention"): range(4),
            ("decoder", 1, "self_attention"): range(4),
        }
        plain = without_heads(plain, gone)
    engine = prepare(plain, Precision("fp32", "cpu"))
    for block in (*engine.encoder.blocks, *engine.decoder.blocks):  # modules would say it twice
        monkeypatch.setattr(block, "forward", None)
    source = drawn(3, 6, seed=5).mul(9).long().abs().add(4).clamp(max=49)
    last = [-1, -1, -1, -1, 0, 1] if side == "left" else [0, 1, -1, -1, -1, -1]
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, -1, -1, -1], last])
    target = drawn(3, 5, seed=6).mul(9).long().abs().add(4).clamp(max=49)
    places = torch.tensor([[0, 1, 2, 3, 4], [0, 1, -1, -1, -1], [0, 1, 2, -1, -1]])
    wanted = [f"encoder.{i}.self.weights" for i in (0, 1)]
    wanted += [f"decoder.{i}.{kind}.weights" for i in (0, 1) for kind in ("self", "cross")]
    found: list[Capture] = []
    for model in (plain, engine):
        capture = Capture(wanted)
        model.decode(model.encode(source, positions, capture), target, places, capture)
        found.append(capture)
    for place in wanted:
        expected, own = (capture.found[place] for capture in found)
        hidden = (places if place.startswith("decoder") else positions) < 0
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)
        assert torch.all(own.transpose(1, 2)[hidden] == 0.0)


@torch.inference_mode()
def test_only_blocks_that_are_looked_into_are_computed_by_modules(build, monkeypatch):
    plain = build()
    engine = prepare(plain, Precision("fp32", "cpu"))
    source, positions = torch.full((1, 3), 7), torch.arange(3)[None]
    calls = []
    blocks = [
        lambda *a, n=native, i=number, **named: calls.append(i) or n(*a, **named)
        for number, native in enumerate(engine.decoder.cpu_blocks)
    ]
    monkeypatch.setattr(engine.decoder, "cpu_blocks", blocks)
    target, places = torch.full((1, 4), 9), torch.arange(4)[None]
    found, expected = Capture(["decoder.1.cross.query"]), Capture(["decoder.1.cross.query"])
    for model, capture in ((plain, expected), (engine, found)):
        model.decode(model.encode(source, positions), target, places, capture)
    assert calls == [0]
    [expected], [found] = expected.found.values(), found.found.values()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("level")
@given(
    size=st.integers(1, 300),
    width=st.integers(1, 4),
    count=st.integers(1, 12),
    seed=st.integers(0, 99),
    hidden=st.integers(0, 5),
    dead=st.integers(0, 3),
)
@settings(max_examples=100)
def test_sums_and_the_best_continuations(size, width, count, seed, hidden, dead):
    scores = drawn(4, width, size, seed=seed, scale=30.0).round_()  # many are equal
    scores[..., :hidden] = -torch.inf
    scores[..., -1] = 1.0
    assert topk.supports(scores)
    excess, are_numbers = topk.logsumexp(scores)
    expected = torch.logsumexp(scores.double(), -1)
    torch.testing.assert_close(excess, expected, rtol=1e-6, atol=1e-6)
    assert are_numbers
    totals = drawn(4, width, seed=seed + 1).double().round_()
    totals[:, :dead] = -torch.inf
    found = topk.best_continuations(scores, excess.round_(), totals, count)
    assert [each.dtype for each in found] == [
        torch.float64,
        torch.int64,
        torch.int64,
        torch.float32,
    ]
    for sentence in range(4):
        every = []
        for parent in range(width):
            rows = enumerate(
                (scores[sentence, parent].double() - excess[sentence, parent]).tolist()
            )
            # No more of a hypothesis than there are to be of all; of equal ones the first.
            rows = sorted(rows, key=lambda one: -one[1])[:count]
            told = float(totals[sentence, parent])
            every += [(told + score, parent, token, score) for token, score in rows]
        every = sorted(every, key=lambda one: -one[0])[:count]
        every += [(-torch.inf, 0, 0, -torch.inf)] * (count - len(every))
        assert [*zip(*(each[sentence].tolist() for each in found), strict=True)] == every


@pytest.mark.usefixtures("level")
def test_a_score_that_is_no_number_is_seen():
    scores = drawn(3, 100, seed=1)
    scores[1, 70] = torch.nan
    totals, are_numbers = topk.logsumexp(scores)
    assert totals.isnan().tolist() == [False, True, False]
    assert not are_numbers


@pytest.mark.parametrize("value", ["off", "avx2", "avx512"])
def test_the_environment_chooses(value):
    asked = "from heedful.kernels.library import instructions; print(instructions())"
    environment = dict(os.environ, HEEDFUL_NATIVE=value)
    done = subprocess.run(
        [sys.executable, "-c", asked],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        done.stdout.strip()
        in {
            "off": ["None"],
            "avx2": ["AVX2", "NEON"],
            "avx512": ["AVX-512 VNNI", "AVX2", "NEON"],
        }[value]
    )
