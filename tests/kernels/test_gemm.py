from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.device import Precision, own_products
from heedful.engines.host_parts import PROCESSOR_KERNELS
from heedful.engines.training import products
from heedful.engines.training.chunked_loss import ProcessorLosses
from heedful.engines.training.products import ProcessorLinear, linear
from heedful.kernels import gemm, library
from heedful.kernels.gemm import PackedB, gemm_transposed
from heedful.nn.attention.attend import attend
from heedful.nn.attention.masks import Causal
from heedful.nn.capture import Capture
from heedful.nn.feedforward import FeedForward
from heedful.nn.low_rank import LowRank
from heedful.nn.mixer import Context
from heedful.nn.positions import Positions
from heedful.nn.spec import FeedForwardSpec

from ..on_processor import on_processor

HALF = torch.bfloat16
KINDS = [torch.float32, HALF]
BEYOND = 200_000

pytestmark = pytest.mark.skipif(library.kernels() is None, reason="no kernels were compiled here")


def needs(dtype: torch.dtype) -> None:
    if not library.has_gemm(str(dtype).removeprefix("torch."), 1024):
        pytest.skip(f"no products of {dtype} here")


def close(found, wanted, dtype=torch.float32):
    """As exact as the type that results are in allows; sums are float32 in either."""
    scale = max(float(wanted.abs().max()), 1e-30)
    exactness = 2**-8 if dtype == HALF else 1e-5
    assert float((found.double() - wanted).abs().max()) <= exactness * scale


ACTIVATIONS = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


def bound(terms):
    """How far a float32 sum may be from the truth, as a share of the sum of all magnitudes."""
    return (terms + 2) * 2**-24


def draw(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


@given(
    rows=st.integers(1, 130),
    depth=st.integers(1, 1300),
    width=st.integers(1, 140),
    turned=st.booleans(),
    bias=st.booleans(),
    activation=st.sampled_from([None, *ACTIVATIONS]),
    sloped=st.booleans(),
    gated=st.booleans(),
    half_out=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("level", [3, 2, 1])
def test_products_are_those_of_float64(
    level, dtype, rows, depth, width, turned, bias, activation, sloped, gated, half_out, seed
):
    library.kernels().heedful_select(level)
    try:
        if dtype == HALF:
            needs(dtype)
            depth += depth % 2
        left = draw(rows, depth, seed=seed, dtype=dtype)
        right = (
            draw(width, depth, seed=seed + 1).t() if turned else draw(depth, width, seed=seed + 1)
        )
        extra = draw(width, seed=seed + 2) if bias else None
        gate = draw(rows, width, seed=seed + 3, dtype=dtype) if gated else None
        kind = HALF if half_out else torch.float32
        out = torch.full((rows, width), torch.nan, dtype=kind)
        slopes = None
        if activation not in (None, "relu"):
            slopes = torch.full((rows, width), torch.nan, dtype=kind)
        elif activation is None and sloped:
            slopes = draw(rows, width, seed=seed + 4, dtype=kind)
        PackedB(right, dtype).multiply(
            left, out, bias=extra, activation=activation, slopes=slopes, gate=gate
        )
    finally:
        library.kernels.cache_clear()
    wanted = left.double() @ right.to(dtype).double()
    if bias:
        wanted += extra
    scale = (left.double().abs() @ right.to(dtype).double().abs()).max() + bias
    allowed = bound(depth) * scale
    if activation is None and sloped:
        wanted *= slopes
        allowed = allowed * slopes.abs().max()
    elif activation is not None:
        before = wanted.requires_grad_()
        wanted = ACTIVATIONS[activation](before)
        if activation != "relu":  # which is exact itself
            (steep,) = torch.autograd.grad(wanted.sum(), before)
            # A slope turns at most once in 1.2, in which the sum is not exact.
            close_to(slopes, steep, 1.2 * allowed + 1e-6)
            allowed = 1.2 * allowed + 1e-6 * scale
        wanted = wanted.detach()
    if gated:
        wanted = torch.where(gate > 0, wanted, 0.0)
    close_to(out, wanted, allowed)


def close_to(found, wanted, allowed):
    """But for the rounding of the type that it was written in."""
    rounding = 2**-8 * wanted.abs().max() if found.dtype == HALF else 0.0
    assert (found.double() - wanted).abs().max() <= allowed + rounding


@given(
    depth=st.integers(1, 700) | st.integers(1, 9),
    rows=st.integers(1, 10_000),
    width=st.integers(1, 70),
    turned=st.booleans(),
)
@example(depth=2, rows=10_000, width=10, turned=True)
@example(depth=40, rows=10_000, width=10, turned=True)
@settings(max_examples=40)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("level", [3, 2, 1])
def test_nothing_is_written_past_the_workspace(level, dtype, depth, rows, width, turned):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # past the room of the first there is otherwise that of the next
    library.kernels().heedful_select(level)
    try:
        if dtype == HALF:
            needs(dtype)
        asked = []

        def guarded(*shape, transpose_a):
            size = library.kernels().heedful_gemm_workspace(*shape, transpose_a)
            asked.append(torch.full((size + BEYOND,), -7.0))
            return asked[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gemm, "_workspace", guarded)
            if turned:
                given = torch.ones(depth, rows, dtype=dtype), torch.ones(depth, width, dtype=dtype)
                gemm_transposed(*given, torch.empty(rows, width), column_sums=torch.empty(rows))
            else:
                right = PackedB(torch.ones(2 * depth, width), dtype)
                right.multiply(
                    torch.ones(rows, 2 * depth, dtype=dtype), torch.empty(rows, width, dtype=HALF)
                )
    finally:
        library.kernels.cache_clear()
        torch.set_num_threads(threads)
    assert len(asked) == 1
    assert bool((asked[0][-BEYOND:] == -7.0).all())


@given(
    depth=st.integers(1, 2500),
    rows=st.integers(1, 210),
    width=st.integers(1, 140),
    adds=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("level", [3, 2, 1])
def test_turned_products_are_those_of_float64(level, dtype, depth, rows, width, adds, seed):
    library.kernels().heedful_select(level)
    try:
        if dtype == HALF:
            needs(dtype)
        left = draw(depth, rows, seed=seed, dtype=dtype)
        right = draw(depth, width, seed=seed + 1, dtype=dtype)
        out = draw(rows, width, seed=seed + 2)
        before, sums = out.clone(), torch.full((rows,), torch.nan)
        gemm_transposed(left, right, out, column_sums=sums, accumulate=adds)
    finally:
        library.kernels.cache_clear()
    wanted = left.double().t() @ right.double() + (before if adds else 0.0)
    scale = (left.double().abs().t() @ right.double().abs()).max() + before.abs().max()
    assert (out - wanted).abs().max() <= bound(depth) * scale
    total = left.double().abs().sum(0).max()
    assert (sums - left.double().sum(0)).abs().max() <= bound(depth) * total


@pytest.mark.parametrize("dtype", KINDS)
def test_no_sum_depends_on_the_number_of_threads(dtype):
    needs(dtype)
    left, right = draw(700, 2200, dtype=dtype), draw(2200, 300)
    below = draw(700, 300, dtype=dtype)

    def both():
        laid = PackedB(right, dtype)
        wide, narrow = torch.empty(700, 300), torch.empty(700, 300, dtype=HALF)
        turned = gemm_transposed(left, below, torch.empty(2200, 300))
        return laid.multiply(left, wide), laid.multiply(left, narrow), turned

    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(both())
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("level", [3, 2, 1])
def test_what_is_infinite_stays_so(level, activation):
    left, right = torch.zeros(2, 4), torch.ones(4, 20)
    left[0, 1] = torch.inf
    library.kernels().heedful_select(level)
    try:
        laid, out, slopes = PackedB(right, torch.float32), torch.empty(2, 20), torch.empty(2, 20)
        laid.multiply(left, out, activation=activation, slopes=slopes)
    finally:
        library.kernels.cache_clear()
    assert torch.equal(out, torch.tensor([torch.inf, 0.0])[:, None].expand(2, 20))


@pytest.mark.parametrize("dtype", KINDS)
def test_what_is_no_number_stays_where_it_belongs(dtype):
    needs(dtype)
    left, right = draw(70, 64, dtype=dtype), draw(64, 80)
    left[5, 7], left[60, 3] = torch.nan, torch.inf
    out = PackedB(right, dtype).multiply(left, torch.empty(70, 80), activation="relu")
    assert out[5].isnan().all()
    assert not out[60].isfinite().all()
    rest = [i for i in range(70) if i not in (5, 60)]
    assert out[rest].isfinite().all()


def gradients(forward, tensors, up):
    y = forward()
    return [y.detach(), *torch.autograd.grad(y, tensors, up.to(y.dtype))]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", KINDS)
def test_a_linear_map_and_its_gradients_are_those_of_float64(dtype, bias):
    needs(dtype)
    layer = ProcessorLinear(520, 600, bias=bias)
    x = draw(3, 50, 520).requires_grad_()
    up = draw(3, 50, 600, seed=1)
    mine = [x, *layer.parameters()]
    with torch.autocast("cpu", HALF, enabled=dtype == HALF):
        found = gradients(lambda: layer(x), mine, up)
        assert layer(x).grad_fn.next_functions, "differentiable"
        assert "_LinearBackward" in str(_names(layer(x)))
    exact = [t.detach().to(dtype).double().requires_grad_() for t in (x, layer.weight)]
    exact += [layer.bias.detach().double().requires_grad_()] if bias else []
    wanted = gradients(lambda: F.linear(*exact), exact, up.to(dtype).double())
    # The result and what comes of the input's gradient are rounded to the type; others are sums.
    for one, other, kind in zip(found, wanted, [dtype, *[torch.float32] * 3], strict=False):
        close(one, other, kind)
    assert [t.dtype for t in found[1:]] == [torch.float32] * len(mine)


def _names(y):
    names, waiting = set(), [y.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node.name() not in names:
            names.add(node.name())
            waiting += [each for each, _ in node.next_functions]
    return names


def looked_into(capture: Capture) -> Context:
    positions = Positions.of_self(torch.arange(60).expand(2, -1))
    return Context(positions, capture=capture, address="ffn")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", KINDS)
def test_a_network_is_one_step_and_gives_what_its_parts_give(dtype, activation):
    needs(dtype)
    torch.manual_seed(0)
    network = FeedForward(512, FeedForwardSpec(width=1024, activation=activation, dropout=0.2))
    x = draw(2, 60, 512).requires_grad_()
    up = draw(2, 60, 512, seed=1)
    mine = [x, *network.parameters()]
    network.eval()  # nothing is dropped
    with on_processor(network), torch.autocast("cpu", HALF, enabled=dtype == HALF):
        assert "_ActivatedPairBackward" in _names(network(x))
        found = gradients(lambda: network(x), mine, up)
        capture = Capture(["ffn.inner"])
        assert "_ActivatedPairBackward" not in _names(network(x, looked_into(capture)))
        assert capture.found["ffn.inner"].shape == (2, 60, 1024)
        plain = gradients(lambda: network(x, looked_into(Capture([]))), mine, up)
    assert "_ActivatedPairBackward" not in _names(network(x)), "the definition has no kernels in C"
    exact, input_of_it = copy.deepcopy(network).double(), x.detach().double().requires_grad_()
    truth = gradients(lambda: exact(input_of_it), [input_of_it, *exact.parameters()], up.double())
    for one, other, before in zip(found, truth, plain, strict=True):
        if dtype == torch.float32:
            close(one, other)
        else:  # not further from the truth than its parts
            assert (one - other).norm() <= 1.1 * (before - other).norm()
        if activation == "relu":  # each number near: other activations are computed of rounded sums
            close(one, before.double(), dtype)
    network.train()
    with on_processor(network):
        assert "_ActivatedPairBackward" not in _names(network(x)), (
            "what is dropped is dropped in between"
        )


def test_frozen_parameters_and_inputs_get_no_gradient():
    needs(torch.float32)
    layer = ProcessorLinear(256, 256)
    layer.weight.requires_grad_(False)
    x = draw(80, 256).requires_grad_()
    layer(x).sum().backward()
    assert layer.weight.grad is None
    close(layer.bias.grad, torch.full((256,), 80.0).double())
    close(x.grad, layer.weight.detach().double().sum(0).expand(80, -1))
    network = FeedForward(256, FeedForwardSpec(width=256, activation="relu"))
    network.down.requires_grad_(False)
    with on_processor(network):
        network(x.detach()).sum().backward()
    assert network.down.weight.grad is None
    assert network.up.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("pieces", [600, 601])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", KINDS)
def test_the_loss_by_own_products_is_that_of_float64(dtype, smoothing, pieces):
    needs(dtype)
    losses = ProcessorLosses()
    losses.elements = 2 * pieces * 70
    hidden = (0.1 * draw(200, 512)).requires_grad_()
    weight, bias = draw(pieces, 512, seed=1).requires_grad_(), draw(pieces).requires_grad_()
    targets = torch.arange(200) % pieces
    mine = [hidden, weight, bias]
    with torch.autocast("cpu", HALF, enabled=dtype == HALF):
        loss, *_ = losses.smoothed_cross_entropy(hidden, weight, targets, smoothing, bias)
        with own(False):
            plain, *_ = losses.smoothed_cross_entropy(hidden, weight, targets, smoothing, bias)
    found = [loss.detach(), *torch.autograd.grad(loss, mine)]
    exact = [t.detach().double().requires_grad_() for t in mine]
    truth = F.cross_entropy(
        exact[0] @ exact[1].T + exact[2], targets, label_smoothing=smoothing, reduction="sum"
    )
    wanted = [truth.detach(), *torch.autograd.grad(truth, exact)]
    usual = [plain.detach(), *torch.autograd.grad(plain, mine)]
    for one, other, before in zip(found, wanted, usual, strict=True):
        if dtype == torch.float32:
            close(one, other)
        elif one.dim():  # not further from the truth than PyTorch's products
            assert (one - other).abs().max() <= 1.5 * (before - other).abs().max() + 1e-3
        else:
            assert (one - other).abs() <= 2**-12 * other


def own(used: bool):
    return Precision("fp32", "cpu", own=used).autocast()


def test_products_are_pytorchs_where_ours_do_not_serve():
    needs(torch.float32)
    layer, x = ProcessorLinear(256, 256), draw(100, 256)

    def ours(y):
        return "_LinearBackward" in _names(y)

    assert ours(layer(x))
    with own(False):
        assert not ours(layer(x))
    assert own_products.get()
    assert not ours(layer(x[:10])), "too few rows"
    assert not ours(ProcessorLinear(256, 128)(x)), "too narrow"
    assert not ours(layer.double()(x.double()))
    with torch.no_grad():
        assert copy.deepcopy(layer).float()(x).grad_fn is None
    odd = ProcessorLinear(256, 257)
    close(odd(x).detach(), F.linear(x.double(), odd.weight.double(), odd.bias.double()).detach())


def test_weights_that_are_put_together_are_multiplied_and_learned():
    needs(torch.float32)
    network = FeedForward(256, FeedForwardSpec(width=512, activation="relu"))
    plain = copy.deepcopy(network)
    change = LowRank({"up": (0, 512)}, 256, rank=4, scale=1.0)
    torch.nn.utils.parametrize.register_parametrization(network.up, "weight", change)
    x = draw(90, 256)
    with on_processor(network, plain):
        y = network(x)
        close(y.detach(), plain(x).detach().double())
    close(y.detach(), plain(x).detach().double())
    y.square().sum().backward()
    assert change.up["up"].grad.abs().sum() > 0


@pytest.fixture
def emulated():
    """Registers of eight numbers, as on processors without instructions for bfloat16."""
    found = library.kernels().heedful_select(1)
    yield
    library.kernels.cache_clear()
    assert found == 1


@pytest.mark.usefixtures("emulated")
def test_what_pytorch_would_emulate_is_never_left_to_it():
    assert library.has_gemm("float32", 256)
    assert not library.has_gemm("float32", 255)
    assert library.has_gemm("bfloat16", 16)
    x, weight = draw(70, 48), draw(32, 48, seed=1).requires_grad_()
    with torch.autocast("cpu", HALF):
        learned = linear(x, weight, None)
        with torch.no_grad():
            assert products.product_dtype(x, weight) == HALF
            found = linear(x, weight, None)
            with own(False):
                assert products.product_dtype(x, weight) is None
    assert found.dtype == HALF
    assert torch.equal(found, learned)
    close(found, x.to(HALF).double() @ weight.detach().to(HALF).double().t(), HALF)
    with torch.no_grad():
        assert products.product_dtype(draw(70, 512), draw(512, 512)) is None


class _Multiplied(TorchDispatchMode):
    """Keeps the types that batched products are asked for in."""

    def __init__(self):
        super().__init__()
        self.kinds = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.bmm.default:
            self.kinds += [each.dtype for each in args]
        return func(*args, **kwargs or {})


@pytest.mark.usefixtures("emulated")
def test_attention_by_plain_products_multiplies_bfloat16_numbers_as_float32():
    torch.manual_seed(0)
    parts = [torch.randn(2, 3, 20, 16).to(HALF).requires_grad_() for _ in range(3)]
    up = torch.randn(2, 3, 20, 16).to(HALF)
    positions = Positions.of_self(torch.arange(20).repeat(2, 1))
    with _Multiplied() as multiplied:
        y = attend(*parts, positions, Causal(), kernel="matmul", kernels=PROCESSOR_KERNELS)
        found = [y.detach(), *torch.autograd.grad(y, parts, up)]
    assert len(multiplied.kinds) == 2 * 6, "two products, and two of the gradient of each"
    assert set(multiplied.kinds) == {torch.float32}
    q, k, v = exact = [each.detach().double().requires_grad_() for each in parts]
    hidden = torch.ones(20, 20).triu(1).bool()
    weights = torch.softmax((q @ k.mT / 4).masked_fill(hidden, -torch.inf), -1)
    truth = [weights @ v, *torch.autograd.grad(weights @ v, exact, up.double())]
    for one, other in zip(found, truth, strict=True):
        assert one.dtype == HALF
        assert (one - other).norm() <= 2**-7 * other.norm()


@pytest.mark.usefixtures("emulated")
def test_losses_in_bfloat16_are_those_of_pytorchs_products():
    hidden, weight = draw(200, 64), draw(300, 64, seed=1) * 0.1
    targets, found = torch.arange(200), []
    for used in (True, False):
        mine = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        with own(used), torch.autocast("cpu", HALF):
            states = linear(mine[0], mine[1][:64], None)
            loss, *_ = ProcessorLosses().smoothed_cross_entropy(states, mine[1], targets)
        found.append([loss.detach(), *torch.autograd.grad(loss, mine)])
    assert abs(found[0][0] / found[1][0] - 1) < 2**-11
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        assert (one - other).norm() <= 2**-7 * other.norm()


def test_kernels_that_cannot_are_not_asked(monkeypatch):
    monkeypatch.setattr(products, "has_gemm", lambda kind, width, **_: False)
    x, weight = draw(100, 512), draw(512, 512).requires_grad_()
    assert "_LinearBackward" not in _names(linear(x, weight, None))
