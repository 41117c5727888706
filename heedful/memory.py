"""Memory: how much there is to take, whether it ran out, and giving back what is free.

Nothing here is done at import, and torch is loaded only where a device is asked about.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_KIB = 1024
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's `mallopt`."""

_KEPT = 256 << 20
_LARGEST_REUSED = 32 << 20
"""The most that glibc allows on 64 bits."""

_NO_LIMIT = 1 << 60
"""Limits as high as this are how the first control groups say that there is none."""

_SAID = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""How PyTorch's processor allocator, its extensions and C++ say that memory ran out."""


@contextmanager
def uncollected() -> Iterator[None]:
    """A context to load modules in: what they make is never looked through for garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def available_bytes(device: torch.device | None = None, root: Path = Path("/")) -> int:
    """Memory that this process can still take without anything being swapped out or killed.

    On a processor that is the least of what the system has available, what the process's control
    group leaves, and what its own limit on addresses leaves.

    Args:
        device: where the memory is wanted; a processor if unset.
        root: folder that holds `proc` and `sys`, for tests.
    """
    if device is not None and device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free) + kept
    found = [_of_system(root), *_of_groups(root)]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        found.append(limit - _status(root, "VmSize"))
    return max(0, min(found))


def resident_bytes(root: Path = Path("/")) -> int:
    """What this process holds in memory now; 0 where the system does not say."""
    return _status(root, "VmRSS")


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there was not enough memory, on any device.

    Args:
        error: as PyTorch or Python raised it.
    """
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    import torch

    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(said in text for said in _SAID)


def release() -> None:
    """Give what is free back to the devices and to the system."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim()


def trim() -> None:
    """Give free pages of the heap back to the system, where its C library can."""
    give_back = _of_c_library("malloc_trim")
    if give_back is not None:
        give_back(0)


def reuse_freed() -> None:
    """Have this process keep pages that it frees, where its C library can, for what comes next.

    A step of decoding takes and frees the same megabytes again and again. Pages that went back to
    the system meanwhile come back one fault at a time, which took a tenth of a small model's time.
    """
    choose = _of_c_library("mallopt")
    if choose is not None:
        choose(_TRIM_THRESHOLD, _KEPT)
        choose(_MMAP_THRESHOLD, _LARGEST_REUSED)


def ask_for_huge_pages() -> None:
    """Have PyTorch put large tensors into large pages, where Linux gives those to who asks.

    What a product of matrices reads lies in thousands of pages of 4 KiB, more than a processor
    knows the places of. PyTorch reads the variable with its first tensor; what a person set stays.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


class Trimmer:
    """Keeps the holes of a long run's heap from adding up.

    Batches of ever new shapes leave free pieces that later tensors do not fit, so that a process
    grows long after its largest batch. Given back they cost the page faults of one step. So they
    are given back only after memory has grown by `growth` over what some steps from a clean heap
    needed, and never twice within `rest` steps.

    Args:
        growth: share.
        rest: steps.
        settle: steps after which a heap is no longer taken for clean.
        resident: bytes held now, for tests.
        give_back: for tests.
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
        """Look at the memory after a step, and give back what is free if it is much."""
        held = self._resident()
        self._since += 1
        if self._since <= self.settle:
            self._needed = max(self._needed, held)
        elif self._since > self.rest and held > (1 + self.growth) * self._needed:
            self._give_back()
            self._since = 0


def _of_system(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux: half of what is there, for want of a better word
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    facts = dict(line.split(":") for line in lines)
    return int(facts["MemAvailable"].split()[0]) * _KIB


def _of_groups(root: Path) -> list[int]:
    """What each limited control group above this process leaves, in either layout of the files."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
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
            left = _left(place, *names)
            if left is not None:
                found.append(left)
    return found


def _left(group: Path, limit_name: str, used_name: str) -> int | None:
    """What a control group leaves; None if it has no limit."""
    try:
        said = (group / limit_name).read_text(encoding="ascii").strip()
        used = int((group / used_name).read_text(encoding="ascii"))
        facts = (group / "memory.stat").read_text(encoding="ascii").split()
    except OSError:
        return None
    if said == "max" or int(said) >= _NO_LIMIT:
        return None
    numbers = dict(zip(facts[::2], facts[1::2], strict=False))
    # Files that were read and can be read again are counted as used, but are given up at need.
    files = int(numbers.get("total_inactive_file", numbers.get("inactive_file", 0)))
    return int(said) - used + files


def _status(root: Path, name: str) -> int:
    try:
        text = (root / "proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * _KIB
    return 0


@functools.cache
def _of_c_library(name: str) -> Callable[..., int] | None:
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):  # not glibc
        return None
    return found
