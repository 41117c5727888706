"""Architectures of Hugging Face: conversion of config.json and tensors in both directions.

Each module of `heedful.interop.architectures` describes one architecture by its constant
ARCHITECTURE. The list of architectures is the list of these modules, which are imported on demand.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from heedful.errors import ModelError, UserError
from heedful.interop import architectures
from heedful.interop.config_fields import Fields, sizes_checked
from heedful.interop.export_advice import flags_to_change, refusal, without_flag
from heedful.interop.inert_settings import is_inert
from heedful.interop.rewrites import Rewrite, Rewritten, apply_rewrites
from heedful.interop.tensor_table import Table
from heedful.interop.unread_types import unread_type
from heedful.models.model_spec import CommonSpec, ModelSpec
from heedful.registry import find, registered

# Names of modules have no hyphens, and no two modules of the package share one.
_OTHERWISE = {
    "deberta_v2": "deberta-v2",
    "xlm_roberta": "xlm-roberta",
    "xlm_roberta_xl": "xlm-roberta-xl",
    "mamba_models": "mamba",
    "mamba2_models": "mamba2",
    "rwkv_models": "rwkv",
}
_MODULES = {
    _OTHERWISE.get(name := module.name.rpartition(".")[2], name): module.name
    for module in pkgutil.walk_packages(architectures.__path__, f"{architectures.__name__}.")
    if not module.ispkg
}
MODEL_TYPES = tuple(sorted(_MODULES))
"""The `model_type` of every architecture, which is also the name of its module in a family."""

_USUAL = {"bert", "roberta", "gpt2", "llama", "gpt_neox", "t5", "bart", "marian", "vit"}
"""Architectures that an export prefers among those that compute the same."""

Names = Collection[str]
S = TypeVar("S", bound=CommonSpec)


@dataclass(frozen=True, kw_only=True)
class Architecture(Generic[S]):
    """Import and export of one architecture of Hugging Face.

    Args:
        model_type: name of the architecture in config.json.
        kind: kind of the model here, as in `ModelSpec`.
        read: function from config.json and the names of tensors to a spec. The names decide what
            a config leaves open, e.g. a pooler; without names the usual model of the class is
            assumed.
        write: function from a spec to the content of config.json without `model_type`.
        tensors: function from a spec and the names of tensors to their table; without names, the
            table of an export.
        rewrites: rewrites that bring more models of ours into a form of this architecture.
        compared: function that drops from a spec what config.json leaves to other files, before
            `differences` compares it.
        missing: function from a spec to descriptions of parts that the architecture lacks.
        classes: classes of transformers that compute it, as `architectures` of config.json names
            them; any class if empty.
        inert: settings without effect on its outputs, beside those of `inert_settings`.
    """

    family: ClassVar[str] = "architecture"

    model_type: str
    kind: str
    read: Callable[[Fields, Names], S]
    write: Callable[[S], dict[str, Any]]
    tensors: Callable[[S, Names], Table]
    rewrites: tuple[Rewrite[S], ...] = ()
    compared: Callable[[S], S] = lambda spec: spec
    missing: Callable[[S], list[str]] = lambda spec: []
    classes: tuple[str, ...] = ()
    inert: tuple[str, ...] = ()

    def known_as(self) -> str:
        """Return the `model_type`; see `Registrable`."""
        return self.model_type

    def read_config(self, config: Mapping[str, Any], *, where: str, names: Names = ()) -> S:
        """Return the spec that a config.json describes, by the names of the tensors; see `read`.

        Raises:
            ModelError: when a field is missing, wrong, unknown or without counterpart here, or
                there are more layers than tensors.
            ConfigError: when a size or a probability is out of range.
        """
        fields = Fields(config, where)
        written = fields.texts("architectures")
        if self.classes and (len(written) > 1 or not set(self.classes).issuperset(written)):
            raise fields.wrong("architectures", f"Heedful reads one of {', '.join(self.classes)}")
        with sizes_checked(where):
            spec = self.read(fields, names)
        fields.refuse_unread(lambda key, value: is_inert(key, value, self.inert))
        check_layers(sum(stack.num_layers for stack in spec.stacks().values()), names, where)
        return spec

    def write_config(self, spec: S) -> dict[str, Any]:
        """Return a config.json for a spec; it describes the spec completely if it `fits`."""
        return {"model_type": self.model_type, **self.write(spec)}

    def table(self, spec: S, names: Names = ()) -> Table:
        """Return the table of a model's tensors, for files with these names or for an export."""
        return self.tensors(spec, names)

    def differences(self, spec: S) -> list[str]:
        """Return the differences between a spec and its own config.json read back, a line each."""
        if missing := self.missing(spec):
            return missing
        try:
            again = self.nearest(spec)
        except UserError as error:
            return [error.what]
        ours, theirs = (dict(_leaves(_canonical(each))) for each in (self.compared(spec), again))
        lines: dict[str, None] = {}
        for path in sorted(ours.keys() | theirs.keys()):
            if ours.get(path) != theirs.get(path):
                dotted = ".".join(key for key in path if key not in ("sublayers", "part"))
                # The layer's number is left out: twelve layers that differ in the same way give one
                # line.
                shown = re.sub(r"pattern\.\d+", "block", dotted)
                lines[f"{shown} is {_show(ours, path)} here and {_show(theirs, path)} there"] = None
        return list(lines)

    def nearest(self, spec: S) -> S:
        """Return the spec that its own config.json describes, read back.

        Raises:
            UserError: when a part of the model has no name there.
        """
        # Round trip: whether an architecture can express a spec follows from write and read,
        # without further rules.
        names = self.table(spec).their_names()
        return self.read_config(self.write_config(spec), where="config.json", names=names)

    def fits(self, spec: ModelSpec) -> bool:
        """Return True if a config.json of this architecture describes a spec completely."""
        return spec.kind == self.kind and not self.differences(spec)  # type: ignore[arg-type]


def check_layers(num_layers: int, names: Names, where: str) -> None:
    """Raise a `ModelError` when a config.json, which is not trusted, has too many layers."""
    # A config with 10^12 layers would otherwise fill the memory with rules before any tensor is
    # missed.
    if names and num_layers > len(names):
        raise ModelError(
            f"The configuration has {num_layers} layers, and the weights only {len(names)} tensors",
            where=where,
            remedy="Check that config.json and the weights belong together",
        )


def find_architecture(
    model_type: str, *, where: str, config: Mapping[str, Any] = MappingProxyType({})
) -> Architecture[Any]:
    """Return the architecture of a `model_type`.

    Args:
        model_type: type that config.json names.
        where: name of the file, for the error message.
        config: content of the file, by which the message says what is missing here.

    Raises:
        ModelError: when no architecture is called so.
    """
    if model_type in MODEL_TYPES:
        return _load(model_type)
    try:
        found: Architecture[Any] = find("architecture", model_type, MODEL_TYPES)
    except ValueError:
        # No "did you mean": nobody typed the word, and a file with another one is another model.
        raise ModelError(
            unread_type(model_type, config, _unread_by_each),
            where=where,
            remedy="Take a model of another type, or add an architecture by heedful.register "
            f"(docs/guides/your-own-parts.md). Known: {', '.join(MODEL_TYPES)}; "
            "docs/guides/other-models.md says what becomes of them",
        ) from None
    return found


def _unread_by_each(config: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield each architecture that can read a config.json, and the settings it does not know."""
    # The class is no setting, and some architectures look their heads up by it.
    config = {key: value for key, value in config.items() if key != "architectures"}
    for architecture in _architectures(None):
        fields = Fields(config, "config.json")
        try:
            with sizes_checked("config.json"):
                architecture.read(fields, ())
        except UserError:
            continue
        inert = architecture.inert
        unread = fields.unread(lambda key, value, inert=inert: is_inert(key, value, inert))  # type: ignore[misc]
        asked = len(config) - len(fields.unread(lambda key, value: False))
        # A class with a usual value for every setting reads any file.
        if asked > len(unread):
            yield architecture.model_type, unread


def fitting_architecture(
    spec: ModelSpec, model_type: str | None, *, where: str
) -> tuple[Architecture[Any], Rewritten[Any]]:
    """Return an architecture that can express a model of ours, and the model rewritten for it.

    Args:
        spec: spec of the model.
        model_type: architecture that the model was imported from, which is tried first.
        where: name of the model, for the error message.

    Raises:
        ModelError: when no architecture can express it, with the flags that make it the nearest.
    """
    tried: list[tuple[Architecture[Any], Any, list[str]]] = []
    for architecture in _architectures(model_type):
        if architecture.kind != spec.kind:
            continue
        # The model is tried unchanged first, as a rewrite unties tables or rounds.
        forms = [apply_rewrites(spec, ())]
        if architecture.rewrites:
            forms.append(apply_rewrites(spec, architecture.rewrites))
        for form in forms:
            differences = architecture.differences(form.spec)
            if not differences:
                return architecture, form
            tried.append((architecture, form.spec, differences))
    if pruned := [f"{name}.kept_heads" for name, each in spec.stacks().items() if each.is_pruned]:
        # No flag of a training gives pruned heads back.
        raise ModelError(
            f"No architecture of transformers has layers with fewer heads: {', '.join(pruned)}",
            where=where,
            remedy="Export the model as it was before heads were pruned",
        )
    if not tried:
        raise ModelError(
            f"No architecture of transformers that Heedful writes is of the kind {spec.kind!r}",
            where=where,
            remedy="Keep it as a model directory of Heedful",
        )
    advice = [(each.model_type, *_advice(each, form, lines)) for each, form, lines in tried]
    # A difference without a flag outweighs those that a person can set. The first of equals, so the
    # oldest of a family.
    name, flags, reasons = min(advice, key=lambda each: (len(each[2]), len(each[1])))
    other = "ctranslate2" if spec.generates else "onnx"
    raise ModelError(
        refusal(name, flags, reasons),
        where=where,
        remedy=f"Train one like it, or try --format {other}",
    )


def _advice(
    architecture: Architecture[S], spec: S, differences: list[str]
) -> tuple[list[str], list[str]]:
    """Return the flags to change, and the differences that no flag takes away."""
    try:
        flags = flags_to_change(spec, architecture.nearest(spec))
    # A part has no name there, as that of another model than a Transformer.
    except UserError:
        flags = flags_to_change(spec, None)
        return flags, [] if flags else differences
    return flags, without_flag(differences) or ([] if flags else differences)


def _architectures(first: str | None) -> Iterator[Architecture[Any]]:
    if first is not None and first not in MODEL_TYPES:
        yield find_architecture(first, where="origin.model_type")

    # The named architecture, then those that most programs read, then the shortest names: two of
    # them may compute the same (T5 and mT5, LLaMA and Phi 3 without windows).
    def order(name: str) -> tuple[bool, bool, int]:
        return name != first, name not in _USUAL, len(name)

    for name in sorted(MODEL_TYPES, key=order):
        yield _load(name)
    yield from (each for name, each in registered("architecture") if name != first)


def _load(model_type: str) -> Architecture[Any]:
    module = importlib.import_module(_MODULES[model_type])
    architecture: Architecture[Any] = module.ARCHITECTURE
    return architecture


def _canonical(spec: CommonSpec) -> dict[str, Any]:
    """Return a spec as plain data with every default of attention written out.

    Settings that do not change the output of a trained model are left out: dropout, segment masks
    of packed sequences, and the longest sequence of a language model, which is advice.
    """
    plain = spec.plain()
    for name, stack in spec.stacks().items():
        # Layers are compared one by one, since equal layers may be written as one pattern or as
        # several.
        own = plain[name].get("encoder", plain[name])  # in a tower of a model of two
        own["pattern"] = [block.plain() for block in stack.blocks]
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
    if part.get("kind") == "attention":  # other mixers with heads have no mask or scale
        heads = part["num_heads"]
        head_width = part.setdefault("head_width", width // heads)
        # Unset means one key/value head per query head, D / H channels, and the scale of Vaswani
        # (2017).
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
    """Yield the leaves of nested plain data, each with its path."""
    if isinstance(value, dict):
        items = list(value.items())
    elif value and isinstance(value, list) and all(isinstance(item, dict) for item in value):
        # Sub-layers and heads are identified by their names, blocks of a pattern by their index.
        items = [(str(item.get("name", number)), item) for number, item in enumerate(value)]
    else:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(item, (*path, key))


def _show(values: Mapping[tuple[str, ...], Any], path: tuple[str, ...]) -> str:
    return json.dumps(values[path], ensure_ascii=False) if path in values else "not"
