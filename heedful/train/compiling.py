"""The setting `compile`: whether training's pass is compiled, and what `auto` makes of it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from heedful.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from heedful.train.settings import CompileChoice

FEWEST_UPDATES = 2_000
"""Compiling takes up to two minutes. A shorter run would not get them back if each of its updates
became a quarter faster and took a quarter of a second."""

FEWEST_MINUTES = 10.0
"""The same for runs that end by the clock."""

_TRITON_NEEDS = (7, 0)


@dataclass(frozen=True)
class Compiling:
    """Whether training's pass is compiled.

    Args:
        on: whether it is.
        reason: why, a clause.
        asked_for: it was asked for by name, so that training does not go on without it.
    """

    on: bool
    reason: str
    asked_for: bool = False

    def describe(self) -> str:
        """A few words for people."""
        return f"{'compiled' if self.on else 'not compiled'} ({self.reason})"

    def plain(self) -> dict[str, Any]:
        """The choice as JSON types, of which a checkpoint keeps one."""
        return asdict(self)


def choose_compiling(
    requested: CompileChoice,
    device: str,
    *,
    lacking: str | None,
    experts: bool = False,
    updates: int | None = None,
    minutes: float | None = None,
) -> Compiling:
    """Decide from what is known before training begins; nothing is tried or measured here.

    Args:
        requested: the setting.
        device: the device's type, such as `cuda`.
        lacking: what is missing to compile for it, a clause; from `lacking_here`.
        experts: there are experts in the model, which the numbers in a tensor choose among.
        updates: of the whole run; None if it is not known.
        minutes: that the run may take; None for any.

    Raises:
        ConfigError: when it was asked for and cannot be done.
    """
    if requested == "off":
        return Compiling(False, "as asked for", asked_for=True)
    obstacle = "which expert works on a token no graph can tell beforehand" if experts else lacking
    if requested == "on":
        if obstacle is not None:
            raise ConfigError(
                f"Training cannot be compiled: {obstacle}",
                where="compile = on",
                remedy="Use compile = off" + ("" if experts else ", or install what is missing"),
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
    """What is missing on this machine to compile for a device, a clause; None if nothing is.

    PyTorch compiles C++ for processors, and Triton for CUDA, which needs a C compiler besides.

    Args:
        device: to compile for.
    """
    if device.type == "cpu":
        usual = ("clang++",) if sys.platform == "darwin" else ("g++",)
        return _without_compiler("C++", "CXX", usual)
    if device.type != "cuda":
        return None
    import torch

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
    """Whether a program says what version it is, as PyTorch asks it too."""
    if shutil.which(compiler) is None:
        return False
    return subprocess.run([compiler, "--version"], capture_output=True, check=False).returncode == 0
