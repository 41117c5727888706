"""Compile the kernels in C, each instruction set with flags of its own.

What this compiler cannot make is left out; `pip install -v` and `heedful doctor` say what. Without
any compiler Heedful installs without kernels, and PyTorch computes instead.
"""

from __future__ import annotations

import logging
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCES = "heedful/kernels/csrc"
COMMON = ("runtime", "decoding", "sublayer")
FLAGS = ["-O3", "-g0", "-std=gnu11", "-fvisibility=hidden", "-ffp-contract=fast"]
AVX512 = [f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni")]
X86 = {"avx2": ["-mavx2", "-mfma"], "avx512": [*AVX512, "-mfma"], "amx": [*AVX512, "-mfma"]}
ARM = {"neon": []}


class BuildKernels(build_ext):
    """Compiles what can be compiled, and says what cannot."""

    def build_extension(self, extension: Extension) -> None:
        """Compile and link the library; raises CompileError without any instruction set."""
        machine = platform.machine().lower()
        sets = {"x86_64": X86, "amd64": X86, "aarch64": ARM, "arm64": ARM}.get(machine, {})
        if platform.system() != "Linux":
            sets = {name: flags for name, flags in sets.items() if name != "amx"}
        objects, left_out = [], []
        for name, flags in sets.items():
            if name == "amx" and "avx512" in left_out:  # whose float32 products it uses
                left_out.append(name)
                continue
            try:
                objects += self._compile(name, flags)
            except CompileError:
                left_out.append(name)
        built = [name for name in sets if name not in left_out]
        if not built:
            raise CompileError(f"no kernels in C for {machine} with this compiler")
        said = f"{', '.join(built)}; left out: {', '.join(left_out) or 'nothing'}"
        have = [f"-DHAVE_{name.upper()}={int(name in built)}" for name in (*X86, *ARM)]
        for name in COMMON:
            objects += self._compile(name, [*have, f'-DBUILT_SETS="{said}"'])
        self.announce(f"heedful kernels: {said}", level=logging.INFO)
        path = self.get_ext_fullpath(extension.name)
        # Named, as an interpreter need not have loaded the library of `expf`.
        libraries = ["m"] if platform.system() == "Linux" else []
        self.compiler.link_shared_object(
            objects, path, libraries=libraries, build_temp=self.build_temp
        )

    def get_ext_filename(self, fullname: str) -> str:
        """Return a path without the version of Python, whose interface the library does not use."""
        suffix = ".pyd" if platform.system() == "Windows" else ".so"
        return str(Path(*fullname.split("."))) + suffix

    def _compile(self, name: str, flags: list[str]) -> list[str]:
        source = str(Path(SOURCES) / f"{name}.c")
        compiled: list[str] = self.compiler.compile(
            [source], output_dir=self.build_temp, extra_postargs=[*FLAGS, *flags]
        )
        return compiled


class AnyPythonWheel(bdist_wheel):
    """A wheel for every version of Python on one platform; without kernels, for every platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of interpreter, interface and platform."""
        build = self.get_finalized_command("build_ext")
        built = any(Path(file).is_file() for file in build.get_outputs())
        return "py3", "none", super().get_tag()[2] if built else "any"


setup(
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPythonWheel},
    ext_modules=[
        Extension(
            "heedful.kernels._library",
            sources=sorted(str(path) for path in Path(SOURCES).glob("*.c")),
            depends=sorted(str(path) for path in Path(SOURCES).glob("*.h")),
            optional=True,
        )
    ],
)
