"""Parts from outside the package, by name: mixers, biases, tokenizers, tasks, metrics and others.

Code registers them by `heedful.register`. An installed distribution names them, or a module that
registers them, as entry points of the group `heedful.plugins`; these are loaded when an unknown
name is looked up, so that nothing else waits for them. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, Protocol, TypeVar

from heedful.errors import ConfigError

GROUP = "heedful.plugins"

FAMILIES: Mapping[str, str] = {
    "mixer": "heedful.nn.spec:PARTS",
    "position bias": "heedful.nn.spec:BIASES",
    "tokenizer": "heedful.text.tokenizer_spec:KINDS",
    "architecture": "heedful.interop.architecture:MODEL_TYPES",
    "record reader": "heedful.data.record_files:READERS",
    "task": "heedful.train.task_rules:TASKS",
    "metric": "heedful.train.task_rules:METRICS",
    "tracker": "heedful.train.trackers:TRACKERS",
}
"""Address of the package's own names, for each family."""


ON_USE: Mapping[str, Mapping[str, str]] = {
    "mixer": {
        "triangle_multiplication": "heedful.nn.pair_mixer_spec:TriangleMultiplicationSpec",
        "triangle_attention": "heedful.nn.pair_mixer_spec:TriangleAttentionSpec",
    },
    "metric": {
        "rouge1": "heedful.evaluate.text_metrics:Rouge1",
        "rouge2": "heedful.evaluate.text_metrics:Rouge2",
        "rougeL": "heedful.evaluate.text_metrics:RougeL",
        "answer_exact": "heedful.evaluate.text_metrics:AnswerExact",
        "answer_f1": "heedful.evaluate.text_metrics:AnswerF1",
        "entity_f1": "heedful.evaluate.text_metrics:EntityF1",
        "bracket_f1": "heedful.evaluate.brackets:BracketF1",
    },
}
"""Addresses of the package's parts that few models have; no other model waits for their modules."""


class Registrable(Protocol):
    """A class or an object that can be registered."""

    @property
    def family(self) -> str:
        """One of `FAMILIES`."""

    def known_as(self) -> str:
        """Return its name in files and settings."""


Entry = TypeVar("Entry", bound=Registrable)

_entries: dict[str, dict[str, Any]] = {family: {} for family in FAMILIES}
_loaded: set[EntryPoint] = set()


def register(entry: Entry) -> Entry:
    """Make a part from outside the package known by its name; see `heedful.register`.

    Args:
        entry: a subclass of `CommonPartSpec`, `CommonBiasSpec`, `RegisteredTokenizer`,
            `RegisteredMetric` or `Tracker`, an `Architecture`, a `RegisteredTask` or
            `RegisteredRecords`. The same class again, as from a notebook's cell, replaces the
            first.

    Raises:
        ConfigError: when it belongs to no family, or another entry has its name.
    """
    family: str = getattr(entry, "family", "")
    if family not in FAMILIES:
        raise ConfigError(
            f"{entry!r} cannot be registered",
            where="heedful.register",
            remedy="Register a spec of a mixer or a position bias, a tokenizer, a metric, "
            "a tracker, an Architecture, a RegisteredTask or RegisteredRecords",
        )
    name, others = entry.known_as(), _entries[family]
    # Resolved by address: importing these modules here would be an upward import.
    is_own = name in resolve_name(FAMILIES[family]) or name in ON_USE.get(family, ())
    if is_own or (name in others and _source(others[name]) != _source(entry)):
        raise ConfigError(
            f"There is a {family} called {name!r} already",
            where="heedful.register",
            remedy="Choose another name",
        )
    others[name] = entry
    return entry


def find(family: str, name: str, own: Sequence[str]) -> Any:
    """Return the entry that is registered under a name, or the package's own that few models have.

    Args:
        family: one of `FAMILIES`.
        name: name in files and settings.
        own: the package's own names, for the error message.

    Raises:
        ValueError: when there is none; the message lists known names and how to register others.
        ConfigError: when a plug-in cannot be loaded.
    """
    if (address := ON_USE.get(family, {}).get(name)) is not None:
        return resolve_name(address)
    if name not in _entries[family]:
        _load_plugins()
    if name not in _entries[family]:
        # Only names are looked up, never import paths: reading a stranger's model would otherwise
        # run whatever its file names.
        known = ", ".join([*own, *_entries[family]])
        raise ValueError(
            f"no {family} is called {name!r}; heedful.register, or an entry point of the group "
            f"{GROUP}, adds one. Known: {known}"
        )
    return _entries[family][name]


def registered(family: str) -> Iterator[tuple[str, Any]]:
    """Yield the registered names of a family with their entries; loads all plug-ins."""
    _load_plugins()
    # A copy, as the code that iterates may register more.
    yield from list(_entries[family].items())


def _load_plugins() -> None:
    for point in entry_points(group=GROUP):
        if point in _loaded:
            continue
        # Set before loading: a plug-in that looks names up itself must not be loaded again.
        _loaded.add(point)
        try:
            found = point.load()
        except Exception as error:
            owner = point.dist.name if point.dist else "a distribution"
            raise ConfigError(
                f"The plug-in {point.name} = {point.value} cannot be loaded: {error}",
                where=f"{owner}, entry points of {GROUP}",
                remedy="Fix it, or uninstall it",
            ) from error
        if not isinstance(found, ModuleType):  # a module registers its parts itself
            register(found)


def _source(entry: Any) -> object:
    """Return where a class was written; an object stands for itself."""
    return (entry.__module__, entry.__qualname__) if isinstance(entry, type) else entry
