"""Attention: one definition, and a plan that picks the kernel that computes it.

The order is fixed: scale · q · kᵀ, soft cap, sum of biases, mask, softmax in float32, dropout, · v.
A query that sees no key yields 0, with gradient 0. Shapes: B batch, H heads, K key/value heads,
Lq queries, Lk keys, E width of a query or key head, Ev width of a value head.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from heedful.device import full_precision
from heedful.errors import ConfigError, ModelError, suggest
from heedful.nn.attention.kernels.request import (
    MAX_DECODED,
    AttentionRequest,
    Kernel,
    common_keys,
    total_bias,
)
from heedful.nn.attention.masks import Everything, Mask
from heedful.nn.positions import Positions

if TYPE_CHECKING:
    from heedful.nn.attention.relative_positions import Bias
    from heedful.nn.attention.relative_values import RelativeValues

__all__ = [
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


def _megabytes(variable: str, default: int) -> int:
    """Return the number of megabytes that an environment variable holds.

    Raises:
        ConfigError: when it holds no number.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise ConfigError(
            f"{text!r} is no number of MB", where=variable, remedy=f"Leave it out, or {default}"
        )
    return int(text)


# Measured on a processor, with PyTorch 2.13: up to these lengths plain matmuls beat its fused
# kernel, which is slow backward in bfloat16 and falls back to a slow form for dropout. At 30 to 50
# tokens its backward pass took 27 % of a training step (docs/design/log.md).
_SHORT = 64
_SHORT_REDUCED = 256
_LONG = 1024
# 1 GiB of float32 scores for each tensor of them; a pass with gradients keeps more than one.
_SCORES_IN_MEMORY = 2**28
# PyTorch's fused kernel on a processor holds a mask of all pairs twice: as bool, 1 byte a pair, and
# as float32. For 8,192 causal tokens that is 395 MB, where `chunked` takes 30 and the same time
# (with gradients twice the time), so from 7,328 tokens on memory decides.
_MASK_BYTES = 5
_MASK_MB = _megabytes("HEEDFUL_MASK_MB", default=256)


def definition_kernels() -> Mapping[str, Kernel]:
    """Return the definition's kernels by name."""
    # Imported with the first attention: an engine in C that runs whole stacks needs
    # no kernels here.
    from heedful.nn.attention.kernels.table import KERNELS

    return KERNELS


@dataclass(frozen=True)
class KernelSet:
    """The kernels that a plan picks from, and the inputs it may read; engines have their own sets.

    Args:
        table: function that returns the kernels by name, and may import them at its first call;
            kernels with an `advantage` rank first, in their order.
        device: type of the device to plan for; the tensors' own if None.
        readable: permission to read the values of positions for planning: on a host, while no
            graph is traced. Otherwise any mask is taken to hide some keys, which costs time and
            changes no result.
    """

    table: Callable[[], Mapping[str, Kernel]] = definition_kernels
    device: str | None = None
    readable: bool = False

    @property
    def by_name(self) -> Mapping[str, Kernel]:
        """The kernels by name."""
        return self.table()


_DEFINITION = KernelSet()


@dataclass(frozen=True)
class AttentionPlan:
    """The kernel that serves a request, and the reasons for the choice.

    Args:
        kernel: name of the chosen kernel.
        reason: reason for the choice.
        rejected: reasons against every other kernel, by name.
    """

    kernel: str
    reason: str
    rejected: dict[str, str]

    def table(self, request: str) -> str:
        """Format the plan as a table under a description of the request, a line per kernel."""
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
    """Average the values of the keys that each query sees, weighted by the softmax of the scores.

    Args:
        q: [B, H, Lq, E] queries.
        k: [B, K, Lk, E] keys; H is a multiple of K, and consecutive query heads share a key head.
        v: [B, K, Lk, Ev] values.
        positions: positions and segments of queries and keys.
        mask: rule for the keys that a query may see; padding is hidden by the positions.
        biases: position biases that are added to the scores.
        scale: factor on the scores; 1/sqrt(E) if None (Vaswani 2017, section 3.2.1).
        softcap: bound c of the scores, which become c · tanh(score / c) (Gemma 2, 2024).
        dropout: probability of dropping a weight in this call; give 0 outside training.
        kernel: name of the kernel to use; None lets `plan` pick.
        relative_values: trained vectors of distances that are added to the values (Shaw 2018).
        kernels: kernels to pick from.

    Returns:
        [B, H, Lq, Ev] in the dtype of v; 0 for queries that see no key.

    Raises:
        ModelError: when the requested kernel does not exist or cannot serve.
    """
    request = make_request(
        q, k, v, positions, mask, biases, scale, softcap, dropout, relative_values, kernels
    )
    if kernel is None:
        kernel = _pick(request, kernels)[0]
        return kernels.by_name[kernel].run(request)
    # A requested kernel is never replaced silently: a benchmark would measure another one.
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
    """Return the request that `attend` would make of these arguments."""
    batch, heads, num_queries, width = q.shape
    # Grouped heads: query head h attends to key head h // (H / K) (Ainslie 2023).
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
    """Return attention weights for inspection, by the definition and without dropout.

    Args:
        request: request from `make_request`.
        heads: query heads of the result; all H if None.
        rows: array indices of the queries in the result; all Lq if None.

    Returns:
        [B, H', Lq', Lk] float32; rows sum to 1, or are 0 for a query that sees no key.
    """
    # Attention weights are only asked for by inspection, so translating does not import this
    # kernel.
    from heedful.nn.attention.kernels import reference

    _check_is_whole(request)
    if rows is not None:
        # Queries are selected before scores are computed, so that one row of a long
        # sequence is cheap.
        index = list(rows)
        chosen = request.positions.at_queries(index)
        request = replace(request, q=request.q[:, :, index], positions=chosen)
    weights = reference.weights(request)
    return weights if heads is None else weights[:, list(heads)]


def attention_scores(request: AttentionRequest) -> Tensor:
    """Return the scores before the softmax, scaled, capped and with biases, for inspection.

    Args:
        request: request from `make_request`.

    Returns:
        [B, H, Lq, Lk] float32; −∞ where a query does not see a key.
    """
    from heedful.nn.attention.kernels import reference

    _check_is_whole(request)
    visible = request.positions.visible(request.mask)
    return reference.scores(request).masked_fill(~visible, float("-inf"))


def attention_bias(request: AttentionRequest) -> Tensor:
    """Return the sum of the biases of the scores, for inspection.

    Args:
        request: request from `make_request`, with at least one bias.

    Returns:
        [B or 1, H, Lq, Lk] float32, for hidden keys too.
    """
    _check_is_whole(request)
    with full_precision(request.q):
        bias = total_bias(request)
    assert bias is not None
    return bias


def plan(request: AttentionRequest, kernels: KernelSet = _DEFINITION) -> AttentionPlan:
    """Pick the kernel for a request, with the reasons against the others.

    Args:
        request: request from `make_request` with the same kernels.
        kernels: kernels to pick from.
    """
    chosen, reason = _pick(request, kernels)
    rejected = {
        name: _refusal(name, request, kernels) or _drawback(name, request)
        for name in kernels.by_name
        if name != chosen
    }
    return AttentionPlan(chosen, reason, rejected)


def explain(request: AttentionRequest, kernels: KernelSet = _DEFINITION) -> str:
    """Return the plan of a request as a table, a line per kernel."""
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
    """Return the reason why a kernel cannot serve a request; None when it can."""
    # Any other kernel would silently attend to nothing but the keys of this process.
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
    """Return the first kernel of the ranking that can serve, and the reason for its rank."""
    if request.positions.group is not None:
        _named(request, "ring", kernels)
        return "ring", "the sequence is divided among processes, and keys travel round them"
    # An exported graph has only the reference kernel, which supports every request.
    by_name = kernels.by_name
    if len(by_name) == 1:
        return next(iter(by_name)), "the only one"
    for name, reason in _ranking(request, kernels):
        if name in by_name and by_name[name].unsupported(request) is None:
            return name, reason
    raise AssertionError("one kernel at least serves everything")


def _ranking(request: AttentionRequest, kernels: KernelSet) -> list[tuple[str, str]]:
    """Return the kernels, the one expected to be fastest first, with the reason for each rank."""
    num_queries, num_keys = request.q.shape[2], request.k.shape[2]
    ranking = []
    for name, kernel in kernels.by_name.items():
        advantage = getattr(kernel, "advantage", None)
        if advantage is not None and (reason := advantage(request)):
            ranking.append((name, reason))
    # Outside of training only: there, caches have unused slots to skip.
    if not request.wants_gradient and num_queries <= MAX_DECODED < num_keys:
        ranking.append(("decode", "few queries against many keys: only slots in use are read"))
    on_cpu = request.device == "cpu"
    # True for 16-bit inputs, whose scores are float32.
    reduced = request.q.dtype != request.precision
    short = _SHORT_REDUCED if reduced or request.dropout else _SHORT
    if on_cpu and num_queries * num_keys <= short**2:
        ranking.append(("matmul", f"short on a processor: at most {short} × {short} scores"))
    if num_keys >= _LONG and _is_sparse(request):
        reason = "the mask hides most blocks of a long sequence, and they are skipped"
        ranking.append(("chunked", reason) if on_cpu else ("flex", reason))
    # PyTorch's fused kernel takes biases as one tensor over all pairs.
    if request.biases and _num_scores(request) > _SCORES_IN_MEMORY:
        ranking.append(("chunked", "a bias for every pair would not fit in memory"))
    if on_cpu and _makes_mask(request) and num_queries * num_keys * _MASK_BYTES > _MASK_MB << 20:
        ranking.append(("chunked", f"a mask of all pairs would take more than {_MASK_MB} MB"))
    ranking.append(("sdpa", "PyTorch's fused kernel is the fastest at this length"))
    if _num_scores(request) <= _SCORES_IN_MEMORY:
        ranking.append(("matmul", "fused kernels cannot serve, and the scores fit in memory"))
    ranking.append(("chunked", "fused kernels cannot serve, and the scores would not fit"))
    # This kernel comes last and is never refused, so that some kernel can always serve.
    ranking.append(("reference", "the definition serves everything"))
    return ranking


def _drawback(name: str, request: AttentionRequest) -> str:
    """Return the reason why a kernel that could serve was not picked."""
    return {
        "reference": "the definition, made to be read: the slowest",
        # An engine's kernel (`engines/training`); its reason is listed with those of the others.
        "native": "it pays for scores that are made again for the gradient, which is not asked for",
        "matmul": f"would hold all {_num_scores(request):,} scores in memory",
        "sdpa": "slower here: PyTorch's fused kernels are made for long sequences",
        "chunked": "slower here: it pays for memory with work, which long sequences need",
        "decode": "looks for the keys in use, which pays for a cache outside training",
        "flex": "slower here: it pays where a mask hides most of a long sequence",
        "ring": "the whole sequence is in this process",
    }[name]


def _makes_mask(request: AttentionRequest) -> bool:
    """Return whether PyTorch's fused kernel would need a mask of every pair of tokens."""
    return common_keys(request.positions, request.mask) is None


def _num_scores(request: AttentionRequest) -> int:
    batch, heads, num_queries, _ = request.q.shape
    return batch * heads * num_queries * request.k.shape[2]


def _is_sparse(request: AttentionRequest) -> bool:
    """Return whether a mask hides at least three quarters of the keys from every query.

    Bounds answer for masks without gaps. For the others single keys are counted, which is not
    possible while a graph is traced.
    """
    num_keys, mask = request.k.shape[2], request.mask
    # Under a two-sided mask the query in the middle sees most keys, under a causal one the last.
    places = (num_keys // 2, num_keys - 1)
    bounded = max(
        sum(min(last, num_keys - 1) - first + 1 for first, last in mask.bounds(place, place))
        for place in places
    )
    if bounded <= num_keys // 4:
        return True
    return request.readable and _most_seen(mask, num_keys) <= num_keys // 4


# Masks are hashable values, so one count serves all layers and batches of this length.
@functools.lru_cache(maxsize=64)
def _most_seen(mask: Mask, num_keys: int) -> int:
    """Return the larger number of keys seen from the middle and from the end of a sequence."""
    keys = torch.arange(num_keys)
    places = (num_keys // 2, num_keys - 1)
    return max(int(mask.reaches(place, place, keys).sum()) for place in places)
