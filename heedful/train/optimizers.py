"""Adam and AdamW: parameter groups, state by parameter name, and the learning rate schedule."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import RunError
from heedful.train.run_settings import OptimizerSettings, ScheduleSettings

# Methods that `torch.optim.Optimizer` decorates with `torch._disable_dynamo`.
_WRAPPED = ("add_param_group", "zero_grad")
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Build Adam (Kingma 2015) or AdamW (Loshchilov 2019), fused where PyTorch offers it.

    AdamW decays matrices only, not norms, biases, embeddings and parameters listed in a module's
    `undecayed` (decay rates of a state space). Adam's weight decay is the classic L2 term on
    every parameter.
    """
    decayed, free = _split(model)
    decay_free = 0.0 if settings.kind == "adamw" else settings.weight_decay
    groups: list[dict[str, Any]] = [
        {"params": together, "weight_decay": decay}
        for parameters, decay in ((decayed, settings.weight_decay), (free, decay_free))
        for together in _of_one_mesh(parameters)
    ]
    kind: Any = _plain(torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam)
    device = next(model.parameters()).device.type
    made: torch.optim.Optimizer = kind(
        groups,
        # Set before every step from the schedule; a forgotten rate shows as weights that never
        # move.
        lr=0.0,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=device in ("cpu", "cuda", "mps"),
    )
    return made


def _plain(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass of an optimizer without PyTorch's compiler guards around its methods.

    The guards load the compiler at the first call, nearly a second of a run's start, even where
    nothing is compiled, as our steps never are.
    """
    base = torch.optim.Optimizer
    methods = {name: inspect.unwrap(getattr(base, name)) for name in _WRAPPED}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), methods)


def _of_one_mesh(parameters: list[nn.Parameter]) -> Iterable[list[nn.Parameter]]:
    """Group parameters that one fused kernel can update: DTensors of one mesh."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for each in parameters:
        groups.setdefault(getattr(each, "device_mesh", None), []).append(each)
    return groups.values()


class DeviceStep:
    """An optimizer step that the device makes or skips by itself; the host never waits.

    PyTorch's fused optimizers read two values on the device, made for loss scalers: a divisor of
    the gradients (`grad_scale`), and a flag that skips the step (`found_inf`). The learning rate is
    on the device too, where recorded graphs find its present value.

    Args:
        optimizer: fused optimizer, from `build_optimizer`.
        device: device of the parameters.

    Attributes:
        skipped: [] float32, 1 from the first update with a non-finite loss or gradient. Until it is
            reset to 0, no update changes a weight, so that updates launched before that result was
            read can be launched again.
        tokens: [] float32, target tokens of the present update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.optimizer: Any = optimizer
        self.skipped = torch.zeros((), device=device)
        self.tokens = torch.ones((), device=device)
        # CUDA's kernels read the rate in float32; on CPUs float64 equals a Python float.
        kind = torch.float32 if device.type == "cuda" else torch.float64
        rate = torch.zeros((), device=device, dtype=kind)
        # One tensor for all groups, so that filling it changes the rate of recorded graphs as well.
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def begin(self, tokens: int, rate: float) -> Tensor:
        """Set target tokens and learning rate of the next update; return `tokens` on the device."""
        set_learning_rate(self.optimizer, rate)
        return self.tokens.fill_(tokens)

    def take(self, losses: Tensor, norm: Tensor, clip_norm: float) -> None:
        """Make the step, unless this update or an earlier one was not finite.

        Args:
            losses: [parts], losses summed over each part's target tokens; or [] of all parts.
            norm: [], L2 norm of the gradient.
            clip_norm: largest norm; 0 for no limit.
        """
        loss = (losses.double().sum() / self.tokens).float()
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        # Sticky: updates in flight were launched as if this step had been made; all are skipped.
        self.skipped.copy_(torch.maximum(self.skipped, (~finite).float()))
        self.optimizer.found_inf = self.skipped
        if clip_norm:
            # The divisor is at least 1: gradients below the limit stay as they are.
            self.optimizer.grad_scale = (norm / clip_norm).clamp(min=1.0).float()
        try:
            self.optimizer.step()
        # Left behind, they would divide the gradients of the next ordinary step.
        finally:
            self.optimizer.found_inf = self.optimizer.grad_scale = None


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next update."""
    for group in optimizer.param_groups:
        # Filled in place: a new tensor would not be the one that recorded graphs read.
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@contextmanager
def divided(
    optimizer: torch.optim.Optimizer, gradients: list[Tensor], by: Tensor | None
) -> Iterator[None]:
    """A context in which the optimizer's step divides all gradients by a number.

    On CPUs a fused optimizer divides gradients while it reads them (`grad_scale`); another
    pass over them would be a twentieth of an update.

    Args:
        optimizer: optimizer from `build_optimizer`.
        gradients: gradients of its parameters.
        by: [], a positive divisor; None for no division.
    """
    if by is None:
        yield
        return
    if by.device.type != "cpu" or not all(g.get("fused") for g in optimizer.param_groups):
        # On accelerators a loss scaler may use `grad_scale` already.
        torch._foreach_div_(gradients, by)
        yield
        return
    optimizer.grad_scale = by  # type: ignore[attr-defined]
    try:
        yield
    finally:
        optimizer.grad_scale = None  # type: ignore[attr-defined]


def export_moments(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimiser's tensors as KIND/PARAMETER; parameters never updated have none."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            # Stored by name, not by index as in PyTorch's state dict: groups may be formed
            # differently next time.
            tensors[f"{key}/{name}"] = value.detach()
    return tensors


def import_moments(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]
) -> None:
    """Load copies of the tensors that `export_moments` returned.

    Raises:
        RunError: when the tensors do not fit this model.
    """
    optimizer.state.clear()
    used = 0
    for name, parameter in model.named_parameters():
        results = {key: tensors[f"{key}/{name}"] for key in _MOMENTS if f"{key}/{name}" in tensors}
        if not results:
            continue
        if len(results) != len(_MOMENTS) or results["exp_avg"].shape != parameter.shape:
            raise RunError(f"The optimiser state of {name!r} does not fit the model")
        used += len(results)
        # Fused kernels expect the step count on the parameter's device.
        optimizer.state[parameter] = {
            key: value.to(parameter.device, copy=True) for key, value in results.items()
        }
    if used != len(tensors):
        raise RunError("The optimiser state holds parameters that the model does not have")


def _split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Split the trainable parameters into those that AdamW decays and the others."""
    embeddings = {
        id(parameter)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) or "embedding" in name.lower()
        # Compared by identity: a tied output projection is also an embedding, so it is not decayed.
        for parameter in module.parameters()
    }
    undecayed = {
        id(getattr(module, name))
        for module in model.modules()
        for name in getattr(module, "undecayed", ())
    }
    left_alone = embeddings | undecayed
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            # Vectors are norms and biases, which decay would pull away from 1 or from what they
            # balance.
            plain = parameter.ndim < 2 or id(parameter) in left_alone
            (free if plain else decayed).append(parameter)
    return decayed, free


def peak_learning_rate(settings: ScheduleSettings, width: int) -> float:
    """Return the learning rate at the end of the warm-up; that of the paper if unset.

    Args:
        settings: schedule settings.
        width: D of the model.
    """
    if settings.peak_learning_rate is not None:
        return settings.peak_learning_rate
    return 1.0 / math.sqrt(width * max(1, settings.warmup_steps))


def learning_rate(settings: ScheduleSettings, step: int, *, width: int, max_steps: int) -> float:
    """Return the learning rate of a step: a linear warm-up, then the schedule's own curve.

    With `inverse_sqrt` and no peak set this is the formula of Vaswani 2017, section 5.3.

    Args:
        settings: schedule settings.
        step: number of the update, from 1.
        width: D of the model, for the paper's peak.
        max_steps: last step of the `cosine` and `linear` schedules.
    """
    assert step >= 1
    peak = peak_learning_rate(settings, width)
    warmup = settings.warmup_steps
    if step < warmup:
        return peak * step / warmup
    if settings.kind == "constant":
        return peak
    if settings.kind == "inverse_sqrt":
        return peak * math.sqrt(max(1, warmup) / step)
    final = settings.final_learning_rate
    # Beyond `max_steps`, as in a run that was prolonged, the rate stays at its final value.
    share = min(1.0, (step - warmup) / max(1, max_steps - warmup))
    if settings.kind == "linear":
        return peak + (final - peak) * share
    # Half a cosine from peak to final rate (Loshchilov 2017, without restarts).
    return final + (peak - final) * 0.5 * (1.0 + math.cos(math.pi * share))
