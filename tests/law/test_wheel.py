"""What is installed: one wheel for all versions of Python, with every file of the package."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from heedful import __version__
from heedful.kernels.library import kernels

from .source import ROOT

ASK = """
import json, setuptools, sys
from pathlib import Path
from distutils.core import run_setup
project = run_setup("setup.py", stop_after="init")
project.parse_config_files()
wheel = project.get_command_obj("bdist_wheel")
wheel.ensure_finalized()
kernels = project.get_command_obj("build_ext")
kernels.build_lib = sys.argv[1]
kernels.ensure_finalized()
without = wheel.get_tag()
(library,) = (Path(each) for each in kernels.get_outputs())
library.parent.mkdir(parents=True)
library.touch()
python = project.get_command_obj("build_py")
python.ensure_finalized()
held = [f"{folder}/{name}" for _, folder, _, names in python.data_files for name in names]
held += [file for _, _, file in python.find_all_modules()]
print(json.dumps([without, wheel.get_tag(), library.name, held]))
"""
# Read where kernels are compiled, and nowhere else.
COMPILED = "heedful/kernels/csrc/"


def test_the_tag_names_a_platform_and_no_python_and_no_file_is_left_out(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", ASK, str(tmp_path / "lib")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    without, tag, library, held = json.loads(done.stdout.splitlines()[-1])
    assert without == ["py3", "none", "any"]  # a wheel without kernels runs everywhere
    assert tag[:2] == ["py3", "none"]
    assert tag[2] not in ("any", "")
    assert Path(library).stem == "_library"  # no version of Python: the loader finds it by any
    wanted = [file for file in files_of_the_package() if not file.startswith(COMPILED)]
    assert not {*wanted} - {*held}


def files_of_the_package() -> list[str]:
    command = ["git", "ls-files", "heedful"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no repository to compare with")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_versions_are_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    recipe = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation
    assert f'  version: "{__version__}"\n' in recipe
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in project["dependencies"]:
        name, least = requirement.split(">=")
        assert f"- {name} >={least}\n" in recipe


def test_pytorch_is_an_extra_that_others_bring() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert not any(item.startswith("torch") for item in project["dependencies"])
    assert [item.startswith("torch>=") for item in extras["torch"]] == [True]
    for name in ("studio", "serve", "images", "onnx", "ctranslate2", "tensorboard", "ray"):
        assert any("torch]" in item for item in extras[name]), name


@pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")
def test_a_wheel_of_the_source_distribution_translates(tmp_path: Path) -> None:
    """The whole way: source distribution, wheel, its files alone on the path."""
    backend = (
        "from setuptools import build_meta; import sys; "
        "print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
    )

    def build(what: str, folder: Path) -> Path:
        command = [sys.executable, "-c", backend, f"build_{what}", str(tmp_path)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return tmp_path / done.stdout.splitlines()[-1]

    copy = tmp_path / "copy"
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in files.stdout.splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    source = build("sdist", copy)
    subprocess.run(["tar", "xzf", str(source), "-C", str(tmp_path)], check=True)
    wheel = build("wheel", tmp_path / source.name.removesuffix(".tar.gz"))
    assert wheel.name.startswith(f"heedful-{__version__}-py3-none-")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    command = [sys.executable, "-m", "heedful", "translate", "en-de"]
    done = subprocess.run(
        command,
        cwd=installed,
        input="I love cats.\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "Ich liebe Katzen.\n"
