"""Masks with gaps: what they show, what they let kernels skip, and the kernels that do."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heedful.engines.host_parts import PROCESSOR_KERNELS
from heedful.errors import ConfigError
from heedful.models.causal_lm import CausalLM
from heedful.models.encoder_spec import EncoderSpec
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.attention.attend import KernelSet, attend, make_request, plan
from heedful.nn.attention.kernels import chunked
from heedful.nn.attention.kernels.matmul import Matmul
from heedful.nn.attention.masks import (
    FAR,
    Causal,
    Mask,
    Prefix,
    Window,
    Without,
)
from heedful.nn.attention.sparse_masks import (
    Dilated,
    Fixed,
    GlobalTokens,
    RandomBlocks,
    Strided,
    Window2d,
)
from heedful.nn.positions import Positions, picture

ENDS = st.integers(1, 6)
gapped = st.one_of(
    st.builds(Dilated, ENDS, ENDS),
    st.builds(Strided, st.integers(1, 9)),
    st.builds(lambda stride, part: Fixed(stride, min(part, stride)), ENDS, ENDS),
    st.builds(GlobalTokens, ENDS),
    st.builds(
        lambda size, length, seed, count: RandomBlocks(
            size, min(count, -(-length // size)), length, seed
        ),
        *(st.integers(1, 7), st.integers(1, 40), st.integers(0, 9), st.integers(1, 3)),
    ),
    st.builds(
        lambda columns, height, width, first: Window2d(columns, height, min(width, columns), first),
        *(ENDS, ENDS, ENDS, st.integers(0, 2)),
    ),
)
simple = st.one_of(st.just(Causal()), st.builds(Window, ENDS), st.builds(Prefix, st.integers(0, 6)))
masks = st.recursive(
    st.one_of(gapped, simple),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(Without, inner, inner),
    ),
    max_leaves=4,
)


def rows(mask: Mask, length: int) -> list[str]:
    return picture(mask, Positions.of_self(torch.arange(length)[None])).splitlines()


def pairs(rule: Any, length: int) -> list[str]:
    """A picture from the rule of a paper, pair by pair."""
    return ["".join("■" if rule(i, j) else "·" for j in range(length)) for i in range(length)]


def test_patterns_are_those_of_the_papers() -> None:
    # Child 2019, section 4.3: {max(0, i − l), …, i} and {j: (i − j) mod l = 0}.
    causal = Causal() & Strided(3)
    assert rows(causal, 11) == pairs(
        lambda i, j: j <= i and (j >= max(0, i - 3) or (i - j) % 3 == 0), 11
    )
    # {j: ⌊j/l⌋ = ⌊i/l⌋} and {j: j mod l ∈ {l − c, …, l − 1}}.
    assert rows(Causal() & Fixed(4, 2), 11) == pairs(
        lambda i, j: j <= i and (j // 4 == i // 4 or j % 4 in (2, 3)), 11
    )
    assert rows(Dilated(3, 2), 9) == pairs(lambda i, j: abs(i - j) in (0, 2, 4), 9)
    assert rows(Window(2) | GlobalTokens(1), 7) == pairs(
        lambda i, j: abs(i - j) < 2 or i == 0 or j == 0, 7
    )
    image = pairs(lambda i, j: abs(i // 4 - j // 4) < 2 and abs(i % 4 - j % 4) < 2, 12)
    assert rows(Window2d(4, 2, 2), 12) == image
    with_class = rows(Window2d(4, 2, 2, 1), 13)
    assert with_class[0] == "■" * 13
    assert [row[0] for row in with_class] == ["■"] * 13
    assert [row[1:] for row in with_class[1:]] == image


def test_random_blocks_are_drawn_once_by_the_seed() -> None:
    mask = RandomBlocks(size=2, count=2, length=12, seed=5)
    shown = rows(mask, 12)
    blocks = [{row[j : j + 2] for j in range(0, 12, 2)} for row in shown]
    assert all(each <= {"■■", "··"} for each in blocks)
    assert [row.count("■") for row in shown] == [4] * 12
    assert shown[::2] == shown[1::2]
    assert len(set(shown)) > 2
    assert rows(mask, 6) == [row[:6] for row in shown[:6]]  # a shorter text sees the same
    assert rows(RandomBlocks(2, 2, 12, 5), 12) == shown
    assert rows(RandomBlocks(2, 2, 12, 6), 12) != shown


@given(masks, st.integers(0, 30), st.integers(0, 9))
@settings(max_examples=120)
def test_what_kernels_may_skip_is_really_hidden(mask: Mask, lo: int, more: int) -> None:
    hi, keys = lo + more, torch.arange(60)
    seen = Positions(torch.arange(lo, hi + 1)[None], keys[None]).visible(mask)[0, 0]
    reached = mask.reaches(lo, hi, keys)
    assert not (seen.any(0) & ~reached).any()
    bounds = mask.bounds(lo, hi)
    within = torch.tensor([any(a <= key <= b for a, b in bounds) for key in keys.tolist()])
    assert not (seen.any(0) & ~within).any()
    assert all(0 <= a <= b <= FAR for a, b in bounds)
    for query in range(lo, hi + 1):  # exact for a single one
        assert torch.equal(mask.reaches(query, query, keys), seen[query - lo])


@given(gapped, st.integers(0, 30), st.integers(0, 9))
@settings(max_examples=80)
def test_a_pattern_reaches_no_more_than_its_queries_see(mask: Mask, lo: int, more: int) -> None:
    keys = torch.arange(60)
    seen = Positions(torch.arange(lo, lo + more + 1)[None], keys[None]).visible(mask)[0, 0]
    reached = mask.reaches(lo, lo + more, keys)
    if not isinstance(mask, Window2d):  # a rectangle around several rows
        assert torch.equal(seen.any(0), reached)


@given(masks)
@settings(max_examples=80)
def test_passes_show_each_pair_once_and_keep_their_period(mask: Mask) -> None:
    line = Positions.of_self(torch.arange(24)[None])
    shown = [line.visible(each.mask)[0, 0].int() for each in mask.passes()]
    assert torch.equal(sum(shown), line.visible(mask)[0, 0].int())
    distance = line.distance()[0]
    for each, visible in zip(mask.passes(), shown, strict=True):
        assert not (visible.bool() & (distance % each.period != 0)).any()


@given(
    mask=masks,
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=2),
    left=st.booleans(),
    blocks=st.sampled_from([(4, 8), (16, 16), (3, 5)]),
)
@settings(max_examples=20, deadline=None)
def test_kernels_equal_the_definition(
    mask: Mask, lengths: list[int], left: bool, blocks: tuple[int, int]
) -> None:
    size = max(lengths) + 1
    at = torch.full((len(lengths), size), -1)
    for row, length in enumerate(lengths):
        at[row, slice(size - length, None) if left else slice(0, length)] = torch.arange(length)
    torch.manual_seed(0)
    q = torch.randn(len(lengths), 4, size, 4, dtype=torch.float64, requires_grad=True)
    k, v = (
        torch.randn(len(lengths), 2, size, 4, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    up = torch.randn_like(q)
    results = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chunked, "QUERY_BLOCK", blocks[0])
        patched.setattr(chunked, "KEY_BLOCK", blocks[1])
        patched.setattr(chunked, "_SKIPPED", 4)
        patched.setattr(chunked, "_SMALLEST_CLASS", 2)
        for kernels in (KernelSet(), PROCESSOR_KERNELS):
            for kernel in ("reference", "chunked", "sdpa", "matmul"):
                how = {"kernel": kernel, "kernels": kernels}
                found = attend(q, k, v, Positions.of_self(at), mask, **how)
                results.append((found, *torch.autograd.grad(found, (q, k, v), up)))
    for result in results[1:]:
        for one, other in zip(result, results[0], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def computed(mask: Mask, length: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Scores that the blocks of a pass hold, forward."""
    held: list[int] = []
    scores = chunked._scores

    def counting(*arguments: Any) -> Tensor:
        result = scores(*arguments)
        held.append(result.numel())
        return result

    with monkeypatch.context() as patched:
        patched.setattr(chunked, "_scores", counting)
        q = torch.randn(1, 1, length, 2)
        attend(q, q, q, Positions.of_self(torch.arange(length)[None]), mask, kernel="chunked")
    return sum(held)


@pytest.mark.parametrize(
    ("mask", "most"),
    [
        (Window(64), 0.24),
        (Causal() & Strided(32), 0.22),
        (Strided(32), 0.27),
        (Causal() & Fixed(32, 2), 0.17),
        (Dilated(32, 8), 0.13),
        (Window(64) | GlobalTokens(2), 0.40),
        (Window(32) | GlobalTokens(2) | RandomBlocks(32, 1, 1024, 3), 0.51),
        (Window2d(32, 3, 3), 0.30),
    ],
    ids=str,
)
def test_cost_falls(mask: Mask, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    share = computed(mask, 1024, monkeypatch) / 1024**2
    assert share < most
    # Four times the text: sixteen times the pairs, and far less than that of work.
    assert computed(mask, 4096, monkeypatch) / 4096**2 < 0.6 * share


def test_rows_at_other_places_of_the_period_are_still_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunked, "_SMALLEST_CLASS", 2)
    at = torch.stack([torch.arange(24), torch.arange(24) - 5]).clamp(min=-1)
    q = torch.randn(2, 1, 24, 4)
    args = (q, q, q, Positions.of_self(at), Causal() & Strided(4))
    found, expected = (attend(*args, kernel=kernel) for kernel in ("chunked", "reference"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_plan_skips_what_a_pattern_hides() -> None:
    """Where it may look, in a graph only what bounds say is known to be hidden."""

    def planned(mask: Mask, kernels: KernelSet) -> str:
        return plan(make_request(q, q, q, at, mask, kernels=kernels), kernels).kernel

    q = torch.randn(1, 1, 4096, 4)
    at = Positions.of_self(torch.arange(4096)[None])
    for mask in (Causal() & Strided(64), Causal() & Fixed(64, 2), Window(99) | GlobalTokens(1)):
        assert planned(mask, PROCESSOR_KERNELS) == "chunked"
    assert planned(Causal() & Strided(2), PROCESSOR_KERNELS) == "sdpa"
    assert planned(Causal() & Strided(64), KernelSet()) == "sdpa"
    assert planned(Window(99) | GlobalTokens(1), KernelSet()) == "chunked"


def test_a_step_gathers_the_keys_that_a_pattern_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    run = Matmul.run
    monkeypatch.setattr(Matmul, "run", lambda s, r: read.append(r.k.shape[2]) or run(s, r))
    q, k = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 200, 4)
    at = Positions(torch.tensor([[199]]), torch.arange(200)[None])
    mask = Causal() & Fixed(20, 1)
    found = attend(q, k, k, at, mask, kernel="decode", kernels=PROCESSOR_KERNELS)
    assert read == [20 + 9]
    expected = attend(q, k, k, at, mask, kernel="reference")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


CAUSAL_MASKS = {
    "strided": {"kind": "strided", "stride": 3},
    "fixed": {"kind": "fixed", "stride": 4, "summary": 1},
    "dilated": {"kind": "dilated", "size": 3, "dilation": 2},
    "bigbird": {
        "kind": "any_of",
        "parts": [
            {"kind": "window", "size": 2},
            {"kind": "global", "count": 2},
            {"kind": "random", "size": 2, "count": 2, "length": 40, "seed": 1},
        ],
    },
    "image": {"kind": "window_2d", "columns": 4, "height": 2, "width": 2},
}


def language_model(mask: dict[str, Any]) -> CausalLM:
    causal = {"kind": "all_of", "parts": [{"kind": "causal"}, mask]}
    attention = {"kind": "attention", "num_heads": 2, "mask": causal}
    sublayers = [
        {"name": "self_attention", "part": attention},
        {"name": "feedforward", "part": {"kind": "feedforward", "width": 24}},
    ]
    decoder = {"num_layers": 2, "pattern": [{"sublayers": sublayers}]}
    torch.manual_seed(0)
    values = {"width": 16, "vocabulary": 30, "decoder": decoder}
    return CausalLM(CausalLMSpec.parse(values)).eval()


@pytest.mark.parametrize("name", CAUSAL_MASKS)
@pytest.mark.parametrize("kind", ["growing", "static", "auto"])
@torch.no_grad()
def test_steps_equal_the_whole_beside_other_texts_and_padding(name: str, kind: Any) -> None:
    model = language_model(CAUSAL_MASKS[name])
    cached = model.with_cache(kind, 40)
    lengths, size = (21, 4, 13), 21
    ids, at = torch.randint(30, (3, size)), torch.full((3, size), -1)
    for row, length in enumerate(lengths):
        at[row, size - length :] = torch.arange(length)
    state = cached.start(ids, at)
    tokens = torch.randint(30, (6, 3, 1))
    for step, token in enumerate(tokens):
        logits, state = cached.step(state, token)
        for row, length in enumerate(lengths):
            text = [*ids[row, size - length :].tolist(), *tokens[: step + 1, row, 0].tolist()]
            whole = model(torch.tensor([text]), torch.arange(len(text))[None])
            expected = model.logits(whole)[0, -1]
            torch.testing.assert_close(logits[row, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_dilated_window_needs_no_more_than_a_ring() -> None:
    assert language_model(CAUSAL_MASKS["dilated"]).window == 5
    assert language_model(CAUSAL_MASKS["strided"]).window is None


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ({"kind": "random", "size": 4, "count": 1, "length": 64}, "seed"),
        ({"kind": "random", "size": 4, "count": 9, "length": 32, "seed": 0}, "make 8 blocks"),
        ({"kind": "fixed", "stride": 4, "summary": 5}, "exceeds the block"),
        ({"kind": "window_2d", "columns": 4, "height": 2, "width": 5}, "wider than a row"),
        ({"kind": "window", "size": 65}, "65 positions.*at most 64"),
        ({"kind": "dilated", "size": 23, "dilation": 3}, "67 positions.*at most 64"),
        ({"kind": "any_of", "parts": [{"kind": "strided", "stride": 70}]}, "70 positions"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(mask: dict[str, Any], reason: str) -> None:
    attention = {"kind": "attention", "num_heads": 2, "mask": mask}
    stack = {
        "num_layers": 1,
        "pattern": [{"sublayers": [{"name": "self_attention", "part": attention}]}],
    }
    learned = {"positions": {"kind": "learned", "max_length": 64}}
    values = {"width": 16, "vocabulary": 30, "embedding": learned, "encoder": stack}
    with pytest.raises(ConfigError, match=reason):
        EncoderSpec.parse(values)


def test_masks_say_what_they_show() -> None:
    words = (Causal() & (Dilated(3, 2) | RandomBlocks(64, 3, 4096, 7))).describe()
    assert "every 2nd key up to 4 positions away" in words
    assert "seed 7" in words
    spec = RandomBlocks(size=2, count=1, length=8, seed=0)
    assert spec == RandomBlocks(2, 1, 8, 0)
    assert math.prod(len(mask.describe()) for mask in (Strided(12), Fixed(9, 2), Window2d(4, 2, 2)))
    assert "12th" in Strided(12).describe()
