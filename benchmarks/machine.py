"""What a result must say of the machine it was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def describe_machine() -> dict[str, str | int | float]:
    """Processor, cores, memory (GiB), the CUDA GPU if there is one, and versions, as plain data."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return gpu | {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    """Name, family and model: the name alone does not tell one generation from the next."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    name, family, model = (facts.get(k, "?") for k in ("model name", "cpu family", "model"))
    return f"{name} (family {family}, model {model})"
