"""Adam and AdamW with their parameter groups and state by parameter name; the learning rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from heedful.errors import RunError

if TYPE_CHECKING:
    from heedful.train.run_settings import OptimizerSettings, ScheduleSettings

_WRAPPED = ("add_param_group", "zero_grad")
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Adam (Kingma 2015) or AdamW (Loshchilov 2019), fused where PyTorch has it.

    AdamW decays matrices only: norms, biases, embeddings and what a module names in `undecayed`
    (the decay rates of a state space) are left alone. Adam's weight decay is the classic L2 term on
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
        lr=0.0,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=device in ("cpu", "cuda", "mps"),
    )
    return made


def _plain(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """An optimizer without what keeps a compiler from looking into its methods.

    That loads the compiler at the first call, nearly a second of a training's start, also where
    nothing is compiled; and no step of ours is.
    """
    base = torch.optim.Optimizer
    methods = {name: inspect.unwrap(getattr(base, name)) for name in _WRAPPED}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), methods)


def _of_one_mesh(parameters: list[nn.Parameter]) -> Iterable[list[nn.Parameter]]:
    """Parameters that one fused operation can change: all, unless they lie on different meshes."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for each in parameters:
        groups.setdefault(getattr(each, "device_mesh", None), []).append(each)
    return groups.values()


class DeviceStep:
    """An optimizer's step that the device makes or leaves out by itself, so that nobody waits.

    PyTorch's fused optimizers read two numbers on the device, as loss scalers give them: what
    gradients are divided by while they are read (`grad_scale`), and whether to change nothing
    (`found_inf`). The learning rate is there too, where recorded graphs find the present one.

    Args:
        optimizer: a fused one, from `build_optimizer`.
        device: of the parameters.

    Attributes:
        skipped: [] float32, 1 from the first update on whose loss or gradient was not finite. Until
            it is set to 0 no update changes anything, so that those launched before the result of
            that one was read can be launched again.
        tokens: [] float32, target tokens of the present update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.optimizer: Any = optimizer
        self.skipped = torch.zeros((), device=device)
        self.tokens = torch.ones((), device=device)
        # CUDA's kernels read a rate in float32; processors get the number that a float would be.
        kind = torch.float32 if device.type == "cuda" else torch.float64
        rate = torch.zeros((), device=device, dtype=kind)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def begin(self, tokens: int, rate: float) -> Tensor:
        """Begin an update of so many target tokens at this learning rate; return `tokens`."""
        set_learning_rate(self.optimizer, rate)
        return self.tokens.fill_(tokens)

    def take(self, losses: Tensor, norm: Tensor, clip_norm: float) -> None:
        """Make the step, unless this update or one before it was not finite.

        Args:
            losses: of each part [parts], summed over its target tokens; or of all parts [].
            norm: [], the length of the gradient.
            clip_norm: largest length, 0 for no limit.
        """
        loss = (losses.double().sum() / self.tokens).float()
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        self.skipped.copy_(torch.maximum(self.skipped, (~finite).float()))
        self.optimizer.found_inf = self.skipped
        if clip_norm:
            self.optimizer.grad_scale = (norm / clip_norm).clamp(min=1.0).float()
        try:
            self.optimizer.step()
        finally:
            self.optimizer.found_inf = self.optimizer.grad_scale = None


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use this rate in the next update."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@contextmanager
def divided(
    optimizer: torch.optim.Optimizer, gradients: list[Tensor], by: Tensor | None
) -> Iterator[None]:
    """A context in which the optimizer's step divides all gradients first.

    A fused one does so while it reads them, on processors, where going through them once more is a
    twentieth of an update. `grad_scale` is how loss scalers ask it to.

    Args:
        optimizer: built here.
        gradients: of its parameters.
        by: a positive number []; nothing is divided if None.
    """
    if by is None:
        yield
        return
    if by.device.type != "cpu" or not all(g.get("fused") for g in optimizer.param_groups):
        torch._foreach_div_(gradients, by)  # on accelerators a scaler may be asking already
        yield
        return
    optimizer.grad_scale = by  # type: ignore[attr-defined]
    try:
        yield
    finally:
        optimizer.grad_scale = None  # type: ignore[attr-defined]


def export_moments(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's tensors by parameter name; parameters never updated have none."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = value.detach()
    return tensors


def import_moments(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]
) -> None:
    """Put back what `export_moments` gave, copied.

    Raises:
        RunError: when the tensors are not those of this model.
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
        # the fused kernels want the step count on the parameter's device
        optimizer.state[parameter] = {
            key: value.to(parameter.device, copy=True) for key, value in results.items()
        }
    if used != len(tensors):
        raise RunError("The optimiser state holds parameters that the model does not have")


def _split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters that AdamW decays and those it leaves alone."""
    embeddings = {
        id(parameter)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) or "embedding" in name.lower()
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
            plain = parameter.ndim < 2 or id(parameter) in left_alone
            (free if plain else decayed).append(parameter)
    return decayed, free


def peak_learning_rate(settings: ScheduleSettings, width: int) -> float:
    """The rate at the end of the warm-up; the paper's for the model's width if none is set.

    Args:
        settings: the schedule.
        width: D.
    """
    if settings.peak_learning_rate is not None:
        return settings.peak_learning_rate
    return 1.0 / math.sqrt(width * max(1, settings.warmup_steps))


def learning_rate(settings: ScheduleSettings, step: int, *, width: int, max_steps: int) -> float:
    """The learning rate of a step: a linear warm-up, then the schedule's own course.

    With `inverse_sqrt` and no peak set this is the formula of Vaswani 2017, section 5.3.

    Args:
        settings: the schedule.
        step: number of the update, from 1.
        width: D, for the paper's peak.
        max_steps: where `cosine` and `linear` end.
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
    share = min(1.0, (step - warmup) / max(1, max_steps - warmup))
    if settings.kind == "linear":
        return peak + (final - peak) * share
    return final + (peak - final) * 0.5 * (1.0 + math.cos(math.pi * share))
