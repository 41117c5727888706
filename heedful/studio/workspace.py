"""The models and runs that the studio was given: the only files it reads."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import ModelError, UserError, suggest
from heedful.models.family import parse_spec
from heedful.studio.readings import Recent
from heedful.studio.run_log import RunLog

if TYPE_CHECKING:
    from heedful.decode.pipeline import TranslationPipeline
    from heedful.models.build import AnyModel
    from heedful.text.pair import TokenizerPair

_CONFIG = "config.json"
_RUN_CONFIG = "config.toml"
_WEIGHTS = "*.safetensors"


@dataclass(frozen=True)
class Loaded:
    """A model in memory.

    Args:
        model: in eval mode.
        tokenizers: None for a model of images.
        version: of its file; another one means that a run has written a better model.
    """

    model: AnyModel
    tokenizers: TokenizerPair | None
    version: tuple[int, ...]


class Place:
    """A directory that the studio was given.

    Args:
        name: what pages call it.
        path: where it is.

    Raises:
        ModelError: when there is neither a model nor a run.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.log = RunLog(path) if (path / _RUN_CONFIG).is_file() else None
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
        """Whether there is a model; a run has none before it is validated."""
        return self._model_directory() is not None

    def kind(self) -> str | None:
        """What kind of model it is: translator, causal_lm …; None without one."""
        directory = self._model_directory()
        if directory is None:
            return None
        try:
            config = json.loads((directory / _CONFIG).read_text(encoding="utf-8"))
            if "schema_version" in config:  # without torch, so that the first page is there at once
                return parse_spec(config["model"], where=str(directory)).kind
        except (OSError, ValueError, KeyError, TypeError):
            pass  # loading says what is wrong
        return self.load().model.spec.kind

    def load(self) -> Loaded:
        """The model; read anew when a run has written a better one.

        Raises:
            ModelError: when there is none, or it cannot be read.
        """
        from heedful.interop.loading import load_any

        with self._lock:
            version = self._version()
            if self._loaded is None or self._loaded.version != version:
                model, tokenizers = load_any(self.path)
                self._loaded = Loaded(model, tokenizers, version)
            return self._loaded

    def plain(self) -> dict[str, Any]:
        """As JSON data; what cannot be read says why."""
        facts: dict[str, Any] = {"name": self.name, "run": self.log is not None, "kind": None}
        try:
            facts["kind"] = self.kind()
        except UserError as error:
            facts["problem"] = str(error)
        return facts

    def _model_directory(self) -> Path | None:
        for directory in (self.path, self.path / "model"):
            if (directory / _CONFIG).is_file():
                return directory
        return None

    def _version(self) -> tuple[int, ...]:
        directory = self._model_directory() or self.path
        return tuple(sorted(file.stat().st_mtime_ns for file in directory.glob(_WEIGHTS)))


class Workspace:
    """All places by name.

    Args:
        paths: of models and runs.

    Raises:
        ModelError: naming the first path at which there is neither.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.places = {
            name: Place(name, path) for name, path in zip(_names(paths), paths, strict=True)
        }
        self.recent = Recent()

    def place(self, name: str) -> Place:
        """The place of a name.

        Raises:
            UserError: when there is none; paths are no names.
        """
        if name not in self.places:
            raise UserError(
                f"The studio was given no model or run called {name[:100]!r}",
                remedy=suggest(name, self.places) or "Start it with one: heedful studio RUN",
            )
        return self.places[name]

    def translator(self, name: str) -> TranslationPipeline:
        """The translator of a name.

        Raises:
            UserError: when there is none of this name.
            ModelError: when it is no translator.
        """
        from heedful.decode.pipeline import TranslationPipeline
        from heedful.models.translator import Translator

        found = self.place(name).load()
        if not isinstance(found.model, Translator) or found.tokenizers is None:
            raise ModelError(
                f"This model is no translator; its kind is {found.model.spec.kind!r}",
                where=name,
                remedy="Choose one that was trained on pairs of texts",
            )
        return TranslationPipeline(found.model, found.tokenizers)

    def log(self, name: str) -> RunLog:
        """The run of a name.

        Raises:
            UserError: when there is none.
        """
        log = self.place(name).log
        if log is None:
            raise UserError(
                "This is a model without its run, and so without curves",
                where=name,
                remedy="Start the studio with the run directory",
            )
        return log


def _names(paths: Sequence[Path]) -> list[str]:
    """Short names: the last part of each path, with as many before it as tell them apart."""
    parts = [path.absolute().parts for path in paths]
    names: list[str] = []
    for own in parts:
        count = 1
        while count < len(own) and sum(other[-count:] == own[-count:] for other in parts) > 1:
            count += 1
        names.append("/".join(own[-count:]))
    # The same directory given twice is one place.
    return [name if name not in names[:i] else f"{name} ({i + 1})" for i, name in enumerate(names)]
