"""Presets: named sizes of models as TOML files in the folder `presets`.

A preset either holds tables of a run's settings for a size of translators: `[model]`,
`[schedule]` …. Or it holds the complete `[spec]` of a published model and its number of parameters.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any

from heedful.config import read_toml_text
from heedful.errors import ModelError, suggest

if TYPE_CHECKING:
    from heedful.models.model_spec import ModelSpec

TASKS_OF_KIND = {
    "translator": ("translation", "span_corruption", "denoising"),
    "causal_lm": ("causal_lm", "tokens", "dpo", "grpo"),
    "encoder": ("masked_lm", "classify", "tag", "answer", "reward"),
    "vision": ("images",),
    "two_towers": ("contrast",),
    "denoiser": ("diffusion",),
    "resnet": ("images",),
    "autoencoder": ("autoencode",),
}
"""Training tasks by kind of model."""

_TEXT_TASKS = (*TASKS_OF_KIND["translator"], *TASKS_OF_KIND["causal_lm"], *TASKS_OF_KIND["encoder"])

# Found as a package resource and not by `__file__`: the package may be imported from a zip file.
_FOLDER = resources.files("heedful.models") / "presets"


def preset_names() -> list[str]:
    """Return the names of all presets, in alphabetical order."""
    return sorted(
        file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml")
    )


def read_preset(name: str) -> dict[str, Any]:
    """Return the settings of a preset, as the nested data that `RunSettings` takes.

    A published model has no settings: its spec fixes the shape of the model.

    Raises:
        ModelError: when there is no such preset.
    """
    not_settings = ("description", "spec", "published_parameters")
    return {key: value for key, value in _read(name).items() if key not in not_settings}


def preset_tasks(name: str) -> tuple[str, ...]:
    """Return the tasks of `heedful train` that a preset fits.

    Raises:
        ModelError: when there is no such preset.
    """
    # A preset of sizes fits every text task: encoders and decoders each use a part of the shape.
    return TASKS_OF_KIND[_read(name)["spec"]["kind"]] if has_spec(name) else _TEXT_TASKS


def has_spec(name: str) -> bool:
    """Return whether a preset is the complete spec of a published model.

    Raises:
        ModelError: when there is no such preset.
    """
    return "spec" in _read(name)


def read_preset_spec(name: str) -> ModelSpec:
    """Return the complete spec of a published model.

    Raises:
        ModelError: when there is no such preset, or it is a preset of settings.
    """
    if not has_spec(name):
        published = [other for other in preset_names() if has_spec(other)]
        raise ModelError(
            f"The preset {name!r} is a size of translators, whose vocabulary is still open",
            remedy=f"Published models: {', '.join(published)}",
        )
    from heedful.models.model_spec import parse_spec  # `--help` needs only the names of presets

    return parse_spec(_read(name)["spec"], where=f"preset {name}")


def preset_spec(name: str, vocabulary: int | None = None) -> ModelSpec:
    """Return the complete spec of any preset.

    Args:
        name: name of the preset.
        vocabulary: size of a translator's joint vocabulary; the preset's tokenizer size if None.

    Raises:
        ModelError: when there is no such preset, or it has a vocabulary of its own.
    """
    from heedful.models.shape import TranslatorShape
    from heedful.models.shape_to_spec import translator_spec
    from heedful.text.tokenizer_spec import TokenizerSpec

    if has_spec(name):
        if vocabulary is not None:
            raise own_vocabulary_error(name)
        return read_preset_spec(name)
    settings = read_preset(name)
    where = f"preset {name}"
    shape = TranslatorShape.parse(settings.get("model", {}), where=where)
    tokenizer = TokenizerSpec.parse(settings.get("tokenizer", {}), where=where)
    # The vocabulary size that its tokenizer reaches on a large enough corpus.
    size = vocabulary if vocabulary is not None else tokenizer.vocabulary_size
    return translator_spec(shape, size, size)


def own_vocabulary_error(model: str) -> ModelError:
    """Return the error for a vocabulary size given with a model that has a vocabulary."""
    return ModelError(
        "A model has a vocabulary of its own", where=model, remedy="Leave out --vocabulary"
    )


def published_parameters(name: str) -> int | None:
    """Return the number of parameters of a published model; None for a preset of settings.

    Raises:
        ModelError: when there is no such preset.
    """
    count = _read(name).get("published_parameters")
    return None if count is None else int(count)


def describe_preset(name: str) -> str:
    """Return the description of a preset, one line."""
    return str(_read(name)["description"])


def _read(name: str) -> dict[str, Any]:
    # Only known names are accepted, and no paths: `../x` must not read another file.
    if name not in preset_names():
        raise ModelError(f"No preset is called {name!r}", remedy=suggest(name, preset_names()))
    text = (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    return read_toml_text(text, where=f"preset {name}")
