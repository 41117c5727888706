"""Explain plans: which kernel an operation is computed with, and why not with the others.

The plan of attention is explained by `heedful.nn.attention.attend`; here are the other operations.
`Plan.table` prints each of them.
"""

from __future__ import annotations

from torch import Tensor

from heedful.nn.attention.attend import Plan
from heedful.nn.fused_sublayer import Heads, Parameters, fused_plan
from heedful.nn.linear_layers import product_plan
from heedful.nn.mixers.linear_attention import LinearAttention
from heedful.nn.spec import PlainActivation
from heedful.nn.sublayer import ResidualNorm, fusion_refusal


def explain_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Plan:
    """Explain `linear`: x [..., K] times weight [N, K] transposed, plus bias [N]."""
    result = product_plan(x, weight, bias)
    if isinstance(result, str):
        return Plan("torch", "PyTorch's product serves everything", {"native": result})
    return Plan(
        "native",
        f"kernels in C read weights as they are stored, and multiply in {_name(result)}",
        {"torch": "would copy the weight to another type, and pass over the result for the bias"},
    )


def explain_residual_norm(
    x: Tensor, output: Tensor, after: ResidualNorm, *, training: bool, captured: bool = False
) -> Plan:
    """Explain `residual_norm` of the stream x and a part's output, [..., D] each.

    Args:
        x: the stream.
        output: of the part.
        after: dropout, sum and norms.
        training: as in `residual_norm`.
        captured: whether a capture looks into the operation.
    """
    refusal = fusion_refusal(x, output, after, looked_into=captured) if training else "not training"
    if refusal:
        return Plan("torch", "one operation after the other serves everything", {"native": refusal})
    return Plan(
        "native",
        "dropout, sum and norm in one pass over the rows",
        {"torch": "would fetch and store every row once for each of them"},
    )


def explain_sublayer(
    x: Tensor,
    read: Tensor,
    first: Parameters,
    between: PlainActivation | Heads,
    second: Parameters,
    after: ResidualNorm,
) -> Plan:
    """Explain `fused_sublayer`, whose arguments these are."""
    result = fused_plan(x, read, first, between, second, after)
    if isinstance(result, str):
        return Plan("parts", "each operation by its own plan serves everything", {"fused": result})
    return Plan(
        "fused",
        f"one call in C does all of it, with products in {_name(result)}",
        {"parts": "going to and fro between small operations takes longer than they do"},
    )


def explain_linear_attention(attention: LinearAttention, *, stepping: bool) -> Plan:
    """Explain linear attention over a whole sequence, or `stepping` with a state."""
    reasons = {
        "sums": "a step adds a token of each beam to one matrix for each head",
        "chunks": "causal: weights within chunks, sums of the chunks before",
        "products": "every query sees every key: one product of keys and values serves all",
    }
    kernel = "sums" if stepping else "chunks" if attention.causal else "products"
    drawbacks = {
        "sums": "a matrix for each token of a sequence would not fit in memory",
        "chunks": "there is no sequence of tokens" if stepping else "nothing is hidden",
        "products": "would let a token see those after it",
    }
    rejected = {name: reason for name, reason in drawbacks.items() if name != kernel}
    return Plan(kernel, reasons[kernel], rejected)


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
