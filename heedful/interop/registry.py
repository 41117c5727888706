"""Which file here reads which of their architectures; each is loaded when it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol, cast

from heedful.errors import ModelError, suggest
from heedful.interop.table import Table
from heedful.models.family import ModelSpec

MODULES: Mapping[str, str] = {
    "bert": "bert",
    "roberta": "roberta",
    "gpt2": "gpt2",
    "llama": "llama",
    "t5": "t5",
    "bart": "bart",
    "marian": "marian",
    "vit": "vit",
}
"""Their `model_type` to the module that reads it."""


class Architecture(Protocol):
    """What a module of this package is that reads and writes an architecture of theirs."""

    MODEL_TYPES: tuple[str, ...]

    def read_config(
        self, config: Mapping[str, Any], *, where: str, names: Collection[str] = ()
    ) -> ModelSpec:
        """Their config.json as a spec of ours; the tensors' names tell what it leaves open."""
        ...

    def write_config(self, spec: ModelSpec) -> dict[str, Any]:
        """A config.json for a spec that `fits`."""
        ...

    def table(self, spec: ModelSpec, names: Collection[str] = ()) -> Table:
        """Their tensors and ours."""
        ...

    def fits(self, spec: ModelSpec) -> bool:
        """Whether the architecture computes what the spec says."""
        ...


def find_architecture(model_type: str, *, where: str) -> Architecture:
    """The module that reads a `model_type`.

    Args:
        model_type: as their config.json has it.
        where: that file, for the error message.

    Raises:
        ModelError: when none does.
    """
    if model_type not in MODULES:
        raise ModelError(
            f"Models of type {model_type!r} cannot be imported",
            where=where,
            remedy=suggest(model_type, MODULES),
        )
    return _load(MODULES[model_type])


def fitting_architecture(spec: ModelSpec, model_type: str | None, *, where: str) -> Architecture:
    """An architecture of theirs that computes what a model of ours does.

    Args:
        spec: of the model.
        model_type: the one it was imported from, tried first.
        where: the model, for the error message.

    Raises:
        ModelError: when there is none.
    """
    for architecture in _candidates(model_type):
        if architecture.fits(spec):
            return architecture
    raise ModelError(
        "None of their architectures computes what this model does",
        where=where,
        remedy=f"Models can be exported that are built like one of {', '.join(MODULES)}",
    )


def _candidates(model_type: str | None) -> Iterator[Architecture]:
    first = [MODULES[model_type]] if model_type is not None and model_type in MODULES else []
    for name in dict.fromkeys([*first, *MODULES.values()]):
        yield _load(name)


def _load(name: str) -> Architecture:
    return cast(Architecture, importlib.import_module(f"heedful.interop.{name}"))
