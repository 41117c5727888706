"""Flags of the verbs that run a model, and the pipeline they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Group, Parameter

import heedful
from heedful.cli.device_flags import BatchTokens, DeviceFlag, PrecisionFlag, positions_of
from heedful.cli.settings_flags import flags_of, overrides
from heedful.decode.settings import SearchSettings
from heedful.memory import uncollected

if TYPE_CHECKING:
    from heedful.decode.pipeline import TranslationPipeline
    from heedful.events import Events

    SearchFlags = Any
else:
    SearchFlags = flags_of(SearchSettings, "Search")

_GROUP = Group("Running", sort_key=50)
_DRAWN = ("temperature", "top_k", "top_p", "min_p")


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class Running:
    """How a model is run; only precision can change what comes out, in its last digits."""

    ensemble: Annotated[
        tuple[Path, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="One more model whose probabilities are averaged in; may be repeated.",
        ),
    ] = ()
    device: DeviceFlag = "auto"
    precision: PrecisionFlag = "auto"
    batch_size: Annotated[
        int | None, Parameter(help="Sentences in a batch, instead of --batch-tokens.")
    ] = None
    batch_tokens: Annotated[
        BatchTokens,
        Parameter(
            help="Positions in a batch: sentences x longest x beam, padding counted. auto: what "
            "fits into the memory that is free."
        ),
    ] = 4096

    def load(self, model: Path, *, shortlist: bool | Path = False) -> TranslationPipeline:
        """The model, with the others of an ensemble, and perhaps a shortlist."""
        with uncollected():  # a fifth of a cold start
            from heedful.decode.pipeline import TranslationPipeline  # noqa: F401 (loads torch)
        return heedful.load(
            [model, *self.ensemble],
            device=self.device,
            precision=self.precision,
            shortlist=shortlist,
        )

    def positions(self, pipeline: Any, settings: SearchSettings | None = None) -> int:
        """Positions of a batch, for the hypotheses of a search."""
        beam = 1
        if settings is not None:
            beam = settings.n_best if settings.sampling else settings.beam
        return positions_of(self.batch_tokens, pipeline, beam)

    def plain(self) -> dict[str, Any]:
        """The flags as JSON data."""
        return {
            "ensemble": [str(path) for path in self.ensemble],
            "device": self.device,
            "precision": self.precision,
            "batch_size": self.batch_size,
            "batch_tokens": self.batch_tokens,
        }


STANDARD = Running()


def search_settings(flags: SearchFlags | None) -> SearchSettings:
    """The search that the flags ask for; a temperature or a cut-off asks for sampling."""
    return drawn_settings(flags, SearchSettings)


_Settings = TypeVar("_Settings", bound=SearchSettings)


def drawn_settings(flags: Any, kind: type[_Settings]) -> _Settings:
    """Settings of a search by flags, among which a temperature or a cut-off asks for sampling."""
    given = overrides(flags)
    if any(name in given for name in _DRAWN):
        given.setdefault("sampling", True)
    return kind.parse(given)


def terminal() -> Events:
    """Progress and warnings for people, on standard error."""
    from heedful.events import Events, Terminal

    return Events([Terminal()])
