"""The models and runs of the studio, which reads no other directories."""

from __future__ import annotations

import itertools
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from heedful.apps.studio.example_texts import RECORDS, SOUNDS, examples_of, sentences_of
from heedful.apps.studio.live_training import LiveTraining
from heedful.apps.studio.run_log import RunLog
from heedful.errors import ModelError, UserError, suggest
from heedful.models.model_spec import parse_spec
from heedful.pretrained.catalogue import Card, models_at_hand
from heedful.pretrained.hub import source_of
from heedful.train.run_settings import RunSettings

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.pipelines.translation import TranslationPipeline
    from heedful.text.tokenizer_pair import TokenizerPair

Result = TypeVar("Result")


_CONFIG = "config.json"
_RUN_CONFIG = "config.toml"
_WEIGHTS = "*.safetensors"
_KEPT = 32
COMPARED = Path(__file__).with_name("compared_runs")
"""Runs of one small translator with several settings, without their models; see
`benchmarks/pretrained/learning_rates.py`."""


@dataclass(frozen=True)
class Loaded:
    """A loaded model.

    Args:
        model: model in eval mode.
        tokenizers: source and target tokenizer; None for a vision model.
        version: version of the model's files, which changes when a run writes a better model.
    """

    model: AnyModel
    tokenizers: TokenizerPair | None
    version: tuple[int, ...]


class WorkspaceDirectory:
    """A directory of a model or a run.

    Args:
        name: name on pages.
        path: path of the directory.

    Raises:
        ModelError: when it holds neither a model nor a run.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.log = RunLog(path) if (path / _RUN_CONFIG).is_file() or _has_begun(path) else None
        self._lock = threading.Lock()
        self._loaded: Loaded | None = None
        if self.log is None and self._model_directory() is None:
            reason = (
                "This is neither a model directory nor a run directory"
                if path.exists()
                else "No such directory"
            )
            raise ModelError(
                reason, where=str(path), remedy="Give a directory of a model, a run, Hugging Face"
            )

    @property
    def has_model(self) -> bool:
        """Return True if there is a model; a run has none before its first validation."""
        return self._model_directory() is not None

    def kind(self) -> str | None:
        """Return the kind of the model, such as translator; None without a model."""
        directory = self._model_directory()
        if directory is None:
            return None
        try:
            config = json.loads((directory / _CONFIG).read_text(encoding="utf-8"))
            if "schema_version" in config:  # without torch, so that the first page appears at once
                kind = parse_spec(config["model"], where=str(directory)).kind
                if kind == "causal_lm" and _has_fields(directory):
                    return RECORDS
                card = self.card()
                return SOUNDS if card is not None and card.task == SOUNDS else kind
        except (OSError, ValueError, KeyError, TypeError):
            pass  # loading reports the error
        return self.load().model.spec.kind

    def load(self) -> Loaded:
        """Return the model, loaded again when a run has written a better one.

        Raises:
            ModelError: when there is no model, or it cannot be read.
        """
        from heedful.interop.model_loading import load_any

        with self._lock:
            version = self._version()
            if self._loaded is None or self._loaded.version != version:
                model, tokenizers = load_any(self.path)
                self._loaded = Loaded(model, tokenizers, version)
            return self._loaded

    @property
    def is_at_hand(self) -> bool:
        """True for a model of the package."""
        return self.card() is not None

    @property
    def is_compared(self) -> bool:
        """True for one of the package's runs that are there to be compared."""
        return self.path.parent == COMPARED

    def plain(self) -> dict[str, Any]:
        """Return name, kind, run and examples as JSON data, or the model's problem."""
        facts: dict[str, Any] = {"name": self.name, "run": self.log is not None, "kind": None}
        if self.is_compared:
            return facts | {"compared": True, "examples": []}
        try:
            facts["kind"] = self.kind()
        except UserError as error:
            facts["problem"] = str(error)
        card = self.card()
        if card is not None:
            examples = [each.plain() for each in card.examples]
            facts |= {"summary": card.summary, "limits": list(card.limits), "examples": examples}
            facts["example_heads"] = [each.plain() for each in card.example_heads]
            facts["noted_heads"] = [each.plain() for each in card.noted_heads]
            return facts | {"noted_head": card.noted_head and card.noted_head.plain()}
        if self.log is not None:
            facts["training"] = self.log.progress()
        return facts | {"examples": examples_of(facts["kind"], self._settings())}

    def sentences(self) -> list[str]:
        """Return sentences to measure heads on, from the card or else from the run's data."""
        card = self.card()
        if card is not None:
            return list(card.sentences)
        settings = self._settings()
        return [] if settings is None else sentences_of(settings)

    def card(self) -> Card | None:
        """Return the card of a model of the package; None for any other."""
        known = {each.path: each for each in models_at_hand().values()}
        return known[self.path].card() if self.path in known else None

    def _settings(self) -> RunSettings | None:
        """Return the run's settings; None without a run or where they cannot be read."""
        if self.log is None:
            return None
        try:
            return self.log.settings()
        except UserError:  # the page "Runs" reports the error
            return None

    def _model_directory(self) -> Path | None:
        for directory in (self.path, self.path / "model"):
            if (directory / _CONFIG).is_file():
                return directory
        return None

    def _version(self) -> tuple[int, ...]:
        directory = self._model_directory() or self.path
        # Every file of the directory counts, since a preprocessor's settings may be added later.
        files = [file for pattern in (_WEIGHTS, "*.json") for file in directory.glob(pattern)]
        return tuple(sorted(file.stat().st_mtime_ns for file in files))


class Recent:
    """A cache of the last readings and passes, which are reused for other layers and heads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """Return the result for a key, computed if it is not cached."""
        with self._lock:
            result: Result | None = self._results.get(key)
        if result is None:
            result = make()
        with self._lock:
            self._results[key] = result
            self._results.move_to_end(key)
            while len(self._results) > _KEPT:
                self._results.popitem(last=False)
        return result


class Workspace:
    """The directories of the studio by name.

    Args:
        paths: paths of models and runs.

    Raises:
        ModelError: naming the first path that holds neither a model nor a run.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.places = {
            name: WorkspaceDirectory(name, path)
            for name, path in zip(_names(paths), paths, strict=True)
        }
        self.recent = Recent()
        self.training = LiveTraining()
        self._lock = threading.Lock()

    def add(self, name: str, path: Path) -> WorkspaceDirectory:
        """Load the model of a new directory, and add it to the workspace.

        Args:
            name: name on pages; a number is added if it is taken.
            path: path of a model or a run.

        Raises:
            ModelError: when the path holds neither, or its model cannot be read.
        """
        place = WorkspaceDirectory(name, path)
        if place.has_model:
            place.load()
        with self._lock:
            place.name = _free(name, self.places)
            # A new mapping, since other threads may iterate over the old one.
            self.places = {**self.places, place.name: place}
        return place

    def place(self, name: str) -> WorkspaceDirectory:
        """Return the directory with a name.

        Raises:
            UserError: when the name is unknown; paths are not names.
        """
        if name not in self.places:
            raise UserError(
                f"The studio was given no model or run called {name[:100]!r}",
                remedy=suggest(name, self.places)
                or "Start it with this directory: heedful studio RUN",
            )
        return self.places[name]

    def translator(self, name: str) -> TranslationPipeline:
        """Return the translator with a name.

        Raises:
            UserError: when the name is unknown.
            ModelError: when it is no translator.
        """
        from heedful.pipelines.translation import TranslationPipeline

        loaded = self.place(name).load()
        model: Any = loaded.model
        if model.spec.reads != "pairs" or loaded.tokenizers is None:
            raise ModelError(
                f"This model is no translator; its kind is {model.spec.kind!r}",
                where=name,
                remedy="Choose one that was trained on pairs of texts",
            )
        return TranslationPipeline(model, loaded.tokenizers)

    def log(self, name: str) -> RunLog:
        """Return the metrics of the run with a name.

        Raises:
            UserError: when there is no such run.
        """
        log = self.place(name).log
        if log is None:
            raise UserError(
                "This directory holds only a model, without the curves of its run",
                where=name,
                remedy="Start the studio with the run directory",
            )
        return log


def compared_runs() -> list[Path]:
    """Return the directories of the package's runs that are there to be compared."""
    return sorted(COMPARED.iterdir())


def _has_begun(path: Path) -> bool:
    """Return True for the directory of a run that has written no settings yet.

    A run makes its directory first, then its tokenizers, which can take a minute.
    """
    if not path.is_dir():
        return False
    names = {each.name for each in path.iterdir()}
    # An empty folder may be anything.
    return bool(names) and names <= {"tokenizer", ".lock"}


def _has_fields(directory: Path) -> bool:
    """Return True if a model's tokens are those of records."""
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    return bool(tokenizer.get("kind") == "fields")


def _free(name: str, known: Collection[str]) -> str:
    """Return the name, with the smallest number added that makes it new."""
    if name not in known:
        return name
    return next(new for i in itertools.count(2) if (new := f"{name} ({i})") not in known)


def _parts(path: Path) -> tuple[str, ...]:
    """Return the components of a path, or of a model's name on the hub."""
    source = source_of(path)
    return tuple(source["repository"].split("/")) if source else path.absolute().parts


def _names(paths: Sequence[Path]) -> list[str]:
    """Name each path by its last components, as many as needed to distinguish the paths."""
    parts = [_parts(path) for path in paths]
    names: list[str] = []
    for own in parts:
        count = 1
        while count < len(own) and sum(other[-count:] == own[-count:] for other in parts) > 1:
            count += 1
        names.append("/".join(own[-count:]))
    # The same directory given twice counts once.
    return [name if name not in names[:i] else f"{name} ({i + 1})" for i, name in enumerate(names)]
