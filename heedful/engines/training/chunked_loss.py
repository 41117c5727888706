"""Cross-entropy fused with the output projection, a chunk of rows at a time.

The logits of a batch are its largest tensor by far (8,192 positions × 10,000 tokens are 328 MB in
float32). Here they exist only a chunk of rows at a time: the forward pass computes each chunk's
loss and, at once, its gradient. Padding never gets logits because only real positions are given.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.device import full_precision, requested_dtype
from heedful.engines.training.products import product_dtype
from heedful.kernels.gemm import PackedB, gemm_transposed
from heedful.nn.losses import LossSums

_TENSORS_HELD = {1: 2, 2: 9}
"""Tensors of the size of a chunk's logits that are held at a time, by the number of passes."""


class ChunkedLosses:
    """The losses of `heedful.nn.losses`, without ever holding all logits.

    The sums equal those of the definition; gradients are computed at the same time.
    """

    takes_padding = False
    """True if a target may be −1, at a position that has nothing to predict."""

    elements = 1 << 27
    """Logits held at a time. Large matmuls keep a GPU busy, and every chunk reads and writes the
    whole gradient of the weight once."""

    def smoothed_cross_entropy(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        label_smoothing: float = 0.0,
        bias: Tensor | None = None,
        softcap: float | None = None,
    ) -> LossSums:
        settings = LossSettings(label_smoothing, 0.0, softcap)
        return self._sums(hidden[None], weight, bias, targets, settings)

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
        settings = LossSettings(label_smoothing, consistency, softcap)
        return self._sums(hidden, weight, bias, targets, settings)

    def own_products(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Products | None:
        """Return matmuls by own kernels, for a weight [V, D] and a bias [V]; None for PyTorch's."""
        return None

    def _sums(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: LossSettings,
    ) -> LossSums:
        dtype = requested_dtype(hidden)
        products = self.own_products(hidden, weight, bias)
        with full_precision(hidden):
            sums = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
                hidden, weight, bias, targets, settings, dtype, products, self.elements
            )
        return LossSums(*sums)


class ProcessorLosses(ChunkedLosses):
    """Chunked losses whose matmuls run on kernels in C, where these are faster than PyTorch."""

    elements = 1 << 23
    """Logits held at a time: 16 MB in bfloat16, which a processor's last-level cache can hold."""

    def own_products(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Products | None:
        own = product_dtype(hidden, weight, bias)
        if own is None:
            return None
        # The gradients are made by hand below, so packing the weight needs no graph.
        with torch.no_grad():
            return _NativeMatmuls(weight, bias, own)


class LossSettings(NamedTuple):
    """Label smoothing ε, weight of the divergence of two passes, and soft cap of the logits."""

    smoothing: float
    consistency: float
    softcap: float | None


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: LossSettings,
        dtype: torch.dtype,
        products: Products | None,
        elements: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        consistency = settings.consistency
        cast = weight.to(dtype), None if bias is None else bias.to(dtype)
        if products is None:
            products = _TorchMatmuls(*cast, weight.dtype)
        output = _Output(*cast, settings.smoothing, settings.softcap)
        # One pass [n, D], or two passes over the same batch with different dropout (R-Drop).
        passes = hidden.to(dtype).unbind(0)
        needs = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden, dtype=dtype) if needs[0] else None
        grad_weight = torch.zeros_like(weight) if needs[1] else None
        grad_bias = torch.zeros_like(bias) if bias is not None and needs[2] else None
        loss, nll, divergence = (
            torch.zeros((), dtype=output.wide, device=hidden.device) for _ in range(3)
        )
        rows = max(1, elements // (_TENSORS_HELD[len(passes)] * weight.shape[0]))
        # Buffers serve all chunks: fresh ones of 8 MB took as long as the softmax written into them
        # (torch 2.13).
        buffers = output.buffers(min(rows, targets.shape[0]), 2 * len(passes))
        for start in range(0, targets.shape[0], rows):
            chunk = slice(start, start + rows)
            logits, probabilities = [], []
            for index, states in enumerate(passes):
                out = buffers[2 * index][: states[chunk].shape[0]]
                logits.append(output.capped(products.logits(states[chunk], out)))
                probabilities.append(output.softmax(logits[-1], buffers[2 * index + 1]))
            for states, x, p in zip(passes, logits, probabilities, strict=True):
                chunk_loss, chunk_nll = output.losses(states[chunk], x, p, targets[chunk])
                loss += chunk_loss
                nll += chunk_nll
            divergence_gradients: list[Tensor] = []
            if len(passes) == 2:
                chunk_divergence, divergence_gradients = _divergence(logits, probabilities)
                divergence += chunk_divergence
            if not any(needs):  # validation needs only the sums
                continue
            for index, (states, p) in enumerate(zip(passes, probabilities, strict=True)):
                gradient = output.gradient(p, targets[chunk])
                if divergence_gradients:
                    gradient.add_(divergence_gradients[index], alpha=consistency)
                gradient = output.uncapped_gradient(gradient, logits[index])
                if grad_hidden is not None:
                    products.for_hidden(gradient, grad_hidden[index, chunk])
                if grad_weight is not None:
                    products.add_for_weight(gradient, states[chunk], grad_weight)
                if grad_bias is not None:
                    grad_bias += gradient.sum(0)
        loss += consistency * divergence
        output.add_uniform_gradient(hidden, grad_hidden, grad_weight, grad_bias)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.hidden_dtype = hidden.dtype
        # Both are only reported: the loss already contains them with their gradients.
        ctx.mark_non_differentiable(nll, divergence)
        return loss, nll, divergence

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # The gradients exist already; the incoming one is a scalar, such as 1 / tokens.
        return *scaled_gradients(ctx, gradients[0]), *(None,) * 5


def scaled_gradients(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
    """Multiply the gradients of the forward pass by the incoming gradient [].

    Returns:
        Gradients of states, weight and bias.
    """
    grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
    if grad_hidden is not None:
        grad_hidden = grad_hidden.to(ctx.hidden_dtype) * scale
    grad_weight = None if grad_weight is None else grad_weight * scale
    grad_bias = None if grad_bias is None else grad_bias * scale
    return grad_hidden, grad_weight, grad_bias


class _TorchMatmuls:
    """The three matmuls of an output projection, chunk by chunk, by PyTorch in one dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, wide: torch.dtype) -> None:
        self.weight = weight
        self.bias = bias
        # `mm` has no accumulating output, so one buffer takes each chunk's share of the gradient.
        # A second one converts it, since sums over chunks stay in the weight's own dtype.
        self.share, self.wide = torch.empty_like(weight), torch.empty_like(weight, dtype=wide)

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        """Map hidden states [r, D] to logits [r, V]."""
        if self.bias is None:
            return torch.mm(hidden, self.weight.T, out=out)
        return torch.addmm(self.bias, hidden, self.weight.T, out=out)

    def for_hidden(self, gradient: Tensor, out: Tensor) -> None:
        """Map the gradient of the logits [r, V] to that of the hidden states [r, D]."""
        torch.mm(gradient, self.weight, out=out)

    def add_for_weight(self, gradient: Tensor, hidden: Tensor, out: Tensor) -> None:
        """Add gradientᵀ @ hidden to the gradient of the weight [V, D]."""
        out += self.wide.copy_(torch.mm(gradient.T, hidden, out=self.share))


class _NativeMatmuls:
    """The matmuls of `_TorchMatmuls` by kernels in C."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        # Packed once for all chunks: the logits need W transposed, the hidden gradient W itself.
        self.for_logits, self.for_gradient = PackedB(weight.t(), dtype), PackedB(weight, dtype)
        self.bias = bias

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        return self.for_logits.multiply(hidden, out, bias=self.bias)

    def for_hidden(self, gradient: Tensor, out: Tensor) -> None:
        self.for_gradient.multiply(gradient, out)

    def add_for_weight(self, gradient: Tensor, hidden: Tensor, out: Tensor) -> None:
        gemm_transposed(gradient, hidden, out, accumulate=True)


Products = _TorchMatmuls | _NativeMatmuls


class _Output:
    """The output projection in the dtype of its matmuls, and the loss of its predictions.

    Softmax keeps that dtype: PyTorch computes it in float32 inside, and `log_softmax` from bfloat16
    logits into float32 takes five times as long on a processor (40 ms beside 7 for 1,000 rows of
    10,000; torch 2.13). Sums over rows are taken from a few elements of each row, in float32.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, smoothing: float, softcap: float | None
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.smoothing = smoothing
        self.softcap = softcap
        self.wide = torch.promote_types(weight.dtype, torch.float32)
        # The mean logit of a row is hidden · mean(W): smoothing needs no second pass over [r, V].
        self.mean_weight = weight.mean(0, dtype=self.wide)
        self.mean_bias = 0.0 if bias is None else bias.mean(dtype=self.wide)

    def buffers(self, rows: int, count: int) -> list[Tensor]:
        """Make uninitialised tensors [rows, V]."""
        return [self.weight.new_empty(rows, self.weight.shape[0]) for _ in range(count)]

    def capped(self, logits: Tensor) -> Tensor:
        """Squash logits [r, V] into (−softcap, softcap), in place."""
        if self.softcap is None:
            return logits
        return logits.div_(self.softcap).tanh_().mul_(self.softcap)

    def softmax(self, logits: Tensor, out: Tensor) -> Tensor:
        """Softmax of logits [r, V], in the first rows of `out`."""
        return torch.softmax(logits, dim=-1, out=out[: logits.shape[0]])

    def losses(
        self, hidden: Tensor, logits: Tensor, probabilities: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Smoothed loss and negative log-likelihood, summed over the rows."""
        # logsumexp from the most likely token, whose probability cannot underflow.
        top = logits.amax(-1).to(self.wide)
        logsumexp = top - probabilities.amax(-1).to(self.wide).log()
        target_logits = logits.gather(1, targets[:, None])[:, 0].to(self.wide)
        nll = (logsumexp - target_logits).sum()
        if not self.smoothing:
            return nll, nll
        if self.softcap is None:
            mean_logit = hidden.to(self.wide) @ self.mean_weight + self.mean_bias
        else:  # tanh is not linear: the mean of capped logits does not follow from mean(W)
            mean_logit = logits.mean(-1, dtype=self.wide)
        uniform = (logsumexp - mean_logit).sum()
        return (1.0 - self.smoothing) * nll + self.smoothing * uniform, nll

    def gradient(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        """Turn probabilities [r, V] into the gradient of the loss, without the ε/V of smoothing."""
        # Indexing instead of scatter_, which copies all of a bfloat16 tensor (torch 2.13).
        at_target = (torch.arange(targets.shape[0], device=targets.device), targets)
        probabilities[at_target] = 0.0
        # p(target) − 1 = −Σ p(others) keeps its precision when p(target) is close to 1.
        probabilities[at_target] = self.smoothing - probabilities.sum(-1)
        return probabilities

    def uncapped_gradient(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Turn the gradient of capped logits into that of uncapped ones; overwrites both."""
        if self.softcap is None:
            return gradient
        if self.smoothing:
            gradient -= self.smoothing / gradient.shape[-1]
        # d tanh(z)/dz = 1 − tanh²(z), and the logits here are softcap · tanh(z) already.
        slope = logits.div_(self.softcap).square_().neg_().add_(1.0)
        return gradient.mul_(slope)

    def add_uniform_gradient(
        self,
        hidden: Tensor,
        grad_hidden: Tensor | None,
        grad_weight: Tensor | None,
        grad_bias: Tensor | None,
    ) -> None:
        """Add the gradient of the uniform share ε/V, which is the same for all logits.

        Under a soft cap it differs between logits, and `uncapped_gradient` has added it.
        """
        if not self.smoothing or self.softcap is not None:
            return
        # A constant ε/V on [n, V] needs no matmul: its products are means and sums of vectors.
        share = self.smoothing / self.weight.shape[0]
        if grad_hidden is not None:
            grad_hidden -= (self.smoothing * self.mean_weight).to(grad_hidden.dtype)
        if grad_weight is not None:
            grad_weight -= share * hidden.sum((0, 1), dtype=self.wide).to(grad_weight.dtype)
        if grad_bias is not None:
            grad_bias -= share * hidden.shape[0] * hidden.shape[1]


def _divergence(logits: list[Tensor], probabilities: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """KL(p‖q) + KL(q‖p), summed over rows, and its gradients with respect to both logits.

    With g the difference of the logits, the divergence is Σ (p − q)·g, and its gradient with
    respect to the logits of p is p·(g − Σ p·g) + p − q. Adding a constant to a row of g changes
    neither, so the logits need no normalisation.
    """
    p, q = probabilities
    gap = logits[0] - logits[1]
    difference = p - q
    by_p, by_q = p * gap, q * gap
    mean_p, mean_q = by_p.sum(-1, keepdim=True), by_q.sum(-1, keepdim=True)
    wide = torch.promote_types(p.dtype, torch.float32)
    divergence = (mean_p.to(wide) - mean_q.to(wide)).sum()
    # In place: each of these tensors has the size of a chunk's logits (see `_TENSORS_HELD`).
    by_p.add_(difference).addcmul_(p, mean_p, value=-1.0)
    by_q.add_(difference).addcmul_(q, mean_q, value=-1.0).neg_()
    return divergence, [by_p, by_q]
