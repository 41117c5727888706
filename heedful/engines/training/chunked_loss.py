"""Cross-entropy fused with the output projection, a chunk of rows at a time.

The logits of a batch are its largest tensor by far (8,192 positions × 10,000 pieces are 328 MB in
float32). Here they exist only a chunk of rows at a time: the forward pass computes each chunk's
loss and, at once, its gradient. Padding never gets logits because only real positions are given.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from heedful.device import full_precision, requested_dtype
from heedful.engines.training.products import product_dtype
from heedful.kernels.gemm import PackedB, gemm_transposed
from heedful.nn.losses import LossSums

_TENSORS_HELD = {1: 2, 2: 9}
"""Tensors of a chunk's logits' size that one pass and two passes hold at a time."""


class ChunkedLosses:
    """The losses of `heedful.nn.losses`, without ever holding all logits.

    Their sums are those of the definition; gradients are computed with them.
    """

    takes_padding = False
    """Whether a target may be −1, where nothing is to be predicted."""

    elements = 1 << 27
    """Logits held at a time: large products keep a GPU busy, and after each chunk all of the
    weight's gradient is added to."""

    def smoothed_cross_entropy(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        label_smoothing: float = 0.0,
        bias: Tensor | None = None,
        softcap: float | None = None,
    ) -> LossSums:
        """See `heedful.nn.losses.smoothed_cross_entropy`."""
        strengths = _Strengths(label_smoothing, 0.0, softcap)
        return self._sums(hidden[None], weight, bias, targets, strengths)

    def consistent_cross_entropy(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        label_smoothing: float,
        consistency: float,
        bias: Tensor | None = None,
        softcap: float | None = None,
    ) -> LossSums:
        """See `heedful.nn.losses.consistent_cross_entropy`."""
        strengths = _Strengths(label_smoothing, consistency, softcap)
        return self._sums(hidden, weight, bias, targets, strengths)

    def own_products(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Products | None:
        """Return products of the engine's own; None for PyTorch's.

        Args:
            hidden: [2 or 1, n, D] states.
            weight: [V, D].
            bias: [V] or None.
        """
        return None

    def _sums(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        strengths: _Strengths,
    ) -> LossSums:
        dtype = requested_dtype(hidden)
        products = self.own_products(hidden, weight, bias)
        with full_precision(hidden):
            sums = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
                hidden, weight, bias, targets, strengths, dtype, products, self.elements
            )
        return LossSums(*sums)


class ProcessorLosses(ChunkedLosses):
    """The same with products by kernels in C, where these are faster."""

    elements = 1 << 23
    """Logits held at a time: 16 MB in bfloat16, which a processor's last-level cache can hold."""

    def own_products(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Products | None:
        """See `ChunkedLosses.own_products`."""
        own = product_dtype(hidden, weight, bias)
        if own is None:
            return None
        with torch.no_grad():
            return _OwnProducts(weight, bias, own)


class _Strengths(NamedTuple):
    smoothing: float
    consistency: float
    softcap: float | None


class Products(Protocol):
    """The three products of an output projection, chunk by chunk."""

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        """[r, D] to [r, V]."""

    def for_hidden(self, gradient: Tensor, out: Tensor) -> None:
        """Of the logits [r, V] to that of the hidden states [r, D]."""

    def add_for_weight(self, gradient: Tensor, hidden: Tensor, out: Tensor) -> None:
        """Add to the weight's [V, D] what comes of [r, V] and [r, D]."""


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        strengths: _Strengths,
        dtype: torch.dtype,
        products: Products | None,
        elements: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        consistency = strengths.consistency
        cast = weight.to(dtype), None if bias is None else bias.to(dtype)
        if products is None:
            products = _Products(*cast, weight.dtype)
        output = _Output(*cast, strengths.smoothing, strengths.softcap)
        passes = hidden.to(dtype).unbind(0)
        needs = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden, dtype=dtype) if needs[0] else None
        grad_weight = torch.zeros_like(weight) if needs[1] else None
        grad_bias = torch.zeros_like(bias) if bias is not None and needs[2] else None
        loss, nll, divergence = (
            torch.zeros((), dtype=output.wide, device=hidden.device) for _ in range(3)
        )
        rows = max(1, elements // (_TENSORS_HELD[len(passes)] * weight.shape[0]))
        # Held over all chunks: fresh memory of this size costs more than what is computed in it.
        buffers = output.buffers(min(rows, targets.shape[0]), 2 * len(passes))
        for start in range(0, targets.shape[0], rows):
            part = slice(start, start + rows)
            logits, probabilities = [], []
            for number, one in enumerate(passes):
                out = buffers[2 * number][: one[part].shape[0]]
                logits.append(output.capped(products.logits(one[part], out)))
                probabilities.append(output.softmax(logits[-1], buffers[2 * number + 1]))
            for one, x, p in zip(passes, logits, probabilities, strict=True):
                part_loss, part_nll = output.losses(one[part], x, p, targets[part])
                loss += part_loss
                nll += part_nll
            apart: list[Tensor] = []
            if len(passes) == 2:
                part_divergence, apart = _divergence(logits, probabilities)
                divergence += part_divergence
            if not any(needs):
                continue
            for number, (one, p) in enumerate(zip(passes, probabilities, strict=True)):
                gradient = output.gradient(p, targets[part])
                if apart:
                    gradient.add_(apart[number], alpha=consistency)
                gradient = output.uncapped_gradient(gradient, logits[number])
                if grad_hidden is not None:
                    products.for_hidden(gradient, grad_hidden[number, part])
                if grad_weight is not None:
                    products.add_for_weight(gradient, one[part], grad_weight)
                if grad_bias is not None:
                    grad_bias += gradient.sum(0)
        loss += consistency * divergence
        output.spread(hidden, grad_hidden, grad_weight, grad_bias)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.hidden_dtype = hidden.dtype
        ctx.mark_non_differentiable(nll, divergence)
        return loss, nll, divergence

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        if grad_hidden is not None:
            grad_hidden = grad_hidden.to(ctx.hidden_dtype) * scale
        grad_weight = None if grad_weight is None else grad_weight * scale
        grad_bias = None if grad_bias is None else grad_bias * scale
        return grad_hidden, grad_weight, grad_bias, *(None,) * 5


class _Products:
    """The same by PyTorch, in one dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, wide: torch.dtype) -> None:
        self.weight = weight
        self.bias = bias
        self.product, self.wide = torch.empty_like(weight), torch.empty_like(weight, dtype=wide)

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        """[r, D] to [r, V]."""
        if self.bias is None:
            return torch.mm(hidden, self.weight.T, out=out)
        return torch.addmm(self.bias, hidden, self.weight.T, out=out)

    def for_hidden(self, gradient: Tensor, out: Tensor) -> None:
        """Of the logits [r, V] to that of the hidden states [r, D]."""
        torch.mm(gradient, self.weight, out=out)

    def add_for_weight(self, gradient: Tensor, hidden: Tensor, out: Tensor) -> None:
        """Add to the weight's [V, D] what comes of [r, V] and [r, D]."""
        out += self.wide.copy_(torch.mm(gradient.T, hidden, out=self.product))


class _OwnProducts:
    """The same by kernels in C."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.down, self.up = PackedB(weight.t(), dtype), PackedB(weight, dtype)
        self.bias = bias

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        """[r, D] to [r, V]."""
        return self.down.multiply(hidden, out, bias=self.bias)

    def for_hidden(self, gradient: Tensor, out: Tensor) -> None:
        """Of the logits [r, V] to that of the hidden states [r, D]."""
        self.up.multiply(gradient, out)

    def add_for_weight(self, gradient: Tensor, hidden: Tensor, out: Tensor) -> None:
        """Add to the weight's [V, D] what comes of [r, V] and [r, D]."""
        gemm_transposed(gradient, hidden, out, accumulate=True)


class _Output:
    """The output projection in the dtype of its products, and the loss of what it predicts.

    Softmax keeps that dtype: PyTorch computes it in float32 inside, and conversion inside softmax
    takes five times as long on a processor. What is summed is taken from few elements of each row.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, smoothing: float, softcap: float | None
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.smoothing = smoothing
        self.softcap = softcap
        self.wide = torch.promote_types(weight.dtype, torch.float32)
        self.mean_weight = weight.mean(0, dtype=self.wide)
        self.mean_bias = 0.0 if bias is None else bias.mean(dtype=self.wide)

    def buffers(self, rows: int, count: int) -> list[Tensor]:
        """Uninitialised [rows, V] tensors."""
        return [self.weight.new_empty(rows, self.weight.shape[0]) for _ in range(count)]

    def capped(self, logits: Tensor) -> Tensor:
        """Squash logits [r, V] into (−softcap, softcap), in place."""
        if self.softcap is None:
            return logits
        return logits.div_(self.softcap).tanh_().mul_(self.softcap)

    def softmax(self, logits: Tensor, out: Tensor) -> Tensor:
        """[r, V] to [r, V], in the first rows of `out`."""
        return torch.softmax(logits, dim=-1, out=out[: logits.shape[0]])

    def losses(
        self, hidden: Tensor, logits: Tensor, probabilities: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Smoothed loss and negative log-likelihood, summed over the rows."""
        # log Σ exp by the most likely piece, whose probability cannot underflow.
        top = logits.amax(-1).to(self.wide)
        log_total = top - probabilities.amax(-1).to(self.wide).log()
        right = logits.gather(1, targets[:, None])[:, 0].to(self.wide)
        nll = (log_total - right).sum()
        if not self.smoothing:
            return nll, nll
        if self.softcap is None:
            mean_logit = hidden.to(self.wide) @ self.mean_weight + self.mean_bias
        else:
            mean_logit = logits.mean(-1, dtype=self.wide)
        uniform = (log_total - mean_logit).sum()
        return (1.0 - self.smoothing) * nll + self.smoothing * uniform, nll

    def gradient(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        """Of the loss by the logits, in place of the probabilities, without `spread`'s part."""
        # Indexing instead of scatter_, which copies all of a bfloat16 tensor (torch 2.13).
        right = (torch.arange(targets.shape[0], device=targets.device), targets)
        probabilities[right] = 0.0
        # p(right) − 1 = −Σ p(wrong) keeps its precision when p(right) is nearly 1.
        probabilities[right] = self.smoothing - probabilities.sum(-1)
        return probabilities

    def uncapped_gradient(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Turn a gradient by capped logits into that by the products; overwrites both."""
        if self.softcap is None:
            return gradient
        if self.smoothing:
            gradient -= self.smoothing / gradient.shape[-1]
        slope = logits.div_(self.softcap).square_().neg_().add_(1.0)
        return gradient.mul_(slope)

    def spread(
        self,
        hidden: Tensor,
        grad_hidden: Tensor | None,
        grad_weight: Tensor | None,
        grad_bias: Tensor | None,
    ) -> None:
        """Add the gradient of the share ε/V of every piece, which is the same for all logits.

        Under a cap it is not, and `uncapped_gradient` has added it.
        """
        if not self.smoothing or self.softcap is not None:
            return
        share = self.smoothing / self.weight.shape[0]
        if grad_hidden is not None:
            grad_hidden -= (self.smoothing * self.mean_weight).to(grad_hidden.dtype)
        if grad_weight is not None:
            grad_weight -= share * hidden.sum((0, 1), dtype=self.wide).to(grad_weight.dtype)
        if grad_bias is not None:
            grad_bias -= share * hidden.shape[0] * hidden.shape[1]


def _divergence(logits: list[Tensor], probabilities: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """KL(p‖q) + KL(q‖p), summed over rows, and its gradients by the logits of p and of q.

    With g the difference of the logits it is Σ (p − q)·g, and its gradient by those of p is
    p·(g − Σ p·g) + p − q: adding a constant to a row of g changes neither.
    """
    p, q = probabilities
    gap = logits[0] - logits[1]
    difference = p - q
    by_p, by_q = p * gap, q * gap
    mean_p, mean_q = by_p.sum(-1, keepdim=True), by_q.sum(-1, keepdim=True)
    wide = torch.promote_types(p.dtype, torch.float32)
    total = (mean_p.to(wide) - mean_q.to(wide)).sum()
    by_p.add_(difference).addcmul_(p, mean_p, value=-1.0)
    by_q.add_(difference).addcmul_(q, mean_q, value=-1.0).neg_()
    return total, [by_p, by_q]
