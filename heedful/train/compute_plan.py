"""The compute plan of a run: its precision, its matmul kernels, and compilation.

It is chosen once for a run and kept in checkpoints, as a run would not resume exactly with another
plan.
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
from typing import Any, cast

import torch
from torch import nn

from heedful.device import Precision, best_seconds, measured_width, resolve_precision
from heedful.engines.training.products import linear
from heedful.engines.training.traced_parts import obstacle_in
from heedful.errors import ConfigError
from heedful.kernels.library import has_gemm, min_gemm_width
from heedful.train.run_settings import CompileChoice, RunSettings

# Formats with matmuls in PyTorch and in our own kernels; only PyTorch has fp16.
_KINDS = {"fp32": "float32", "bf16": "bfloat16"}
# Ratio of our kernels' rate to PyTorch's at which an update takes equally long with both. A layer
# timed in a loop is PyTorch's best case: its oneDNN plan is made, and nothing around it counts. At
# a measured ratio of 0.87, an update of `base` in bfloat16 was 1.12 times as fast.
_EVEN = 0.8

# Both kernels are timed in turns, so that another program's load affects both.
_TURNS = 4
# Tokens of the timed layer, as many as a small batch has.
_ROWS = 1024


@dataclass(frozen=True)
class ProductRates:
    """Measured rates of a linear layer forward and backward, in GFLOP/s.

    Args:
        torch: rate of PyTorch's kernels.
        own: rate of Heedful's kernels.
    """

    torch: float
    own: float


def measure_products(precision: Precision, width: int) -> ProductRates | None:
    """Time a layer with both kernels for about 0.2 seconds; None where only one can serve.

    Args:
        precision: number format of the matmuls.
        width: D of the model.
    """
    if precision.device != "cpu" or precision.name not in _KINDS:
        return None
    kind = _KINDS[precision.name]
    # Narrower layers use PyTorch in any case (`min_gemm_width`), so timing one would decide
    # nothing.
    width = max(min_gemm_width(kind), measured_width(width))
    if not has_gemm(kind, width):
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, width, generator=generator).requires_grad_()
    weight = torch.randn(width, width, generator=generator).requires_grad_()
    # The incoming gradient has the type of the output; another type would be converted first.
    change = torch.randn(_ROWS, width, generator=generator).to(getattr(torch, kind))

    def multiply(own: bool) -> None:
        with replace(precision, own=own).autocast():
            # Forward, input gradient and weight gradient: the three matmuls of a layer in training.
            y = linear(x, weight, None)
        torch.autograd.grad(y, (x, weight), change)

    ways = {own: functools.partial(multiply, own) for own in (True, False)}
    best = best_seconds(ways, turns=_TURNS)
    # 2 operations an element of each of the three matmuls [rows, D] × [D, D]; in GFLOP.
    work = 6e-9 * _ROWS * width * width
    return ProductRates(torch=work / best[False], own=work / best[True])


def choose_products(precision: Precision, width: int) -> Precision:
    """Choose the kernels with the faster matmuls; the reason of the result names both rates.

    Args:
        precision: number format, chosen already.
        width: D of the model.
    """
    rates = measure_products(precision, width)
    if rates is None:
        return precision
    own = rates.own >= _EVEN * rates.torch
    taken = "own kernels" if own else "PyTorch"
    result = f"training's products: PyTorch {rates.torch:.0f}, own kernels {rates.own:.0f}"
    return replace(precision, own=own, reason=f"{precision.reason}; {result}, by {taken}")


# On an H100, 46 seconds of compiling are made up for after 1,600 updates (`transformer-big`).
FEWEST_UPDATES = 2_000
"""Compiling takes up to two minutes. A shorter run would not get them back if each of its updates
became a quarter faster and took a quarter of a second."""

FEWEST_MINUTES = 10.0
"""The same for runs that end by the clock."""

_TRITON_NEEDS = (7, 0)  # compute capability: Volta and later


@dataclass(frozen=True)
class Compiling:
    """The decision whether to compile the training pass.

    Args:
        on: true if the pass is compiled.
        reason: explanation, as a clause of a message.
        asked_for: request by name in the settings; a failure to compile then ends the run.
    """

    on: bool
    reason: str
    asked_for: bool = False

    def describe(self) -> str:
        return f"{'compiled' if self.on else 'not compiled'} ({self.reason})"


@dataclass(frozen=True)
class ComputePlan:
    """The choices behind a run's updates, made when it begins and stored in checkpoints.

    Args:
        precision: number format of the matmuls, and whose kernels compute them.
        compiling: compilation of the pass through the model.
    """

    precision: Precision
    compiling: Compiling

    @staticmethod
    def environment_changes(before: Mapping[str, Any]) -> list[str]:
        """Return a clause for each difference of a checkpoint's environment from the present."""
        return [
            f"{key} {before.get(key)} before, {now} now"
            for key, now in environment().items()
            if before.get(key) != now
        ]

    @classmethod
    def choose(
        cls, settings: RunSettings, device: torch.device, model: nn.Module, batches: int
    ) -> ComputePlan:
        """Measure and decide for a run that begins.

        Args:
            settings: settings of the training run.
            device: device of the model.
            model: model to train.
            batches: number of batches of an epoch.
        """
        width = cast(Any, model).spec.width
        precision = resolve_precision(settings.precision, device, width=width)
        # A precision requested by name is not timed, so that the same seed gives the same run.
        if settings.precision == "auto":
            precision = choose_products(precision, width)
        updates = settings.max_steps
        if settings.max_epochs is not None:
            epochs = settings.max_epochs * batches
            # Rounded up: the last update of a run may have fewer batches.
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
        """Read the plan from a checkpoint's state, where old checkpoints may lack fields."""
        compiling = state.get("compiling")
        return cls(
            # Runs begun before Heedful had kernels for training went on with PyTorch's.
            Precision(**{"own": False} | state["precision"]),
            Compiling(**compiling) if compiling else Compiling(False, "as before"),
        )

    def plain(self) -> dict[str, Any]:
        """Return the plan and the environment as JSON types, for a checkpoint."""
        return {
            "precision": {
                "name": self.precision.name,
                "device": self.precision.device,
                "onednn": self.precision.onednn,
                "own": self.precision.own,
                # On resuming, the report says that nothing was measured again.
                "reason": "as before",
            },
            "compiling": asdict(self.compiling),
            "environment": environment(),
        }


def environment() -> dict[str, Any]:
    """Return the versions and sizes on which the last digits of a loss depend."""
    return {
        "torch": torch.__version__,
        # PyTorch splits reductions by threads, so their number changes the order of sums.
        "threads": torch.get_num_threads(),
        "system": os.uname().machine,
    }


def choose_compiling(
    requested: CompileChoice,
    device: str,
    *,
    lacking: str | None,
    untraceable: str | None = None,
    updates: int | None = None,
    minutes: float | None = None,
) -> Compiling:
    """Decide whether to compile, from facts alone: nothing is tried or measured here.

    Args:
        requested: the setting.
        device: the device's type, such as `cuda`.
        lacking: missing software, a clause; from `lacking_here`.
        untraceable: part of the model that cannot be traced, a clause; from `obstacle_in`.
        updates: number of updates of the whole run; None if unknown.
        minutes: time limit of the run; None for no limit.

    Raises:
        ConfigError: when compiling was requested and is impossible.
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
    # `base` in bfloat16: the first pass took 234 s, and later ones had 0.91 of the speed (log.md).
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
    """Return what this machine lacks to compile for a device, a clause; None if nothing.

    PyTorch's compiler emits C++ for CPUs, and Triton for CUDA, which also needs a C compiler.

    Args:
        device: target of the compilation.
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
    # CXX and CC win over the usual names, as they do inside PyTorch.
    names = (os.environ[variable],) if os.environ.get(variable) else usual
    if any(map(_works, names)):
        return None
    return f"there is no {language} compiler that works ({' or '.join(names)})"


def _works(compiler: str) -> bool:
    """Return True for a compiler that prints its version; PyTorch makes the same test."""
    if shutil.which(compiler) is None:
        return False
    return subprocess.run([compiler, "--version"], capture_output=True, check=False).returncode == 0
