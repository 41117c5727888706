"""How a worker talks: one JSON line comes in for each request, one goes out.

It runs in its own environment, where nothing else of these benchmarks can be imported.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# What libraries print must not get between the answers.
_answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


def read() -> dict[str, Any] | None:
    """The next request; None when there is none any more."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def answer(**values: Any) -> None:
    """Answer the request; the peak memory of the process so far goes with it."""
    values.setdefault("peak_memory_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        values.setdefault("gpu_memory_mb", torch.cuda.max_memory_allocated() // 2**20)
    _answers.write(json.dumps(values) + "\n")
    _answers.flush()


def refuse(error: BaseException) -> None:
    """Answer that it could not be done."""
    traceback.print_exc()
    answer(error=f"{type(error).__name__}: {error}"[:500])


def serve(handlers: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer requests until there are none.

    Args:
        handlers: by what is asked for; they get the details and return the answer.
    """
    while (request := read()) is not None:
        try:
            answer(**handlers[request.pop("what")](**request))
        except Exception as error:
            refuse(error)


def reset_peak() -> float:
    """Let the kernel count the peak of this process anew; its memory now, in MB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_mb()


def peak_mb() -> float:
    """The largest memory of this process since it began or `reset_peak`, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
