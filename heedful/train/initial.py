"""Beginning with the weights of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.config import flat
from heedful.errors import ModelError
from heedful.models.checkpoint import (
    find_model_directory,
    load_tokenizers,
    read_spec,
    read_weights,
)
from heedful.models.family import EncoderSpec
from heedful.models.weights import canonical_weights, load_weights

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.models.family import ModelSpec
    from heedful.text.pair import TokenizerPair


def tokenizers_of(directory: Path) -> TokenizerPair | None:
    """The tokenizers of a model or run directory.

    Raises:
        ModelError: when there is no model, or its tokenizers are damaged.
    """
    directory = find_model_directory(directory)
    return load_tokenizers(directory, read_spec(directory))


def begin_with(model: AnyModel, directory: Path) -> list[str]:
    """Put a trained model's weights into a new model of the same kind and size.

    What is predicted from an encoder's states may be something else: heads that only the new model
    has, and its pooler, keep their first weights; those that only the trained one has are left out.

    Args:
        model: with first weights of its own.
        directory: a model or run directory.

    Returns:
        Which parts these are, in a sentence each; none where nothing is new or left out.

    Raises:
        ModelError: naming the settings in which the two differ, dropout aside.
    """
    directory = find_model_directory(directory)
    before, parts_before = _settings_and_parts(read_spec(directory))
    now, parts = _settings_and_parts(model.spec)
    changed = tuple(f"{part}." for part in parts_before ^ parts)
    different = [
        f"{key} ({before.get(key)!r} there, {now.get(key)!r} here)"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
        and not key.endswith("dropout")
        and not key.startswith(changed)
    ]
    if different:
        raise ModelError(
            f"The model to begin with is another one: {', '.join(different)}",
            where=str(directory),
            remedy="Give the dials it was trained with, for example its run's config.toml",
        )
    weights = read_weights(directory)
    left, new = sorted(parts_before - parts), sorted(parts - parts_before)
    for part in left:
        weights = {name: t for name, t in weights.items() if not name.startswith(f"{part}.")}
    for name, tensor in canonical_weights(model).items():
        if any(name.startswith(f"{part}.") for part in new):
            weights[name] = tensor
    load_weights(model, weights, where=str(directory))
    told = [f"{part} of {directory} is left out" for part in left]
    return told + [f"{part} is not in {directory} and begins anew" for part in new]


def _settings_and_parts(spec: ModelSpec) -> tuple[dict[str, Any], set[str]]:
    """A model's settings by dotted keys, and the addresses of what another may lack.

    The settings of such a part are among the settings of a model that has it.
    """
    values = spec.plain()
    if not isinstance(spec, EncoderSpec):
        return flat(values), set()
    heads = {head.kind: head.plain() for head in spec.heads}
    parts = {f"heads.{kind}" for kind in heads}
    if values.pop("pooler"):
        parts.add("pooler")
    return flat(values | {"heads": heads}), parts
