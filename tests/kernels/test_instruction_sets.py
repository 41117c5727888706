"""Kernels of each instruction set against plain loops, those of Arm under emulation."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from heedful.kernels import library

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "heedful" / "kernels" / "csrc"
COMMON = ("runtime", "decoding", "sublayer")
FLAGS = ["-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-ffp-contract=fast"]
X86 = platform.machine().lower() in ("x86_64", "amd64") and platform.system() == "Linux"
AVX512 = [f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni")]
SETS = {"avx2": ["-mavx2", "-mfma"], "avx512": [*AVX512, "-mfma"], "amx": [*AVX512, "-mfma"]}
NONE = {f"HAVE_{name.upper()}": 0 for name in (*SETS, "neon")}


def program(folder: Path, compiler: str, sets: dict[str, list[str]], *link: str) -> Path:
    """Compile the kernels of these sets, and what compares them, to a program."""
    have = NONE | {f"HAVE_{name.upper()}": 1 for name in sets}
    defined = [f"-D{name}={value}" for name, value in have.items()]
    flags = {name: [*defined, '-DBUILT_SETS="test"'] for name in COMMON} | sets
    objects = []
    for name, own in flags.items():
        made = folder / f"{name}.o"
        compiled(compiler, *FLAGS, *own, "-c", SOURCES / f"{name}.c", "-o", made)
        objects.append(made)
    made = folder / "check"
    source = HERE / "check_kernels.c"
    compiled(compiler, *FLAGS, "-I", SOURCES, source, *objects, "-o", made, "-lm", *link)
    return made


def compiled(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check(*command: str | Path) -> str:
    """Run the comparison; what it says of the instruction set it used."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[0]


def tool(name: str, package: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"no {name} here: apt-get install {package}")
    return name


def test_neon_under_emulation(tmp_path: Path) -> None:
    compiler = tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
    emulator = tool("qemu-aarch64", "qemu-user")
    made = program(tmp_path, compiler, {"neon": []}, "-static")
    assert check(emulator, made) == "NEON"


@pytest.mark.skipif(not X86, reason="these instructions are x86-64's")
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_x86_by_either_compiler(tmp_path: Path, compiler: str) -> None:
    """All sets are compiled without a warning; those this processor has are compared."""
    made = program(tmp_path, tool(compiler, compiler), SETS)
    best = check(made, "3")
    assert best == library.instructions()
    if "AVX-512" in best:
        assert check(made, "1") == "AVX2"
