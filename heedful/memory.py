"""Memory: how much is available, whether it ran out, and returning free pages to the system.

Nothing here is done at import, and torch is loaded only to query a device.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil
    import torch

try:
    resource: Any = importlib.import_module("resource")
except ImportError:  # Windows
    resource = None

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""

_KEPT_BYTES = 256 << 20
_LARGEST_REUSED = 32 << 20
"""The maximum of glibc on 64 bits."""

_NO_LIMIT = 1 << 60
"""Version 1 of control groups has limits as high as this where there is none."""

_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""Messages of PyTorch's processor allocator, its extensions and C++."""


def available_bytes(device: torch.device | None = None, root: Path = Path("/")) -> int:
    """Memory that this process can still take without swapping or being killed.

    On a processor that is the minimum of the system's available memory and of what the process's
    control groups and its limit on address space leave.

    Args:
        device: the device; a processor if unset.
        root: folder that holds `proc` and `sys`, for tests.
    """
    if device is not None and device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free) + kept
    import psutil

    limits = [psutil.virtual_memory().available, *_left_by_groups(root)]
    if resource is not None:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            limits.append(limit - _process(os.getpid()).memory_info().vms)
    return max(0, int(min(limits)))


def resident_bytes() -> int:
    """The resident size of this process."""
    return int(_process(os.getpid()).memory_info().rss)


def peak_memory_bytes() -> int:
    """The largest resident size of this process so far."""
    if resource is None:
        return int(_process(os.getpid()).memory_info().peak_wset)
    peak = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return peak if sys.platform == "darwin" else peak * 1024


def ran_out(error: BaseException) -> bool:
    """Return True if an error of PyTorch or Python reports that memory ran out."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    import torch

    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(part in text for part in _OUT_OF_MEMORY)


def release() -> None:
    """Return free memory to the devices and to the system."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim()


def trim() -> None:
    """Return free pages of the heap to the system, if its C library can."""
    malloc_trim = _c_function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def reuse_freed() -> None:
    """Keep freed pages in this process for the next allocation, if its C library can.

    A step of decoding takes and frees the same megabytes again and again. Pages that went back to
    the system return one page fault at a time, which took a tenth of a small model's time.
    """
    mallopt = _c_function("mallopt")
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGEST_REUSED)


def ask_for_huge_pages() -> None:
    """Let PyTorch allocate large tensors in huge pages, where Linux grants them on request.

    The operands of a matrix product span thousands of pages of 4 KiB, more than a processor's
    translation cache (TLB) holds. PyTorch reads the variable with its first tensor; a value that
    the user set stays.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


class Trimmer:
    """Bounds the fragmentation of a long run's heap.

    Batches of ever new shapes leave free pieces that later tensors do not fit, so that a process
    grows long after its largest batch. Returning them costs the page faults of one step, so this
    happens only after memory has grown by `growth` over the peak of the first steps on a clean
    heap, and never twice within `rest` steps.

    Args:
        growth: share of that peak.
        rest: minimum number of steps between two trims.
        settle: number of steps after a trim that count as those of a clean heap.
        resident: the resident size, for tests.
        give_back: the trim, for tests.
    """

    def __init__(
        self,
        *,
        growth: float = 0.1,
        rest: int = 64,
        settle: int = 8,
        resident: Callable[[], int] = resident_bytes,
        give_back: Callable[[], None] = trim,
    ) -> None:
        self.growth = growth
        self.rest = rest
        self.settle = settle
        self._resident = resident
        self._give_back = give_back
        self._needed = 0
        self._since = 0

    def step(self) -> None:
        """Check the memory after a step, and trim the heap if it has grown."""
        size = self._resident()
        self._since += 1
        if self._since <= self.settle:
            self._needed = max(self._needed, size)
        elif self._since > self.rest and size > (1 + self.growth) * self._needed:
            self._give_back()
            self._since = 0


@functools.lru_cache(maxsize=1)
def _process(pid: int) -> psutil.Process:
    """This process, anew after a fork."""
    import psutil

    return psutil.Process(pid)


def _left_by_groups(root: Path) -> list[int]:
    """Bytes left by each limited control group above this process, in version 1 or 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    left = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = base / path.lstrip("/")
        # Inside a container the path may be the host's; the container's own group is the base.
        for place in (folder, *folder.parents):
            if not place.is_relative_to(base):
                break
            rest = _left_by_group(place, *names)
            if rest is not None:
                left.append(rest)
    return left


def _left_by_group(group: Path, limit_name: str, used_name: str) -> int | None:
    """Bytes left by a control group; None if it has no limit."""
    try:
        limit = (group / limit_name).read_text(encoding="ascii").strip()
        used = int((group / used_name).read_text(encoding="ascii"))
        facts = (group / "memory.stat").read_text(encoding="ascii").split()
    except OSError:
        return None
    if limit == "max" or int(limit) >= _NO_LIMIT:
        return None
    numbers = dict(zip(facts[::2], facts[1::2], strict=False))
    # The page cache counts as used, and the kernel frees it at need.
    files = int(numbers.get("total_inactive_file", numbers.get("inactive_file", 0)))
    return int(limit) - used + files


@functools.cache
def _c_function(name: str) -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):  # not glibc; on Windows, no such library
        return None
    return function
