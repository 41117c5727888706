"""The definition of attention against a plain loop, the plan, and what people look at."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.engines.host_parts import PROCESSOR_KERNELS
from heedful.errors import ConfigError, ModelError
from heedful.nn.attention import attend as attention
from heedful.nn.attention.attend import (
    AttentionRequest,
    KernelSet,
    attend,
    attention_weights,
    explain,
    make_request,
    plan,
)
from heedful.nn.attention.kernels import chunked, sdpa
from heedful.nn.attention.masks import AnyOf, Causal, Everything, Mask, Prefix, Window
from heedful.nn.attention.relative_positions import T5Bias
from heedful.nn.positions import Positions
from tests.reference_parts import ExplicitBias

SETS = {"the definition's": KernelSet(), "of processors": PROCESSOR_KERNELS}
by_every_kernel = pytest.mark.parametrize(
    "how",
    [
        pytest.param({"kernel": name, "kernels": kernels}, id=f"{name} {which}")
        for which, kernels in SETS.items()
        for name in ("reference", "matmul", "sdpa", "chunked", "decode")
    ],
)


def tokens(
    batch: int = 2, queries: int = 4, keys: int = 5, heads: int = 4, kv_heads: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return (
        torch.randn(batch, heads, queries, 3),
        torch.randn(batch, kv_heads, keys, 3),
        torch.randn(batch, kv_heads, keys, 2),
    )


def line(batch: int, queries: int, keys: int) -> Positions:
    return Positions(
        torch.arange(keys - queries, keys)[None].expand(batch, -1),
        torch.arange(keys)[None].expand(batch, -1),
    )


def by_hand(
    qkv: tuple[Tensor, Tensor, Tensor],
    seen: list[list[list[bool]]],
    bias: Tensor,
    scale: float,
    cap: float,
) -> list[Any]:
    """scale · q · kᵀ, cap, bias, mask, softmax, · v, one number at a time."""
    q, k, v = (t.tolist() for t in qkv)
    result = []
    for b, h, i in product(range(len(q)), range(len(q[0])), range(len(q[0][0]))):
        shared = h // (len(q[0]) // len(k[0]))
        total, mixed = 0.0, [0.0] * len(v[0][0][0])
        for j in range(len(k[0][0])):
            if not seen[b][i][j]:
                continue
            score = scale * sum(x * y for x, y in zip(q[b][h][i], k[b][shared][j], strict=True))
            score = cap * math.tanh(score / cap) + float(bias[h, i, j])
            total += math.exp(score)
            mixed = [m + math.exp(score) * x for m, x in zip(mixed, v[b][shared][j], strict=True)]
        result.append([m / total if total else 0.0 for m in mixed])
    return result


def test_the_definition_equals_a_plain_loop() -> None:
    q, k, v = tokens()
    queries = torch.tensor([[1, 2, 3, 4], [-1, 0, 1, 2]])
    keys = torch.tensor([[0, 1, 2, 3, 4], [-1, -1, 0, 1, 2]])
    table = torch.randn(1, 4, 5, 5)
    bias = torch.stack(
        [table[0][:, queries[b].clamp(min=0)][:, :, keys[b].clamp(min=0)] for b in range(2)]
    )
    at = Positions(queries, keys)
    found = attend(
        q,
        k,
        v,
        at,
        Causal(),
        [ExplicitBias(table)],
        scale=0.7,
        softcap=1.5,
        kernel="reference",
    )
    seen = [[[0 <= int(j) <= int(i) for j in keys[b]] for i in queries[b]] for b in range(2)]
    for b in range(2):
        one = (q[b : b + 1], k[b : b + 1], v[b : b + 1])
        expected = torch.tensor(by_hand(one, [seen[b]], bias[b], 0.7, 1.5)).view(4, 4, 2)
        torch.testing.assert_close(found[b], expected, atol=1e-5, rtol=0)
    assert found[1, :, 0].abs().max() == 0


def test_the_scale_is_the_papers_unless_given() -> None:
    q, k, v = tokens()
    at = line(2, 4, 5)
    given = attend(q, k, v, at, scale=1 / math.sqrt(3), kernel="reference")
    assert torch.equal(attend(q, k, v, at, kernel="reference"), given)


@by_every_kernel
@pytest.mark.parametrize("mask", [AnyOf(()), Window(1)])
def test_a_blind_query_yields_zero_with_gradient_zero(how: dict[str, Any], mask: Mask) -> None:
    q, k, v = tokens()
    # With a window of one, the first query of each row finds no key at its own position.
    at = Positions(torch.tensor([[9, 1, 2, 3]] * 2), torch.arange(5).expand(2, -1))
    learned = T5Bias(4)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    found = attend(q, k, v, at, mask, [learned], **how)
    assert found[:, :, 0].abs().max() == 0
    found[:, :, 0].sum().backward()
    for tensor in (q, k, v, learned.weight):
        assert tensor.grad is None or tensor.grad.abs().max() == 0
    assert found.isfinite().all()


@by_every_kernel
def test_no_keys_at_all(how: dict[str, Any]) -> None:
    q, k, v = tokens(keys=0)
    at = Positions(torch.arange(4).expand(2, -1), torch.empty(2, 0, dtype=torch.int64))
    found = attend(q, k, v, at, Causal(), **how)
    assert torch.equal(found, torch.zeros(2, 4, 4, 2))


@by_every_kernel
def test_beams_may_stand_side_by_side_as_queries(how: dict[str, Any]) -> None:
    q, k, v = tokens(batch=2, queries=3, keys=5)
    source = torch.tensor([[0, 1, 2, 3, 4], [-1, -1, 0, 1, 2]])
    steps = torch.tensor([[7, 7, 7], [7, 7, -1]])
    folded = attend(q, k, v, Positions(steps, source), Everything(), **how)
    for beam in range(3):
        at = Positions(steps[:, beam : beam + 1], source)
        alone = attend(q[:, :, beam : beam + 1], k, v, at, Everything(), kernel="reference")
        torch.testing.assert_close(folded[:, :, beam : beam + 1], alone, atol=1e-5, rtol=0)


@by_every_kernel
def test_dropout_is_seeded_keeps_the_mean_and_is_absent_at_zero(how: dict[str, Any]) -> None:
    q, k, v = tokens(batch=1)
    at = line(1, 4, 5)

    def once(seed: int, dropout: float = 0.4) -> Tensor:
        torch.manual_seed(seed)
        return attend(q, k, v, at, Causal(), dropout=dropout, **how)

    assert torch.equal(once(1), once(1))
    assert not torch.equal(once(1), once(2))
    assert torch.equal(once(1, 0.0), once(2, 0.0))
    mean = torch.stack([once(seed) for seed in range(300)]).mean(0)
    torch.testing.assert_close(mean, once(0, 0.0), atol=0.2, rtol=0)


def test_dropout_of_the_backward_pass_is_that_of_the_forward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunked, "QUERY_BLOCK", 3)
    monkeypatch.setattr(chunked, "KEY_BLOCK", 2)
    qkv = tokens(batch=1, heads=2, kv_heads=1)
    q, k, v = (t.double().requires_grad_() for t in qkv)
    bias = T5Bias(2, 4, 9).double()
    at = line(1, 4, 5)

    def run(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
        torch.manual_seed(0)
        return attend(q, k, v, at, Causal(), [bias], dropout=0.5, softcap=2.0, kernel="chunked")

    assert torch.autograd.gradcheck(run, (q, k, v, bias.weight))


@by_every_kernel
def test_autocast_changes_nothing(how: dict[str, Any]) -> None:
    q, k, v = tokens()
    at = line(2, 4, 5)
    expected = attend(q, k, v, at, Causal(), [T5Bias(4)], **how)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attend(q, k, v, at, Causal(), [T5Bias(4)], **how)
        weights = attention_weights(make_request(q, k, v, at, Causal()))
    assert torch.equal(found, expected)
    assert torch.equal(weights, attention_weights(make_request(q, k, v, at, Causal())))


def test_blocks_draw_their_own_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "QUERY_BLOCK", 8)
    monkeypatch.setattr(chunked, "KEY_BLOCK", 8)
    q = torch.zeros(1, 1, 16, 3)
    # With the identity as values, the output is the weights.
    dropped = attend(
        q, q, torch.eye(16)[None, None], line(1, 16, 16), dropout=0.5, kernel="chunked"
    )
    kept = (dropped[0, 0] > 0).view(2, 8, 2, 8).transpose(1, 2).reshape(4, 64)
    assert len({tuple(block.tolist()) for block in kept}) == 4


def test_sdpa_is_given_no_row_that_is_hidden_whole() -> None:
    """PyTorch's kernels differ on such rows by device and version: NaN, a mean or zero."""
    q, k, v = tokens()
    at = Positions(torch.tensor([[-1, 0, 1, 2]] * 2), torch.arange(5).expand(2, -1))
    given = sdpa._mask(make_request(q, k, v, at, Causal()))
    assert given is not None
    assert given.any(-1).all()
    biased = sdpa._mask(make_request(q, k, v, at, Causal(), [T5Bias(4)]))
    assert biased is not None
    assert biased.isfinite().any(-1).all()


def test_chunked_never_holds_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    length, window = 3000, 100
    held: list[int] = []
    scores = chunked._scores

    def watched(*arguments: Any) -> Tensor:
        result = scores(*arguments)
        held.append(result.numel())
        return result

    monkeypatch.setattr(chunked, "_scores", watched)
    monkeypatch.setattr(chunked, "KEY_BLOCK", 128)
    q, k, v = (torch.randn(1, 1, length, 2, requires_grad=True) for _ in range(3))
    at = Positions.of_self(torch.arange(length)[None])
    attend(q, k, v, at, Causal() & Window(window), kernel="chunked").sum().backward()
    assert max(held) <= 128 * 128
    # Forward and backward: each block of queries sees its own block of keys and the one before.
    assert len(held) == 2 * (2 * math.ceil(length / 128) - 1)
    kept = [t for t in at._derived.values() if isinstance(t, Tensor)]
    assert not kept


@pytest.mark.parametrize("part", ["output", "gradients"])
def test_a_union_of_masks_skips_blocks(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Of 8 blocks of queries each sees the prefix, its own block of keys and those beside it."""
    monkeypatch.setattr(chunked, "QUERY_BLOCK", 16)
    monkeypatch.setattr(chunked, "KEY_BLOCK", 16)
    counted, mask = 0, Window(10) | Prefix(3)
    scores = chunked._scores

    def counting(*arguments: Any) -> Tensor:
        nonlocal counted
        counted += 1
        return scores(*arguments)

    q, k, v = (torch.randn(2, 2, 128, 4, requires_grad=True) for _ in range(3))
    at = Positions.of_self(torch.arange(128).expand(2, -1))
    expected = attend(q, k, v, at, mask, kernel="reference")
    monkeypatch.setattr(chunked, "_scores", counting)
    found = attend(q, k, v, at, mask, kernel="chunked")
    seen = {(i, j) for i in range(8) for j in range(8) if abs(i - j) <= 1 or j == 0}
    if part == "output":
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
        assert counted == len(seen)
        return
    counted, up = 0, torch.randn_like(found)
    gradients = torch.autograd.grad(found, (q, k, v), up)
    assert counted == len(seen)
    for one, other in zip(gradients, torch.autograd.grad(expected, (q, k, v), up), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_decode_reads_only_the_slots_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tokens(queries=1, keys=40)
    at = torch.full((2, 40), -1)
    at[:, :9] = torch.arange(9)
    v[:, :, 9:] = torch.nan  # reading an unused slot would show
    found = attend(
        q,
        k,
        v,
        Positions(torch.full((2, 1), 8), at),
        Causal() & Window(3),
        kernel="decode",
        kernels=PROCESSOR_KERNELS,
    )
    expected = attend(
        q,
        k[:, :, 6:9],
        v[:, :, 6:9],
        Positions(torch.full((2, 1), 8), at[:, 6:9]),
        kernel="reference",
    )
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kernels", SETS.values(), ids=SETS)
@pytest.mark.parametrize(
    ("queries", "keys", "mask", "gradient", "options", "expected"),
    [
        (24, 24, Causal(), True, {}, "matmul"),
        (1, 30, Everything(), True, {}, "matmul"),
        (1, 200, Causal(), False, {}, "decode"),
        (300, 300, Causal(), True, {}, "sdpa"),
        (100, 100, Causal(), True, {"dropout": 0.1}, "matmul"),
        (2000, 2000, Causal(), False, {}, "sdpa"),
        (2000, 2000, Causal() & Window(64), False, {}, "chunked"),
        (2000, 2000, Window(64) | Prefix(8), False, {}, "chunked"),
        (2000, 2000, Causal() & (Window(64) | Prefix(8)), True, {}, "chunked"),
        (300, 300, Causal(), False, {"softcap": 30.0}, "matmul"),
        (12_000, 12_000, Causal(), False, {"softcap": 30.0}, "chunked"),
        (12_000, 12_000, Causal(), False, {"biases": [T5Bias(4)]}, "chunked"),
    ],
)
def test_the_plan(
    queries: int,
    keys: int,
    mask: Mask,
    gradient: bool,
    options: dict[str, Any],
    expected: str,
    kernels: KernelSet,
) -> None:
    q, k, v = tokens(queries=queries, keys=keys)
    with torch.set_grad_enabled(gradient):
        request = make_request(
            q.requires_grad_(gradient),
            k,
            v,
            line(2, queries, keys),
            mask,
            **options,
            kernels=kernels,
        )
        found = plan(request, kernels)
        words = explain(request, kernels)
    assert found.kernel == expected
    assert set(found.rejected) == set(kernels.by_name) - {expected}
    assert all(found.rejected.values())
    for name in kernels.by_name:
        assert name in words
    assert found.reason in words


@pytest.mark.parametrize("kernels", SETS.values(), ids=SETS)
def test_the_plan_is_what_is_run(kernels: KernelSet, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tokens()
    expected = attend(q, k, v, line(2, 4, 5), kernel="reference")
    chosen = plan(make_request(q, k, v, line(2, 4, 5), kernels=kernels), kernels).kernel
    called: list[str] = []

    def recorder(name: str) -> Callable[[AttentionRequest], Tensor]:
        def run(_: AttentionRequest) -> Tensor:
            called.append(name)
            return expected

        return run

    for name, kernel in kernels.by_name.items():
        monkeypatch.setattr(kernel, "run", recorder(name))
    attend(q, k, v, line(2, 4, 5), kernels=kernels)
    assert called == [chosen]


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        ("flex", {}, "compiled for CUDA"),
        ("sdpa", {"softcap": 3.0}, "cannot cap scores"),
        ("decode", {"queries": 20}, "at most 16 queries"),
        ("matmull", {}, "Did you mean 'matmul'"),
    ],
)
def test_a_kernel_asked_for_by_name_serves_or_says_why_not(
    kernel: str, options: dict[str, Any], message: str
) -> None:
    queries = options.pop("queries", 4)
    q, k, v = tokens(queries=queries, keys=20)
    with pytest.raises(ModelError, match=message):
        attend(q, k, v, line(2, queries, 20), kernel=kernel, **options)


def test_sdpa_refuses_to_round_a_bias() -> None:
    q, k, v = (t.bfloat16() for t in tokens())
    with pytest.raises(ModelError, match="round biases to bfloat16"):
        attend(q, k, v, line(2, 4, 5), biases=[T5Bias(4)], kernel="sdpa")


def test_weights_for_people_are_those_of_the_definition() -> None:
    q, k, v = tokens()
    at = Positions(torch.tensor([[1, 2, 3, 4], [-1, 0, 1, 2]]), torch.arange(5).expand(2, -1))
    bias = T5Bias(4)
    nn.init.normal_(bias.weight)
    request = make_request(q, k, v, at, Causal(), [bias], softcap=5.0, dropout=0.5)
    weights = attention_weights(request)
    assert weights.dtype == torch.float32
    sums = weights.sum(-1)
    torch.testing.assert_close(sums[0], torch.ones(4, 4))
    assert sums[1, :, 0].abs().max() == 0
    mixed = weights @ v.repeat_interleave(2, dim=1)
    expected = attend(q, k, v, at, Causal(), [bias], softcap=5.0)
    torch.testing.assert_close(mixed, expected, atol=1e-5, rtol=0)
    part = attention_weights(request, heads=[2, 0], rows=[3, 1])
    torch.testing.assert_close(part, weights[:, [2, 0]][:, :, [3, 1]])
    assert attention_weights(request, heads=[]).shape[1] == 0


@pytest.mark.parametrize(
    ("mask", "most", "kernel"),
    [(Everything(), 256, "sdpa"), (Causal(), 256, "chunked"), (Causal(), 2000, "sdpa")],
)
def test_no_mask_of_all_pairs_of_a_long_text(
    mask: Mask, most: int, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_MASK_MB", most)
    tokens = 8192
    positions = torch.arange(tokens)[None].clone()
    positions[:, -5:] = -1  # padding, which full attention hides by one row of keys
    q = torch.zeros(1, 1, tokens, 1).expand(1, 2, tokens, 8)
    request = make_request(q, q, q, Positions.of_self(positions), mask, kernels=PROCESSOR_KERNELS)
    assert plan(request, PROCESSOR_KERNELS).kernel == kernel
    if isinstance(mask, Everything):
        assert sdpa._mask(request).shape == (1, 1, 1, tokens)


def test_a_variable_without_a_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_MASK_MB", "12")
    assert attention._megabytes("HEEDFUL_MASK_MB", default=256) == 12
    monkeypatch.setenv("HEEDFUL_MASK_MB", "1 GB")
    with pytest.raises(ConfigError, match="HEEDFUL_MASK_MB"):
        attention._megabytes("HEEDFUL_MASK_MB", default=256)
