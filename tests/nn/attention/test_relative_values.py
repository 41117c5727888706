"""Relative values beside Shaw's formula; the skew beside the gather; kernels with both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.engines.class_exchange import Exchange
from heedful.engines.host_parts import HOST_KINDS, PROCESSOR_KERNELS
from heedful.engines.host_rare_parts import HostRelativeKeys
from heedful.errors import ConfigError, ModelError
from heedful.models.causal_lm import CausalLM
from heedful.models.model_spec import CausalLMSpec
from heedful.nn.attention.attend import KernelSet, attend
from heedful.nn.attention.kernels import chunked
from heedful.nn.attention.masks import Causal
from heedful.nn.attention.relative_positions import RelativeKeys, skew
from heedful.nn.attention.relative_values import RelativeValues
from heedful.nn.positions import Positions
from heedful.nn.spec import AttentionSpec


def inputs(batch: int = 2, length: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q = torch.randn(batch, 4, length, 6, dtype=torch.float64, requires_grad=True)
    k, v = (
        torch.randn(batch, 2, length, 6, dtype=torch.float64, requires_grad=True) for _ in range(2)
    )
    return q, k, v


def shaw(q: Tensor, k: Tensor, v: Tensor, at: Tensor, keys: Any, values: Any) -> Tensor:
    """Equations 3 and 4 of Shaw 2018 with clipping, causal, a pair at a time."""
    outputs = torch.zeros_like(q)
    for b in range(len(q)):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = [j for j in range(k.shape[2]) if 0 <= at[b, j] <= at[b, i]]
                if at[b, i] < 0 or not seen:
                    continue
                far = [int((at[b, j] - at[b, i]).clamp(-2, 2)) + 2 for j in seen]
                scores = torch.stack(
                    [
                        q[b, h, i] @ (k[b, h // 2, j] + keys[d]) / 6**0.5
                        for j, d in zip(seen, far, strict=True)
                    ]
                )
                weights = torch.softmax(scores, 0)
                outputs[b, h, i] = sum(
                    w * (v[b, h // 2, j] + values[d])
                    for w, j, d in zip(weights, seen, far, strict=True)
                )
    return outputs


def relative_keys(width: int, farthest: int, on_host: bool) -> RelativeKeys:
    """The definition's, or those of an engine that reads positions."""
    bias = RelativeKeys(width, farthest)
    if on_host:
        Exchange(bias, HOST_KINDS).make()
        assert type(bias) is HostRelativeKeys
    return bias


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("kernel", ["reference", "matmul", "chunked", "decode", None])
def test_relative_keys_and_values_are_shaws(kernel: str | None, on_host: bool) -> None:
    q, k, v = inputs()
    at = torch.stack([torch.arange(7), torch.arange(7) - 2]).clamp(min=-1)
    kernels = PROCESSOR_KERNELS if on_host else KernelSet()
    keys, values = relative_keys(6, 2, on_host).double(), RelativeValues(6, 2).double()
    arguments = (q, k, v, Positions.of_self(at), Causal(), [keys])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chunked, "QUERY_BLOCK", 3)
        patched.setattr(chunked, "KEY_BLOCK", 2)
        found = attend(*arguments, relative_values=values, kernel=kernel, kernels=kernels)
        up = torch.randn_like(found)
        learned = (q, k, v, keys.weight, values.weight)
        gradients = torch.autograd.grad(found, learned, up)
    expected = shaw(q, k, v, at, keys.weight, values.weight)
    torch.testing.assert_close(found, expected)
    for one, other in zip(gradients, torch.autograd.grad(expected, learned, up), strict=True):
        torch.testing.assert_close(one, other)


def test_dropout_reaches_relative_values_the_same_both_ways(monkeypatch: Any) -> None:
    monkeypatch.setattr(chunked, "QUERY_BLOCK", 2)
    monkeypatch.setattr(chunked, "KEY_BLOCK", 2)
    values = RelativeValues(6, 2).double()
    at = Positions.of_self(torch.arange(3)[None])

    def run(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
        torch.manual_seed(0)
        return attend(q, k, v, at, Causal(), dropout=0.5, kernel="chunked", relative_values=values)

    q, k, v = (each[:1, :2, :3].detach().requires_grad_() for each in inputs())
    assert torch.autograd.gradcheck(run, (q, k, v, values.weight))


@pytest.mark.parametrize("kernel", ["sdpa", "native"])
def test_kernels_that_cannot_say_so(kernel: str) -> None:
    q, k, v = (each.detach().float() for each in inputs())
    at = Positions.of_self(torch.arange(7).expand(2, -1))
    with pytest.raises(ModelError, match=r"relative values|compiled"):
        attend(
            q,
            k,
            v,
            at,
            relative_values=RelativeValues(6, 2),
            kernel=kernel,
            kernels=PROCESSOR_KERNELS,
        )


@pytest.mark.parametrize("on_host", [False, True])
@given(
    queries=st.integers(1, 9),
    keys=st.integers(1, 9),
    first=st.integers(0, 5),
    at=st.integers(0, 5),
    farthest=st.integers(1, 20),
)
@settings(max_examples=30, deadline=None)
def test_the_skew_is_the_gather(
    on_host: bool, queries: int, keys: int, first: int, at: int, farthest: int
) -> None:
    torch.manual_seed(0)
    bias = relative_keys(4, farthest, on_host).double()
    q = torch.randn(2, 3, queries, 4, dtype=torch.float64, requires_grad=True)
    query, key = (
        torch.arange(begin, begin + count).expand(2, -1).clone()
        for begin, count in ((at, queries), (first, keys))
    )
    found = bias(q, q, Positions(query, key))
    distance = (key[:, None, :] - query[:, :, None]).clamp(-farthest, farthest) + farthest
    vectors = bias.weight[distance]  # a vector for every pair
    expected = torch.einsum("bhie,bije->bhij", q, vectors)
    torch.testing.assert_close(found, expected)
    up = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, (q, bias.weight), up),
        torch.autograd.grad(expected, (q, bias.weight), up),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    # What counts is seen on a host, and elsewhere known of whole rows alone.
    assert (bias.diagonals(Positions(query, key)) is not None) == on_host
    shuffled = Positions(query, key.flip(1))  # not one by one: gathered
    assert keys == 1 or bias.diagonals(shuffled) is None
    torch.testing.assert_close(bias(q, q, shuffled), expected.flip(-1))


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("farthest", [2, 20])
def test_whole_rows_are_skewed_without_looking(farthest: int, on_host: bool) -> None:
    torch.manual_seed(0)
    bias, q = relative_keys(4, farthest, on_host).double(), torch.randn(2, 3, 7, 4).double()
    counted = Positions.counting(2, 7, q.device)
    assert bias.diagonals(counted).tolist() == list(range(-6, 7))
    distance = torch.arange(7)[None] - torch.arange(7)[:, None]
    vectors = bias.weight[distance.clamp(-farthest, farthest) + farthest]
    expected = torch.einsum("bhie,ije->bhij", q, vectors)
    torch.testing.assert_close(bias(q, q, counted), expected)


def test_the_skew_copies_nothing() -> None:
    products = torch.arange(3 * 6).view(3, 6)
    shifted = skew(products)
    assert shifted.tolist() == [[2, 3, 4, 5], [7, 8, 9, 10], [12, 13, 14, 15]]
    assert shifted.data_ptr() == products[0, 2:].data_ptr()


class Largest(TorchDispatchMode):
    """Numbers of all tensors that operations make, views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made._base is None and not func.is_view:
            self.numbers += made.numel()
        return made


@pytest.mark.parametrize("on_host", [False, True])
def test_memory_is_linear_in_the_width_of_a_head(on_host: bool) -> None:
    """Of L · L vectors there is no trace: doubling the head's width adds L · E and no more."""
    length, made = 64, {}
    for width in (16, 32):
        bias = relative_keys(width, length, on_host)
        q, at = torch.randn(1, 1, length, width), Positions.of_self(torch.arange(length)[None])
        bias(q, q, at)  # positions are derived once
        with torch.no_grad(), Largest() as counted:
            bias(q, q, at)
        made[width] = counted.numbers
    assert made[32] - made[16] <= 2 * (2 * length) * 16
    assert made[32] < length**2 * 16


def language_model(**own: Any) -> CausalLM:
    torch.manual_seed(0)
    mask = {"kind": "all_of", "parts": [{"kind": "causal"}, own.pop("mask", {"kind": "causal"})]}
    attention = {"kind": "attention", "num_heads": 2, "mask": mask} | own
    sublayers = [
        {"name": "self_attention", "part": attention},
        {"name": "feedforward", "part": {"kind": "feedforward", "width": 24}},
    ]
    stack = {"num_layers": 2, "pattern": [{"sublayers": sublayers}]}
    return CausalLM(CausalLMSpec.parse({"width": 16, "vocabulary": 30, "decoder": stack})).eval()


RELATIVE = {
    "relative_values": 3,
    "position_bias": {"kind": "relative_keys", "max_distance": 3},
}
LONGFORMER = {
    "global_tokens": 2,
    "mask": {
        "kind": "any_of",
        "parts": [{"kind": "window", "size": 3}, {"kind": "global", "count": 2}],
    },
}


@pytest.mark.parametrize("own", [RELATIVE, LONGFORMER], ids=["relative", "longformer"])
@torch.no_grad()
def test_steps_equal_the_whole_beside_other_texts_and_beams_follow(own: dict[str, Any]) -> None:
    model = language_model(**own)
    lengths, size = (9, 1, 4), 9
    ids, at = torch.randint(30, (3, size)), torch.full((3, size), -1)
    for row, length in enumerate(lengths):
        at[row, size - length :] = torch.arange(length)
    state = model.start(ids, at)
    tokens = torch.randint(30, (3, 3, 2))
    state = model.reorder(state, torch.tensor([[0, 0], [1, 1], [2, 2]]))
    for token in tokens:
        logits, state = model.step(state, token)
    for row, length in enumerate(lengths):
        for beam in range(2):
            text = [*ids[row, size - length :].tolist(), *tokens[:, row, beam].tolist()]
            whole = model(torch.tensor([text]), torch.arange(len(text))[None])
            expected = model.logits(whole)[0, -1]
            torch.testing.assert_close(logits[row, beam], expected, rtol=1e-4, atol=1e-5)


def test_settings_that_make_no_sense_are_refused() -> None:
    for own in ({"relative_values": 3}, {"global_tokens": 1}):
        with pytest.raises(ConfigError, match="attention over the input"):
            AttentionSpec.parse({"num_heads": 2, "over": "memory"} | own)
    with pytest.raises(ConfigError, match="cannot be pruned"):
        AttentionSpec.parse({"num_heads": 2, "global_tokens": 1, "kept_heads": [0]})
