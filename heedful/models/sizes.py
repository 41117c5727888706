"""Named sizes as data: the TOML files in the folder `presets`.

A preset holds the tables of a run's settings that belong to a size: `[model]`, `[schedule]` ….
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from heedful.config import read_toml_text
from heedful.errors import ModelError, suggest

_FOLDER = resources.files("heedful.models") / "presets"


def preset_names() -> list[str]:
    """The names of all presets, in alphabetical order."""
    return sorted(
        file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml")
    )


def read_preset(name: str) -> dict[str, Any]:
    """The settings of a preset, as the nested data that `RunSettings` takes.

    Raises:
        ModelError: when there is no such preset.
    """
    return {k: v for k, v in _read(name).items() if k != "description"}


def describe_preset(name: str) -> str:
    """One line about what a preset is for."""
    return str(_read(name)["description"])


def _read(name: str) -> dict[str, Any]:
    if name not in preset_names():
        raise ModelError(f"No preset is called {name!r}", remedy=suggest(name, preset_names()))
    text = (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    return read_toml_text(text, where=f"preset {name}")
