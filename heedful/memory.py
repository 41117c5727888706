"""Memory: available bytes, recognition of out-of-memory errors, and return of free pages.

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
"""Numbers of two parameters of glibc's `mallopt`."""

_KEPT_BYTES = 256 << 20  # free memory that stays at the end of the heap
_LARGEST_REUSED = 32 << 20
"""Size up to which blocks come from the heap: the maximum of glibc on 64 bits."""

_NO_LIMIT = 1 << 60
"""Limits from this size on mean no limit in version 1 of control groups."""

_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""Parts of out-of-memory messages of PyTorch's processor allocator, its extensions and C++."""


def available_bytes(device: torch.device | None = None, root: Path = Path("/")) -> int:
    """Memory in bytes that this process can still allocate without swapping or being killed.

    On a processor that is the minimum of the system's available memory and of what the process's
    control groups and its limit on address space leave.

    Args:
        device: device of the memory; a processor if None.
        root: folder with `proc` and `sys`, for tests.
    """
    if device is not None and device.type == "cuda":
        import torch

        # PyTorch keeps freed blocks, which are free for its own tensors only.
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free) + kept
    import psutil

    # `available`, not `free`: the page cache is given up at need.
    limits = [psutil.virtual_memory().available, *_free_in_groups(root)]
    if resource is not None:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        # This limit counts addresses (`vms`), not resident pages.
        if limit != resource.RLIM_INFINITY:
            limits.append(limit - _process(os.getpid()).memory_info().vms)
    return max(0, int(min(limits)))


def resident_bytes() -> int:
    """Resident size of this process in bytes."""
    return int(_process(os.getpid()).memory_info().rss)


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far, in bytes."""
    if resource is None:
        return int(_process(os.getpid()).memory_info().peak_wset)
    peak = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    # macOS reports bytes, Linux KiB.
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
    gc.collect()  # tensors in reference cycles, such as those of a traceback, are still held
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim()


def trim() -> None:
    """Return free pages of the heap to the system, if the C library can."""
    malloc_trim = _c_function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def reuse_freed() -> None:
    """Keep freed pages in this process for the next allocation, if the C library can.

    Decoding allocates and frees the same megabytes in every step. Pages that were returned to the
    system come back by page faults, which took a tenth of a small model's time.
    """
    mallopt = _c_function("mallopt")
    if mallopt is not None:
        # Both, as the first one alone would end glibc's dynamic thresholds and leave that of `mmap`
        # at 128 KiB.
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGEST_REUSED)


def ask_for_huge_pages() -> None:
    """Let PyTorch allocate large tensors in huge pages where Linux grants them on request.

    The operands of a matmul span thousands of pages of 4 KiB, more than a processor's
    translation cache (TLB) holds. PyTorch reads the variable with its first tensor; a value that
    the user set stays.
    """
    # An update of `base` in bfloat16 became 1.05 to 1.10 times as fast (Xeon with AMX, two
    # threads), translating in 8 bits 1.04 to 1.09.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


class Trimmer:
    """A bound on the fragmentation of a long run's heap.

    Batches of ever new shapes leave free blocks into which later tensors do not fit, so that a
    process grows long after its largest batch. Returning the blocks costs the page faults of one
    step, so the heap is trimmed only after memory has grown by `growth` over the peak of the first
    steps on a clean heap, and never twice within `rest` steps.

    Args:
        growth: growth after which the heap is trimmed, as a share of the peak.
        rest: smallest number of steps between two trims.
        settle: number of steps after a trim that count as those of a clean heap.
        resident: function that returns the resident size, for tests.
        give_back: function that trims the heap, for tests.
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
        # `malloc_trim` gave back a fifth of a training process whose caches of oneDNN kernels
        # are unbounded (docs/design/log.md).
        elif self._since > self.rest and size > (1 + self.growth) * self._needed:
            self._give_back()
            self._since = 0


@functools.lru_cache(maxsize=1)
def _process(pid: int) -> psutil.Process:
    """Return this process; the argument renews the cache after a fork."""
    import psutil

    return psutil.Process(pid)


def _free_in_groups(root: Path) -> list[int]:
    """Return the free bytes of each limited control group above this process, version 1 or 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    left = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # Version 2 has one line without controllers, version 1 a line for each set of them.
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
            rest = _free_in_group(place, *names)
            if rest is not None:
                left.append(rest)
    return left


def _free_in_group(group: Path, limit_name: str, used_name: str) -> int | None:
    """Return the free bytes of a control group; None if it has no limit."""
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
