"""What is free, by the files a system keeps; what says that memory ran out; when holes go back."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from heedful.memory import Trimmer, available_bytes, ran_out, resident_bytes, trim

MIB = 2**20


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    def build(root: Path, available_mib: int, cgroup: str = "") -> Path:
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(cgroup)
        memory = SimpleNamespace(available=available_mib * MIB)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        size = SimpleNamespace(vms=2 * MIB, rss=MIB)
        monkeypatch.setattr(psutil.Process, "memory_info", lambda _: size)
        return root

    return build


def group(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
WRITE_TOY = """
import random
from pathlib import Path
draw = random.Random(1)
lines = [" ".join(draw.choices("abcdef", k=5)) + "\\n" for _ in range(64)]
for name in ("toy.en", "toy.de"):
    Path(name).write_text("".join(lines))
"""
TRAIN = """
from heedful.cli.main import main
shape = "--model.width 16 --model.num-heads 2 --model.feedforward 16 --tokenizer.kind characters"
words = "train run --train toy.en toy.de --valid toy.en toy.de --max-steps 1 --device cpu"
assert main([*words.split(), *shape.split()]) == 0
"""
LOAD = """
import heedful
heedful.load("run", device="cpu")
"""
# Whether pages are large is the system's answer: memory in pieces has none left to give. What the
# tensor's mapping asks for ("hg": advised to be huge) is ours.
LOOK = """
import torch
held = torch.ones(16 << 20)
inside = False
for line in open("/proc/self/smaps"):
    words = line.split()
    if "-" in words[0] and ":" not in words[0]:
        begin, end = (int(part, 16) for part in words[0].split("-"))
        inside = begin <= held.data_ptr() + (32 << 20) < end
    elif inside and words[0] == "VmFlags:":
        print("asked" if "hg" in words else "plain")
"""


@pytest.mark.skipif(
    not HUGE_PAGES.is_file() or "[never]" in HUGE_PAGES.read_text(),
    reason="a system that gives no large pages",
)
def test_large_tensors_ask_for_large_pages(tmp_path: Path) -> None:
    # Whatever ran in this process before may have asked for them.
    plain = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}

    def pages(program: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program + LOOK],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            env={**plain, **variables},
        )
        return done.stdout.split()[-1]

    assert pages(WRITE_TOY + TRAIN) == "asked"
    assert pages(LOAD) == "asked"
    assert pages(LOAD, THP_MEM_ALLOC_ENABLE="0") == "plain"


def test_without_a_limit_it_is_what_the_system_has(system: Any, tmp_path: Path) -> None:
    assert available_bytes(root=system(tmp_path, 700)) == 700 * MIB


def test_a_control_group_leaves_less_but_gives_up_its_files(system: Any, tmp_path: Path) -> None:
    root = system(tmp_path, 700, "0::/a/b\n")
    top = root / "sys/fs/cgroup"
    used = {"memory.current": str(300 * MIB), "memory.stat": f"anon 1\ninactive_file {100 * MIB}\n"}
    group(top / "a/b", {"memory.max": "max\n", **used})
    assert available_bytes(root=root) == 700 * MIB
    group(top / "a", {"memory.max": f"{500 * MIB}\n", **used})
    assert available_bytes(root=root) == 300 * MIB


def test_control_groups_of_the_first_layout(system: Any, tmp_path: Path) -> None:
    root = system(tmp_path, 700, "5:cpu:/x\n4:memory:/not/here\n0::/\n")
    files = {"memory.usage_in_bytes": str(60 * MIB), "memory.stat": "total_inactive_file 0\n"}
    folder = root / "sys/fs/cgroup/memory"
    group(folder, {"memory.limit_in_bytes": str(2**63 - 4096), **files})
    assert available_bytes(root=root) == 700 * MIB
    group(folder, {"memory.limit_in_bytes": str(100 * MIB), **files})
    assert available_bytes(root=root) == 40 * MIB


def test_a_limit_on_addresses_counts(
    system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10 * MIB, 10 * MIB))
    assert available_bytes(root=system(tmp_path, 700)) == 8 * MIB
    assert resident_bytes() == MIB


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert available_bytes(root=tmp_path) > 0


def test_this_machine() -> None:
    assert 0 < available_bytes() < 2**50
    assert resident_bytes() > 10 * MIB


def test_what_says_that_memory_ran_out() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert ran_out(caught.value)
    assert ran_out(MemoryError())
    assert ran_out(torch.OutOfMemoryError("CUDA out of memory."))
    assert ran_out(RuntimeError("std::bad_alloc"))
    assert not ran_out(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not ran_out(ValueError("out of memory"))


def test_holes_are_given_back_after_growth_and_not_too_often() -> None:
    held, now, given = [0], [0], []

    def give_back() -> None:
        given.append(now[0])
        held[0] = 100

    trimmer = Trimmer(growth=0.1, rest=20, settle=5, resident=lambda: held[0], give_back=give_back)
    held[0] = 95
    for now[0] in range(1, 201):
        held[0] += 1
        trimmer.step()
        assert held[0] <= 121
    assert given
    assert min(later - before for before, later in pairwise(given)) > 20


def test_memory_that_does_not_grow_is_left_alone() -> None:
    def give_back() -> None:
        raise AssertionError

    trimmer = Trimmer(rest=3, settle=2, resident=lambda: 100, give_back=give_back)
    for _ in range(50):
        trimmer.step()


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc"
)
def test_free_pages_go_back() -> None:
    """Pieces that lie between pieces in use: only a trim gives back what is among them."""
    pieces = [torch.ones(4000) for _ in range(4000)]
    del pieces[::2], pieces[1::2]
    before = resident_bytes()
    trim()
    assert resident_bytes() < before - 10 * MIB


def test_nothing_heavy_is_imported() -> None:
    code = "import heedful.memory, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
