"""Named sizes as data: the TOML files in the folder `presets`.

A preset of a translator holds the tables of a run's settings that belong to a size: `[model]`,
`[schedule]` …. One of the rest of the family holds the complete `[spec]` of a published model, and
how many parameters that has.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from heedful.config import read_toml_text
from heedful.errors import ModelError, suggest
from heedful.models.family import ModelSpec, parse_spec

_FOLDER = resources.files("heedful.models") / "presets"


def preset_names() -> list[str]:
    """The names of all presets, in alphabetical order."""
    return sorted(
        file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml")
    )


def read_preset(name: str) -> dict[str, Any]:
    """The settings of a translator's preset, as the nested data that `RunSettings` takes.

    Raises:
        ModelError: when there is no such preset, or it is of another kind of model.
    """
    if has_spec(name):
        translators = [other for other in preset_names() if not has_spec(other)]
        raise ModelError(
            f"The preset {name!r} is a published model, not a size of translators",
            remedy=f"Presets of translators: {', '.join(translators)}",
        )
    return {k: v for k, v in _read(name).items() if k != "description"}


def has_spec(name: str) -> bool:
    """Whether a preset is the complete spec of a published model.

    Raises:
        ModelError: when there is no such preset.
    """
    return "spec" in _read(name)


def read_preset_spec(name: str) -> ModelSpec:
    """The complete spec of a published model.

    Raises:
        ModelError: when there is no such preset, or it is a size of translators.
    """
    if not has_spec(name):
        published = [other for other in preset_names() if has_spec(other)]
        raise ModelError(
            f"The preset {name!r} is a size of translators, whose vocabulary is still open",
            remedy=f"Published models: {', '.join(published)}",
        )
    return parse_spec(_read(name)["spec"], where=f"preset {name}")


def published_parameters(name: str) -> int | None:
    """How many parameters the published model has; None for a size of translators.

    Raises:
        ModelError: when there is no such preset.
    """
    count = _read(name).get("published_parameters")
    return None if count is None else int(count)


def describe_preset(name: str) -> str:
    """One line about what a preset is for."""
    return str(_read(name)["description"])


def _read(name: str) -> dict[str, Any]:
    if name not in preset_names():
        raise ModelError(f"No preset is called {name!r}", remedy=suggest(name, preset_names()))
    text = (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    return read_toml_text(text, where=f"preset {name}")
