"""Hugging Face's architectures: config.json and tensors of each, both ways, and the list of all.

Each module of `heedful.interop.architectures` describes one by an `Architecture` of the name
ARCHITECTURE. Modules are found by their files, and loaded when one is needed.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from heedful.errors import ModelError, UserError, suggest
from heedful.interop import architectures
from heedful.interop.config_fields import Fields, sizes_checked
from heedful.interop.rewrites import Rewrite, Rewritten, apply_rewrites
from heedful.interop.tensor_table import Table
from heedful.models.model_spec import CommonSpec, ModelSpec

MODEL_TYPES = tuple(sorted(module.name for module in pkgutil.iter_modules(architectures.__path__)))
"""The `model_type` of every architecture, which is also the name of its module."""

Names = Collection[str]
S = TypeVar("S", bound=CommonSpec)

_MAX_REASONS = 4


@dataclass(frozen=True, kw_only=True)
class Architecture(Generic[S]):
    """One architecture of Hugging Face, read and written.

    Args:
        model_type: its name in config.json.
        kind: the kind of model that it is here, as in `ModelSpec`.
        read: config.json and the tensors' names to a spec. The names tell what a configuration
            leaves open, such as a pooler; without names the model is as its class usually is.
        write: a spec to the content of config.json, without `model_type`.
        tensors: a spec and the tensors' names to the table of its tensors; without names it is that
            of an export.
        rewrites: what puts a model of ours into a form that the architecture can express.
        compared: the spec as `differences` compares it: without what config.json leaves to other
            files.
        missing: the parts of a spec that the architecture has no place for, which then is all
            that `differences` says.
    """

    model_type: str
    kind: str
    read: Callable[[Fields, Names], S]
    write: Callable[[S], dict[str, Any]]
    tensors: Callable[[S, Names], Table]
    rewrites: tuple[Rewrite[S], ...] = ()
    compared: Callable[[S], S] = lambda spec: spec
    missing: Callable[[S], list[str]] = lambda spec: []

    def read_config(self, config: Mapping[str, Any], *, where: str, names: Names = ()) -> S:
        """Return the spec that a config.json describes.

        Args:
            config: its content.
            where: the file, for error messages.
            names: of the tensors beside it; see `read`.

        Raises:
            ModelError: when a setting is missing, wrong or has no counterpart here, or there are
                more layers than tensors.
            ConfigError: when a size or a probability is out of its range.
        """
        with sizes_checked(where):
            spec = self.read(Fields(config, where), names)
        check_layers(sum(stack.num_layers for stack in spec.stacks().values()), names, where)
        return spec

    def write_config(self, spec: S) -> dict[str, Any]:
        """Return a config.json for a spec that `fits`; for another spec it says less."""
        return {"model_type": self.model_type, **self.write(spec)}

    def table(self, spec: S, names: Names = ()) -> Table:
        """Return the table of a model's tensors, of files with these names or of an export."""
        return self.tensors(spec, names)

    def differences(self, spec: S) -> list[str]:
        """Return what a written config.json leaves out of a spec or says otherwise, a line each."""
        if missing := self.missing(spec):
            return missing
        try:
            names = self.table(spec).their_names()
            again = self.read_config(self.write_config(spec), where="config.json", names=names)
        except UserError as error:  # a value has no name there
            return [error.what]
        ours, theirs = (dict(_leaves(_canonical(each))) for each in (self.compared(spec), again))
        lines = (  # one where layers differ alike
            f"{_shown_path(path)} is {_show(ours, path)} here and {_show(theirs, path)} there"
            for path in sorted(ours.keys() | theirs.keys())
            if ours.get(path) != theirs.get(path)
        )
        return list(dict.fromkeys(lines))

    def fits(self, spec: ModelSpec) -> bool:
        """Return whether a written config.json says all of a spec."""
        return spec.kind == self.kind and not self.differences(spec)  # type: ignore[arg-type]


def check_layers(num_layers: int, names: Names, where: str) -> None:
    """Refuse more layers than tensors, before anything goes through the layers one by one.

    Args:
        num_layers: as a config.json has it, which may be any number.
        names: of the tensors; () where they are not known.
        where: the file, for the error message.

    Raises:
        ModelError: naming both numbers.
    """
    if names and num_layers > len(names):
        raise ModelError(
            f"The configuration has {num_layers} layers, and the weights only {len(names)} tensors",
            where=where,
            remedy="Check that config.json and the weights belong together",
        )


def find_architecture(model_type: str, *, where: str) -> Architecture[Any]:
    """Return the architecture of a `model_type`.

    Args:
        model_type: as config.json has it.
        where: that file, for the error message.

    Raises:
        ModelError: when none has this name.
    """
    if model_type not in MODEL_TYPES:
        raise ModelError(
            f"Models of type {model_type!r} cannot be imported",
            where=where,
            remedy=suggest(model_type, MODEL_TYPES),
        )
    return _load(model_type)


def fitting_architecture(
    spec: ModelSpec, model_type: str | None, *, where: str
) -> tuple[Architecture[Any], Rewritten[Any]]:
    """Return an architecture that computes what a model of ours does, and the model in its form.

    Args:
        spec: of the model.
        model_type: the one it was imported from, tried first.
        where: the model, for the error message.

    Raises:
        ModelError: when there is none, with the differences from each.
    """
    reasons: list[str] = []
    for architecture in _architectures(model_type):
        if architecture.kind != spec.kind:
            continue
        forms = [apply_rewrites(spec, ())]
        if architecture.rewrites:
            forms.append(apply_rewrites(spec, architecture.rewrites))
        for form in forms:
            differences = architecture.differences(form.spec)
            if not differences:
                return architecture, form
            more = len(differences) - _MAX_REASONS
            rest = f" and {more} more" if more > 0 else ""
            listed_differences = "; ".join(differences[:_MAX_REASONS])
            reasons.append(f"{architecture.model_type}: {listed_differences}{rest}")
    raise ModelError(
        f"None of their architectures computes what this model does. {'. '.join(reasons)}",
        where=where,
        remedy="Train a model with settings that one has; the guide on exporting lists them",
    )


def _architectures(first: str | None) -> Iterator[Architecture[Any]]:
    for name in sorted(MODEL_TYPES, key=lambda name: name != first):
        yield _load(name)


def _load(model_type: str) -> Architecture[Any]:
    module = importlib.import_module(f"{architectures.__name__}.{model_type}")
    architecture: Architecture[Any] = module.ARCHITECTURE
    return architecture


def _canonical(spec: CommonSpec) -> dict[str, Any]:
    """Return a spec as plain data with every default of attention written out.

    Settings are left out that do not change what a finished model of text computes: dropout,
    masks of packed texts, and the longest text of a language model, which is advice.
    """
    plain = spec.plain()
    for name, stack in spec.stacks().items():
        plain[name]["pattern"] = [block.plain() for block in stack.blocks]
    if not spec.generates:
        return plain
    if spec.reads == "texts":
        plain.pop("max_length", None)
    canonical: dict[str, Any] = _canonical_part(plain, plain["width"])
    return canonical


def _canonical_part(part: Any, width: int) -> Any:
    if isinstance(part, list):
        return [_canonical_part(item, width) for item in part]
    if not isinstance(part, dict):
        return part
    part = {
        key: _canonical_part(value, width)
        for key, value in part.items()
        if key not in ("dropout", "final_dropout")
    }
    if "num_heads" in part:
        heads = part["num_heads"]
        head_width = part.setdefault("head_width", width // heads)
        part.setdefault("num_kv_heads", heads)
        part.setdefault("scale", head_width**-0.5)
        part.setdefault("output_bias", part["bias"])
        part["mask"] = _without_segments(part["mask"])
    return part


def _without_segments(mask: dict[str, Any]) -> dict[str, Any]:
    if mask["kind"] != "all_of":
        return mask
    parts = [part for part in mask["parts"] if part["kind"] != "segment"]
    return parts[0] if len(parts) == 1 else {"kind": "all_of", "parts": parts}


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values of nested plain data that hold no others, each with its path."""
    if isinstance(value, dict):
        items = list(value.items())
    elif value and isinstance(value, list) and all(isinstance(item, dict) for item in value):
        # Sub-layers and heads are told by their names, blocks of a pattern by their numbers.
        items = [(str(item.get("name", number)), item) for number, item in enumerate(value)]
    else:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(item, (*path, key))


def _shown_path(path: tuple[str, ...]) -> str:
    dotted = ".".join(key for key in path if key not in ("sublayers", "part"))
    return re.sub(r"pattern\.\d+", "block", dotted)


def _show(values: Mapping[tuple[str, ...], Any], path: tuple[str, ...]) -> str:
    return json.dumps(values[path], ensure_ascii=False) if path in values else "not"
