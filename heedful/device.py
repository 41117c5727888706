"""Device and precision, resolved lazily; `auto` measures which precision pays on a processor.

On some processors PyTorch's float32 matrix product has a faster route through oneDNN that is as
exact, or a bfloat16 unit several times faster; on others both are slower. So `auto` times them once
and reports the rates.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from heedful.errors import ConfigError

if TYPE_CHECKING:
    import torch

PrecisionName = Literal["auto", "fp32", "bf16", "fp16"]
"""Precisions of training."""

RunningPrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]
"""Precisions of inference."""

Name = TypeVar("Name")


def usable_cores() -> int:
    """The number of cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


own_products: ContextVar[bool] = ContextVar("own_products", default=True)
"""True if products of training may use those of `heedful.nn.linear_layers`."""

_WORTH_IT = 1.15  # below this gain the plain route is preferred: timings are noisy
_EXACT = 8.0
"""Largest error, in errors of plain float32, of a route that is as exact: another order of sums
errs a few times as much, bfloat16 a thousand times."""


@dataclass(frozen=True)
class Precision:
    """The precision and route of matrix products.

    Args:
        name: `fp32`, `bf16`, `fp16` or `int8`.
        device: the device type, such as `cpu`.
        onednn: float32 products go through oneDNN's exact route (processors only).
        reason: the reason for the choice.
        stored: the weights are stored in this precision, so nothing is converted on the way.
        own: large products of training may use Heedful's own kernels.
    """

    name: Literal["fp32", "bf16", "fp16", "int8"]
    device: str
    onednn: bool = False
    reason: str = ""
    stored: bool = False
    own: bool = True

    @property
    def needs_scaler(self) -> bool:
        """True for float16, whose gradients underflow without a loss scaler."""
        return self.name == "fp16"

    def autocast(self) -> AbstractContextManager[None]:
        """A context in which a forward pass runs in this precision."""
        return _forward(self)

    def in_thread(self) -> AbstractContextManager[object]:
        """The context that each worker thread needs, while `autocast` holds in the main one."""
        if self.name not in ("bf16", "fp16") or self.stored:
            return nullcontext()
        import torch

        return torch.autocast(self.device, torch.bfloat16 if self.name == "bf16" else torch.float16)

    def matmul(self) -> AbstractContextManager[None]:
        """A context in which float32 products take the chosen route; backward passes need it too.

        PyTorch keeps this choice per process; leaving the context restores it.
        """
        return _onednn_route() if self.onednn else nullcontext()

    def describe(self) -> str:
        """A short description."""
        route = " through oneDNN" if self.onednn else ""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.name}{route} on {self.device}{reason}"


@dataclass(frozen=True)
class MatmulRates:
    """Measured rates of a linear layer, in GFLOP/s; None where there is no such route.

    Args:
        fp32: float32 as PyTorch does it by default.
        onednn: float32 through oneDNN, None also where it is not as exact.
        bf16: under bfloat16 autocast, casts included.
    """

    fp32: float
    onednn: float | None
    bf16: float | None


def resolve_device(name: str = "auto") -> torch.device:
    """Return the device of this name.

    Args:
        name: `auto` (CUDA, else Apple's MPS, else the processor), `cpu`, `cuda`, `cuda:1`, `mps`.

    Raises:
        ConfigError: when there is no such device here.
    """
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(
            f"Unknown device {name!r}", where="device", remedy="Use auto, cpu, cuda, cuda:N or mps"
        )
    count = 1
    if device.type == "cuda":
        count = torch.cuda.device_count()
    elif device.type == "mps":
        count = int(torch.backends.mps.is_available())
    if (device.index or 0) >= count:
        raise ConfigError(
            f"This machine has no device {name!r}",
            where="device",
            remedy=f"Use {_devices_here()}, or check the driver and the build of PyTorch",
        )
    return device


def _devices_here() -> str:
    """The devices of this machine in words: `auto, cpu or cuda:0`."""
    import torch

    names = ["auto", "cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        names.append("mps")
    return f"{', '.join(names[:-1])} or {names[-1]}"


def resolve_precision(
    requested: RunningPrecision,
    device: torch.device,
    *,
    width: int = 512,
    exact: bool = False,
) -> Precision:
    """Choose the precision, by measurement where `auto` leaves the choice.

    A precision asked for by name takes PyTorch's own route and measures nothing, so that runs with
    the same seed are the same; `auto` is for speed.

    Args:
        requested: a precision; `auto` chooses the fastest of those that pay here.
        device: device of the model.
        width: D, the width of the measured products.
        exact: let `auto` choose only what is as exact as float32.

    Raises:
        ConfigError: when the device does not support the precision.
    """
    import torch

    kind = device.type
    if requested == "fp16" and kind != "cuda":
        raise ConfigError(
            f"fp16 is not supported on {kind}", where="precision", remedy="Use auto, fp32 or bf16"
        )
    if requested == "bf16" and kind == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError(
            "This GPU has no bfloat16", where="precision", remedy="Use auto, fp32 or fp16"
        )
    if requested == "int8" and kind != "cpu":
        raise ConfigError(
            f"int8 is not supported on {kind}", where="precision", remedy="Use auto, fp32 or bf16"
        )
    if requested != "auto":
        return Precision(requested, kind, reason="asked for")
    if kind != "cpu":
        half = kind == "cuda" and torch.cuda.is_bf16_supported() and not exact
        return Precision("bf16" if half else "fp32", kind, reason="the device's best")
    rates = measure_matmul(measured_width(width))
    onednn = (rates.onednn or 0.0) >= _WORTH_IT * rates.fp32
    best_fp32 = max(rates.fp32, rates.onednn or 0.0)
    result = f"GFLOP/s: fp32 {rates.fp32:.0f}, {_rate('through oneDNN', rates.onednn)}, "
    result += _rate("bf16", rates.bf16)
    if not exact and (rates.bf16 or 0.0) >= _WORTH_IT * best_fp32:
        return Precision("bf16", kind, onednn, result)
    return Precision("fp32", kind, onednn, result)


@functools.lru_cache(maxsize=8)
def measure_matmul(width: int) -> MatmulRates:
    """Time a linear layer of `width` in each precision on the processor, in about 0.1 seconds.

    Args:
        width: D.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    rows = max(64, min(1024, 2**27 // (width * width)))
    x = torch.randn(rows, width, generator=generator)
    weight = torch.randn(width, width, generator=generator)
    routes: dict[str, Any] = {"fp32": nullcontext}
    if _has_onednn_route() and _onednn_is_exact(x, weight):
        routes["onednn"] = _onednn_route
    if torch.backends.mkldnn.is_available():
        routes["bf16"] = functools.partial(torch.autocast, "cpu", torch.bfloat16)

    def multiply(route: Callable[[], AbstractContextManager[object]]) -> None:
        with route():
            torch.nn.functional.linear(x, weight)

    ways = {name: functools.partial(multiply, route) for name, route in routes.items()}
    with torch.no_grad():
        best = best_seconds(ways, turns=8)
    work = 2e-9 * rows * width * width
    rates = {name: work / seconds for name, seconds in best.items()}
    return MatmulRates(rates["fp32"], rates.get("onednn"), rates.get("bf16"))


def full_precision(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """A context in which autocast leaves operations on a tensor's device as they are."""
    import torch

    return torch.autocast(tensor.device.type, enabled=False)


def requested_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return the type that products with a tensor are to have: autocast's, or its own."""
    import torch

    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


@contextmanager
def _forward(precision: Precision) -> Iterator[None]:
    before = own_products.set(precision.own)
    try:
        with precision.matmul(), precision.in_thread():
            yield
    finally:
        own_products.reset(before)


@contextmanager
def _onednn_route() -> Iterator[None]:
    import torch

    mkldnn: Any = torch.backends.mkldnn
    settings = mkldnn.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def _has_onednn_route() -> bool:
    import torch

    mkldnn: Any = torch.backends.mkldnn
    available = bool(mkldnn.is_available())
    return available and hasattr(getattr(mkldnn, "matmul", None), "fp32_precision")


def _onednn_is_exact(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return True if oneDNN's route, which may round to bfloat16, does not on this processor."""
    import torch

    truth = x.double() @ weight.double().T

    def error() -> float:
        return float((torch.nn.functional.linear(x, weight) - truth).abs().max())

    usual = error()
    with _onednn_route():
        return error() <= _EXACT * usual


def best_seconds(ways: Mapping[Name, Callable[[], object]], *, turns: int) -> dict[Name, float]:
    """Time ways to compute something; return the fastest turn of each, in seconds.

    The ways take turns and the best of each counts, so that other load does not decide.

    Args:
        ways: functions by name.
        turns: number of turns of each.
    """
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(turns):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def measured_width(width: int) -> int:
    """Round a width down to a power of two from 64 to 1024, which is quick to time."""
    return 1 << max(6, min(10, width.bit_length() - 1))


def _rate(name: str, rate: float | None) -> str:
    return f"{name} not available" if rate is None else f"{name} {rate:.0f}"
