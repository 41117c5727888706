"""The compute plan of a run: its precision, its matrix products, and compilation.

It is chosen once in a run's life and kept in checkpoints: with another a run would not resume
exactly.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from heedful.device import Precision, best_seconds, measured_width, resolve_precision
from heedful.engines.training.products import linear
from heedful.engines.training.traced_parts import obstacle_in
from heedful.errors import ConfigError
from heedful.kernels.library import has_gemm, min_gemm_width

if TYPE_CHECKING:
    from torch import nn

    from heedful.models.build import AnyModel
    from heedful.train.run_settings import CompileChoice, RunSettings

_KINDS = {"fp32": "float32", "bf16": "bfloat16"}
_EVEN = 0.8
"""Own kernels' share of PyTorch's rate at which an update takes as long with either. A layer timed
alone, again and again, is where PyTorch does best: its plan is made, and nothing around it counts.
With 0.87 times its rate so measured an update of `base` in bfloat16 was 1.12 times as fast."""

_TURNS = 4
_ROWS = 1024


@dataclass(frozen=True)
class ProductRates:
    """Measured rates of a linear layer forward and backward, in GFLOP/s.

    Args:
        torch: by PyTorch.
        own: by kernels of Heedful's own.
    """

    torch: float
    own: float


def measure_products(precision: Precision, width: int) -> ProductRates | None:
    """Time both, in turns, in about 0.2 seconds; None where there is no choice.

    Args:
        precision: of the products.
        width: D of the model.
    """
    if precision.device != "cpu" or precision.name not in _KINDS:
        return None
    kind = _KINDS[precision.name]
    width = max(min_gemm_width(kind), measured_width(width))
    if not has_gemm(kind, width):
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, width, generator=generator).requires_grad_()
    weight = torch.randn(width, width, generator=generator).requires_grad_()
    change = torch.randn(_ROWS, width, generator=generator).to(getattr(torch, kind))

    def multiply(own: bool) -> None:
        with replace(precision, own=own).autocast():
            y = linear(x, weight, None)
        torch.autograd.grad(y, (x, weight), change)

    ways = {own: functools.partial(multiply, own) for own in (True, False)}
    best = best_seconds(ways, turns=_TURNS)
    work = 6e-9 * _ROWS * width * width
    return ProductRates(torch=work / best[False], own=work / best[True])


def choose_products(precision: Precision, width: int) -> Precision:
    """The precision with the products that make an update faster, and both rates in its reason.

    Args:
        precision: chosen already.
        width: D of the model.
    """
    rates = measure_products(precision, width)
    if rates is None:
        return precision
    own = rates.own >= _EVEN * rates.torch
    taken = "own kernels" if own else "PyTorch"
    result = f"training's products: PyTorch {rates.torch:.0f}, own kernels {rates.own:.0f}"
    return replace(precision, own=own, reason=f"{precision.reason}; {result}, by {taken}")


FEWEST_UPDATES = 2_000
"""Compiling takes up to two minutes. A shorter run would not get them back if each of its updates
became a quarter faster and took a quarter of a second."""

FEWEST_MINUTES = 10.0
"""The same for runs that end by the clock."""

_TRITON_NEEDS = (7, 0)


@dataclass(frozen=True)
class Compiling:
    """The decision to compile training's pass or not.

    Args:
        on: whether it is.
        reason: why, a clause.
        asked_for: it was asked for by name, so that training does not go on without it.
    """

    on: bool
    reason: str
    asked_for: bool = False

    def describe(self) -> str:
        return f"{'compiled' if self.on else 'not compiled'} ({self.reason})"


@dataclass(frozen=True)
class ComputePlan:
    """The choices about computing a run's updates.

    Args:
        precision: of the products, and whose kernels compute them.
        compiling: of the pass through the model.
    """

    precision: Precision
    compiling: Compiling

    @classmethod
    def choose(
        cls, settings: RunSettings, device: torch.device, model: nn.Module, batches: int
    ) -> ComputePlan:
        """Measure and decide for a run that begins.

        Args:
            settings: of the run.
            device: that is trained on.
            model: to train.
            batches: of an epoch.
        """
        width = cast("AnyModel", model).spec.width
        precision = resolve_precision(settings.precision, device, width=width)
        if settings.precision == "auto":
            precision = choose_products(precision, width)
        updates = settings.max_steps
        if settings.max_epochs is not None:
            epochs = settings.max_epochs * batches
            updates = min(updates, -(-epochs // settings.optimizer.accumulate))
        compiling = choose_compiling(
            settings.compile,
            device.type,
            lacking=lacking_here(device),
            untraceable=obstacle_in(model),
            updates=updates,
            minutes=settings.max_minutes,
        )
        return cls(precision, compiling)

    @classmethod
    def stored(cls, state: Mapping[str, Any]) -> ComputePlan:
        """The plan that a checkpoint keeps; older ones lack what was then no choice."""
        compiling = state.get("compiling")
        return cls(
            Precision(**{"own": False} | state["precision"]),
            Compiling(**compiling) if compiling else Compiling(False, "as before"),
        )

    def plain(self) -> dict[str, Any]:
        """The plan and the environment as JSON types, for a checkpoint."""
        return {
            "precision": {
                "name": self.precision.name,
                "device": self.precision.device,
                "onednn": self.precision.onednn,
                "own": self.precision.own,
                "reason": "as before",
            },
            "compiling": asdict(self.compiling),
            "environment": environment(),
        }


def environment() -> dict[str, Any]:
    """The facts about this process on which the last digits of a loss depend."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "system": os.uname().machine,
    }


def environment_changes(before: Mapping[str, Any]) -> list[str]:
    """The differences of a checkpoint's environment from this one, a clause each."""
    return [
        f"{key} {before.get(key)} before, {now} now"
        for key, now in environment().items()
        if before.get(key) != now
    ]


def choose_compiling(
    requested: CompileChoice,
    device: str,
    *,
    lacking: str | None,
    untraceable: str | None = None,
    updates: int | None = None,
    minutes: float | None = None,
) -> Compiling:
    """Decide from what is known before training begins; nothing is tried or measured here.

    Args:
        requested: the setting.
        device: the device's type, such as `cuda`.
        lacking: what is missing to compile for it, a clause; from `lacking_here`.
        untraceable: what no graph can be made of in the model, a clause; from `obstacle_in`.
        updates: of the whole run; None if it is not known.
        minutes: that the run may take; None for any.

    Raises:
        ConfigError: when it was asked for and cannot be done.
    """
    if requested == "off":
        return Compiling(False, "as asked for", asked_for=True)
    obstacle = untraceable or lacking
    if requested == "on":
        if obstacle is not None:
            raise ConfigError(
                f"Training cannot be compiled: {obstacle}",
                where="compile = on",
                remedy="Use compile = off"
                + ("" if untraceable else ", or install what is missing"),
            )
        return Compiling(True, "as asked for", asked_for=True)
    if device == "cpu":
        return Compiling(False, "on processors it takes its time to begin and gains nothing")
    if device != "cuda":
        return Compiling(False, f"it has not been tried on {device}")
    if obstacle is not None:
        return Compiling(False, obstacle)
    if updates is not None and updates < FEWEST_UPDATES:
        return Compiling(False, f"{updates:,} updates are too few for it to pay")
    if minutes is not None and minutes < FEWEST_MINUTES:
        return Compiling(False, f"{minutes:g} minutes are too few for it to pay")
    return Compiling(True, "a long run on CUDA")


def lacking_here(device: torch.device) -> str | None:
    """The obstacle on this machine to compiling for a device, a clause; None if there is none.

    PyTorch compiles C++ for processors, and Triton for CUDA, which needs a C compiler besides.

    Args:
        device: to compile for.
    """
    if device.type == "cpu":
        usual = ("clang++",) if sys.platform == "darwin" else ("g++",)
        return _without_compiler("C++", "CXX", usual)
    if device.type != "cuda":
        return None
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if torch.cuda.get_device_capability(device) < _TRITON_NEEDS:
        return "this GPU is older than what Triton compiles for"
    return _without_compiler("C", "CC", ("gcc", "clang"))


def _without_compiler(language: str, variable: str, usual: tuple[str, ...]) -> str | None:
    names = (os.environ[variable],) if os.environ.get(variable) else usual
    if any(map(_works, names)):
        return None
    return f"there is no {language} compiler that works ({' or '.join(names)})"


def _works(compiler: str) -> bool:
    """True for a program that prints its version, which PyTorch asks for too."""
    if shutil.which(compiler) is None:
        return False
    return subprocess.run([compiler, "--version"], capture_output=True, check=False).returncode == 0
