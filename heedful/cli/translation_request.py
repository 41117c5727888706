"""The translator and options that flags name, and the flags of a glossary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.flags import AS_THE_MODEL, STANDARD, CheckFlags, ConsistencyFlags, Running
from heedful.search.search_settings import SearchSettings

if TYPE_CHECKING:
    from heedful.pipelines.glossary import Glossary


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GlossaryFlags:
    """Terms that a translation is held to."""

    glossary: Annotated[
        Path | None,
        Parameter(
            help="Terms that must be translated as given: a text file with a tab between source, "
            "target (several with | between) and flags (keep, ignore-case)."
        ),
    ] = None
    glossary_mode: Annotated[
        Literal["hard", "soft"],
        Parameter(
            help="hard: the search writes each term as given. soft: a model trained with "
            "--soft-terms reads the first target of each, and may inflect it."
        ),
    ] = "hard"

    def read(self) -> Glossary | None:
        """Read the glossary, if there is one.

        Raises:
            DataError: naming the line that is no term.
        """
        if self.glossary is None:
            return None
        from heedful.pipelines.glossary import Glossary

        return Glossary.read(self.glossary, soft=self.glossary_mode == "soft")

    def plain(self) -> dict[str, Any]:
        """The flags as JSON data."""
        file = None if self.glossary is None else str(self.glossary)
        return {"glossary": file, "glossary_mode": self.glossary_mode}


NO_TERMS = GlossaryFlags()


@dataclass(frozen=True)
class TranslationRequest:
    """The translator and options that the flags name.

    Args:
        model: the model's directory.
        settings: of the search.
        running: device, precision and batches.
        alignment: return alignments.
        checks: of translations.
        prefixes: translations have given prefixes.
        shortlist: use the model's shortlist, or the one in this file.
        terms: of a glossary.
        protect: kinds of parts that are kept; those that the model was trained for if unset.
        consistency: of translations with their sources.
    """

    model: Path
    settings: SearchSettings
    running: Running
    alignment: bool
    checks: CheckFlags
    prefixes: bool
    shortlist: bool | Path
    terms: GlossaryFlags = NO_TERMS
    protect: tuple[str, ...] | None = None
    consistency: ConsistencyFlags = AS_THE_MODEL

    @property
    def is_plain(self) -> bool:
        """True if the request needs nothing but translations of one model."""
        running = self.running
        return (
            not (self.alignment or self.checks.is_on or self.consistency.is_on or self.prefixes)
            and not (self.shortlist or self.terms.glossary or self.protect)
            and not running.ensemble
            and running.batch_size is None
            and running.batch_tokens == STANDARD.batch_tokens
        )
