"""`heedful doctor`: versions, devices and the speed of each precision on this machine."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import heedful
from heedful.cli.text_io import Output, Report, show_table
from heedful.errors import lacks_torch

NO_KERNELS = "none: not compiled when Heedful was installed, or HEEDFUL_NATIVE=off"
_PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "pydantic", "sacrebleu", "babel")


def doctor(
    *,
    width: int = 512,
    output: Output = Output(),
) -> None:
    """Check versions, devices and the speed of each precision on this machine.

    The speed of a linear layer is measured in GFLOP/s; `--precision auto` chooses by it. The choice
    shown for `--compile auto` is that of a long run. Include the output in bug reports.

    Example: `heedful doctor --json`

    Args:
        width: Width of the linear layer whose speed is measured.
    """
    if width < 1:
        from heedful.errors import UserError

        raise UserError("The width must be at least 1", where="--width")
    report = Report("doctor", output, width=width)
    facts = {"versions": _versions(), "machine": _machine()}
    # What is measured is PyTorch; translation without it has neither precisions nor a compiler.
    if not lacks_torch():
        facts |= {"precision": _precision(width), "compiling": _compiling()}
    if not output.json:
        for title, section in facts.items():
            rows = [(name, str(value)) for name, value in section.items()]
            show_table(title.capitalize(), ("", ""), rows)
    report.finish(facts)


def _versions() -> dict[str, str]:
    results = {"heedful": heedful.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            results[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            results[package] = "not installed"
    return results


def _machine() -> dict[str, Any]:
    from heedful.device import resolve_device, usable_cores
    from heedful.kernels.library import build, instructions

    facts = {
        "system": platform.platform(),
        "processor_cores": usable_cores(),
        "own_kernels": instructions() or NO_KERNELS,
        "own_kernels_built_with": build() or "nothing",
    }
    if lacks_torch():
        return facts | {"device_for_auto": "cpu"}
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts | {
        "torch_threads": torch.get_num_threads(),
        "processor_instructions": torch.backends.cpu.get_cpu_capability(),
        "gpus": ", ".join(gpus) or "none",
        "device_for_auto": str(resolve_device("auto")),
    }


def _precision(width: int) -> dict[str, Any]:
    from heedful.device import measure_matmul, resolve_device, resolve_precision
    from heedful.engines.inference.packed_linear import measure_int8
    from heedful.train.compute_plan import measure_products

    rates = measure_matmul(width)
    chosen = resolve_precision("auto", resolve_device("auto"), width=width)
    products = measure_products(chosen, width)
    return {
        "fp32_gflops": _rate(rates.fp32),
        "fp32_through_onednn_gflops": _rate(rates.onednn),
        "bf16_gflops": _rate(rates.bf16),
        "int8_gflops": _rate(measure_int8(width)),
        "chosen_by_auto": chosen.describe(),
        "training_by_torch_gflops": _rate(products.torch if products else None),
        "training_by_own_kernels_gflops": _rate(products.own if products else None),
    }


def _compiling() -> dict[str, Any]:
    from heedful.device import resolve_device
    from heedful.train.compute_plan import choose_compiling, lacking_here

    device = resolve_device("auto")
    lacking = lacking_here(device)
    return {
        "compiler": lacking or "found",
        "chosen_by_auto": choose_compiling("auto", device.type, lacking=lacking).describe(),
    }


def _rate(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)
