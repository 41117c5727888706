"""Which file here reads which of their architectures; each is loaded when it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol, cast

from heedful.errors import ModelError, suggest
from heedful.interop.forms import Form, Rewrite, in_turn
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

_SHOWN = 4


class Architecture(Protocol):
    """What a module of this package is that reads and writes an architecture of theirs."""

    MODEL_TYPES: tuple[str, ...]
    FORMS: tuple[Rewrite, ...]
    """How a model may be put for it to say it."""

    def read_config(
        self, config: Mapping[str, Any], *, where: str, names: Collection[str] = ()
    ) -> ModelSpec:
        """Their config.json as a spec of ours; the tensors' names tell what it leaves open."""
        ...

    def write_config(self, spec: ModelSpec) -> dict[str, Any]:
        """A config.json for a spec without `differences`."""
        ...

    def table(self, spec: ModelSpec, names: Collection[str] = ()) -> Table:
        """Their tensors and ours."""
        ...

    def differences(self, spec: ModelSpec) -> list[str] | None:
        """What of a spec the architecture cannot say; None for another kind of model."""
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


def fitting_architecture(
    spec: ModelSpec, model_type: str | None, *, where: str
) -> tuple[Architecture, Form]:
    """An architecture of theirs that computes what a model of ours does.

    Args:
        spec: of the model.
        model_type: the one it was imported from, tried first.
        where: the model, for the error message.

    Returns:
        The architecture, and the form of the model that it can say.

    Raises:
        ModelError: when there is none, listing for each what does not fit.
    """
    reasons: list[str] = []
    for name, architecture in _candidates(model_type):
        forms = [in_turn(spec, ())]
        if architecture.FORMS:
            forms.append(in_turn(spec, architecture.FORMS))
        for form in forms:
            found = architecture.differences(form.spec)
            if found == []:
                return architecture, form
        if found is not None:
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            reasons.append(f"{name}: {'; '.join(found[:_SHOWN])}{more}")
    raise ModelError(
        f"None of their architectures computes what this model does. {'. '.join(reasons)}",
        where=where,
        remedy="Train a model with settings that one has; the guide on exporting lists them",
    )


def _candidates(model_type: str | None) -> Iterator[tuple[str, Architecture]]:
    first = [MODULES[model_type]] if model_type is not None and model_type in MODULES else []
    for name in dict.fromkeys([*first, *MODULES.values()]):
        yield name, _load(name)


def _load(name: str) -> Architecture:
    return cast(Architecture, importlib.import_module(f"heedful.interop.{name}"))
