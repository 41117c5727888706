"""Modules that only some systems have are imported where they exist, and nowhere else."""

from __future__ import annotations

import subprocess
import sys

from .source import MODULES, ROOT

IMPORT_ALL = """
import builtins, importlib, sys

MISSING = {"resource", "fcntl", "pwd", "grp", "termios"}
whole_import, whole_module = builtins.__import__, importlib.import_module

def guarded_import(name, namespace=None, *rest, **named):
    if name in MISSING and str((namespace or {}).get("__name__")).startswith("heedful"):
        raise ModuleNotFoundError(name)
    return whole_import(name, namespace, *rest, **named)

def guarded_module(name, package=None):
    if name in MISSING:
        raise ModuleNotFoundError(name)
    return whole_module(name, package)

builtins.__import__, importlib.import_module = guarded_import, guarded_module
for name in sys.argv[1:]:
    whole_module(name)
from heedful.memory import available_bytes, resident_bytes
assert available_bytes() > 0 and resident_bytes() > 0
"""


def test_every_module_imports_without_modules_of_unix() -> None:
    names = [name for name in MODULES if not name.endswith("__main__")]
    command = [sys.executable, "-c", IMPORT_ALL, *names]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
