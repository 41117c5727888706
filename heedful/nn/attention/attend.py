"""Attention: one definition, and a plan that picks the kernel to compute it with.

The order is fixed: scale · q · kᵀ, soft cap, sum of biases, mask, softmax in float32, dropout, · v.
A query that sees no key yields 0, with gradient 0. Shapes: B batch, H heads, K key/value heads,
Lq queries, Lk keys, E width of a query or key head, Ev width of a value head.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from heedful.device import full_precision
from heedful.errors import ModelError, suggest
from heedful.nn.attention.kernels import KERNELS, decode, reference
from heedful.nn.attention.kernels.request import (
    AttentionRequest,
    Kernel,
    total_bias,
)
from heedful.nn.attention.masks import Everything, Mask
from heedful.nn.attention.relative_positions import Bias
from heedful.nn.attention.relative_values import RelativeValues
from heedful.nn.positions import Positions

__all__ = [
    "KERNELS",
    "AttentionPlan",
    "AttentionRequest",
    "KernelSet",
    "attend",
    "attention_bias",
    "attention_scores",
    "attention_weights",
    "explain",
    "make_request",
    "plan",
]

# Measured on a processor, with PyTorch 2.13: up to these lengths plain products beat its fused
# kernel, which is slow backward in bfloat16 and falls back to a slow form for dropout.
_SHORT = 64
_SHORT_REDUCED = 256
_LONG = 1024
_SCORES_IN_MEMORY = 2**28


@dataclass(frozen=True)
class KernelSet:
    """The kernels that a plan picks from, and what it may know: engines bring sets of their own.

    Args:
        by_name: the kernels; those that say an advantage are asked first, in their order.
        device: type of the device to plan for; the tensors' own if None.
        readable: whether values of positions may be read to plan with: on a host, while no graph
            is made. Without, a mask counts as hiding something, which costs time and changes
            nothing.
    """

    by_name: Mapping[str, Kernel] = field(default_factory=lambda: KERNELS)
    device: str | None = None
    readable: bool = False


_DEFINITION = KernelSet()


@dataclass(frozen=True)
class AttentionPlan:
    """The kernel that serves a request, and the reasons.

    Args:
        kernel: its name.
        reason: why it was picked.
        rejected: for every other kernel, why it was not.
    """

    kernel: str
    reason: str
    rejected: dict[str, str]

    def table(self, request: str) -> str:
        """Return the plan of a described request for people, a line per kernel."""
        lines = [
            request,
            f"-> {self.kernel:<10} {self.reason}",
            *(f"   {name:<10} {reason}" for name, reason in self.rejected.items()),
        ]
        return "\n".join(lines)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Positions,
    mask: Mask = Everything(),  # noqa: B008 (a frozen value)
    biases: Sequence[Bias] = (),
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    kernel: str | None = None,
    relative_values: RelativeValues | None = None,
    kernels: KernelSet = _DEFINITION,
) -> Tensor:
    """Mix the values of the keys that each query sees, by how well query and key agree.

    Args:
        q: [B, H, Lq, E] queries.
        k: [B, K, Lk, E] keys; H is a multiple of K, and consecutive query heads share a key head.
        v: [B, K, Lk, Ev] values.
        positions: where queries and keys stand.
        mask: who may see whom; padding is hidden by the positions.
        biases: added to the scores.
        scale: factor on the scores; 1/sqrt(E) if None (Vaswani 2017).
        softcap: if given, scores become softcap · tanh(score / softcap) (Gemma 2, 2024).
        dropout: probability of dropping a weight in this call; give 0 outside training.
        kernel: the kernel to use, by name; None lets `plan` pick.
        relative_values: adds learned vectors of distances to the values (Shaw 2018).
        kernels: the kernels to pick from.

    Returns:
        [B, H, Lq, Ev] in the type of v; 0 for queries that see nothing.

    Raises:
        ModelError: when the kernel asked for does not exist or cannot serve.
    """
    request = make_request(
        q, k, v, positions, mask, biases, scale, softcap, dropout, relative_values, kernels
    )
    if kernel is None:
        kernel = _pick(request, kernels)[0]
        return kernels.by_name[kernel].run(request)
    return _named(request, kernel, kernels).run(request)


def make_request(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Positions,
    mask: Mask = Everything(),  # noqa: B008 (a frozen value)
    biases: Sequence[Bias] = (),
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    relative_values: RelativeValues | None = None,
    kernels: KernelSet = _DEFINITION,
) -> AttentionRequest:
    """The attention that `attend` would compute with these arguments, as a value."""
    batch, heads, num_queries, width = q.shape
    assert heads % k.shape[1] == 0, f"{heads} heads, {k.shape[1]} key heads"
    assert k.shape[0] == batch, (q.shape, k.shape)
    assert k.shape[3] == width, (q.shape, k.shape)
    assert v.shape[:3] == k.shape[:3], (k.shape, v.shape)
    assert positions.query.shape == (batch, num_queries), (q.shape, positions.query.shape)
    assert positions.key.shape == (batch, k.shape[2]), (k.shape, positions.key.shape)
    scale = width**-0.5 if scale is None else scale
    return AttentionRequest(
        *(q, k, v, positions, mask, tuple(biases), scale, softcap, dropout, relative_values),
        device=kernels.device or q.device.type,
        readable=kernels.readable,
    )


def attention_weights(
    request: AttentionRequest,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
) -> Tensor:
    """Attention weights for people to look at, by the definition and without dropout.

    Args:
        request: the attention, from `make_request`.
        heads: which query heads; all H if None.
        rows: array indices of the queries; all Lq if None.

    Returns:
        [B, H', Lq', Lk] float32; rows sum to 1, or are 0 for a query that sees nothing.
    """
    _check_is_whole(request)
    if rows is not None:
        index = list(rows)
        chosen = request.positions.at_queries(index)
        request = replace(request, q=request.q[:, :, index], positions=chosen)
    weights = reference.weights(request)
    return weights if heads is None else weights[:, list(heads)]


def attention_scores(request: AttentionRequest) -> Tensor:
    """Return the scores before softmax: scaled, capped, with biases; for people to look at.

    Args:
        request: the attention, from `make_request`.

    Returns:
        [B, H, Lq, Lk] float32; −∞ where a query does not see a key.
    """
    _check_is_whole(request)
    visible = request.positions.visible(request.mask)
    return reference.scores(request).masked_fill(~visible, float("-inf"))


def attention_bias(request: AttentionRequest) -> Tensor:
    """Return the sum of biases that scores get; for people to look at.

    Args:
        request: the attention, from `make_request`, with a bias at least.

    Returns:
        [B or 1, H, Lq, Lk] float32, for hidden keys too.
    """
    _check_is_whole(request)
    with full_precision(request.q):
        bias = total_bias(request)
    assert bias is not None
    return bias


def plan(request: AttentionRequest, kernels: KernelSet = _DEFINITION) -> AttentionPlan:
    """Pick the kernel for a request of `attend`, with the reasons against the others.

    Args:
        request: the attention, from `make_request` with the same kernels.
        kernels: the kernels to pick from.
    """
    chosen, reason = _pick(request, kernels)
    rejected = {
        name: _refusal(name, request, kernels) or _drawback(name, request)
        for name in kernels.by_name
        if name != chosen
    }
    return AttentionPlan(chosen, reason, rejected)


def explain(request: AttentionRequest, kernels: KernelSet = _DEFINITION) -> str:
    """The plan of a request as a table for people, a line per kernel."""
    result = plan(request, kernels)
    batch, heads, num_queries, width = request.q.shape
    kv_heads, num_keys = request.k.shape[1:3]
    return result.table(
        f"{num_queries} queries over {num_keys} keys, batch {batch}, {heads} heads "
        f"({kv_heads} of keys) of width {width}, {str(request.q.dtype).removeprefix('torch.')} "
        f"on {request.device}; a query sees {request.mask.describe()}"
    )


def _named(request: AttentionRequest, name: str, kernels: KernelSet) -> Kernel:
    if name not in kernels.by_name:
        raise ModelError(f"No kernel is called {name!r}", remedy=suggest(name, kernels.by_name))
    reason = _refusal(name, request, kernels)
    if reason is not None:
        raise ModelError(
            f"Kernel {name!r} cannot serve this attention: {reason}",
            remedy="Leave the choice to the plan, or ask for another kernel",
        )
    return kernels.by_name[name]


def _refusal(name: str, request: AttentionRequest, kernels: KernelSet) -> str | None:
    """Return why a kernel cannot serve a request; None when it can."""
    if request.positions.group is not None and name != "ring":
        return "sees only the keys of this process"
    return kernels.by_name[name].unsupported(request)


def _check_is_whole(request: AttentionRequest) -> None:
    if request.positions.group is not None:
        raise ModelError(
            "Attention weights are not in one place where sequences are divided among processes",
            remedy="Look into the model outside of context parallelism",
        )


def _pick(request: AttentionRequest, kernels: KernelSet) -> tuple[str, str]:
    """The first kernel of the ranking that can serve, and why it ranks so."""
    if request.positions.group is not None:
        _named(request, "ring", kernels)
        return "ring", "the sequence is divided among processes, and keys travel round them"
    if len(kernels.by_name) == 1:
        return next(iter(kernels.by_name)), "the only one"
    for name, reason in _ranking(request, kernels):
        if name in kernels.by_name and kernels.by_name[name].unsupported(request) is None:
            return name, reason
    raise AssertionError("one kernel at least serves everything")


def _ranking(request: AttentionRequest, kernels: KernelSet) -> list[tuple[str, str]]:
    """Kernels from the one that should be best, each with the reason for its place."""
    num_queries, num_keys = request.q.shape[2], request.k.shape[2]
    ranking = []
    for name, kernel in kernels.by_name.items():
        advantage = getattr(kernel, "advantage", None)
        if advantage is not None and (reason := advantage(request)):
            ranking.append((name, reason))
    if not request.wants_gradient and num_queries <= decode.MAX_QUERIES < num_keys:
        ranking.append(("decode", "few queries against many keys: only slots in use are read"))
    on_cpu = request.device == "cpu"
    reduced = request.q.dtype != request.precision
    short = _SHORT_REDUCED if reduced or request.dropout else _SHORT
    if on_cpu and num_queries * num_keys <= short**2:
        ranking.append(("matmul", f"short on a processor: at most {short} × {short} scores"))
    if num_keys >= _LONG and _is_sparse(request):
        reason = "the mask hides most blocks of a long sequence, and they are skipped"
        ranking.append(("chunked", reason) if on_cpu else ("flex", reason))
    if request.biases and _num_scores(request) > _SCORES_IN_MEMORY:
        ranking.append(("chunked", "a bias for every pair would not fit in memory"))
    ranking.append(("sdpa", "PyTorch's fused kernel is the fastest at this length"))
    if _num_scores(request) <= _SCORES_IN_MEMORY:
        ranking.append(("matmul", "fused kernels cannot serve, and the scores fit in memory"))
    ranking.append(("chunked", "fused kernels cannot serve, and the scores would not fit"))
    ranking.append(("reference", "the definition serves everything"))
    return ranking


def _drawback(name: str, request: AttentionRequest) -> str:
    """Return the reason why a kernel that could serve was not picked."""
    return {
        "reference": "the definition, made to be read: the slowest",
        "native": "it pays for scores that are made again for the gradient, which is not asked for",
        "matmul": f"would hold all {_num_scores(request):,} scores in memory",
        "sdpa": "slower here: PyTorch's fused kernels are made for long sequences",
        "chunked": "slower here: it pays for memory with work, which long sequences need",
        "decode": "looks for the keys in use, which pays for a cache outside training",
        "flex": "slower here: it pays where a mask hides most of a long sequence",
        "ring": "the whole sequence is in this process",
    }[name]


def _num_scores(request: AttentionRequest) -> int:
    batch, heads, num_queries, _ = request.q.shape
    return batch * heads * num_queries * request.k.shape[2]


def _is_sparse(request: AttentionRequest) -> bool:
    """Return whether a mask hides three quarters of the keys, or more, wherever a query stands.

    Rules without gaps say so by their bounds; of the others single keys are asked, which a graph
    in the making cannot wait for.
    """
    num_keys, mask = request.k.shape[2], request.mask
    places = (num_keys // 2, num_keys - 1)
    bounded = max(
        sum(min(last, num_keys - 1) - first + 1 for first, last in mask.bounds(place, place))
        for place in places
    )
    if bounded <= num_keys // 4:
        return True
    return request.readable and _most_seen(mask, num_keys) <= num_keys // 4


@functools.lru_cache(maxsize=64)
def _most_seen(mask: Mask, num_keys: int) -> int:
    """Return the number of keys that a query in the middle or at the end of a text sees."""
    keys = torch.arange(num_keys)
    places = (num_keys // 2, num_keys - 1)
    return max(int(mask.reaches(place, place, keys).sum()) for place in places)
