"""`heedful evaluate --by-length`: scores by the length of the source, as a table and a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from heedful.cli.text_io import read_lines, say, show_table
from heedful.errors import DataError, UserError

if TYPE_CHECKING:
    from heedful.apps.evaluation.length_bins import LengthBin

_GROUP = Group("By length", sort_key=15)

_AXES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class LengthFlags:
    """Scores for short and for long sources."""

    by_length: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Score the translations of short and long sources separately, too; needs "
            "--source.",
        ),
    ] = False
    length_bins: Annotated[
        tuple[int, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            show_default=False,
            help="Maximum number of source words in each bin; a last bin holds longer sources. "
            "[default: 5 10 15 20 30 40 60]",
        ),
    ] = ()

    def check(self, source: Path | None, chart: Path | None) -> None:
        """Refuse bins or a chart without `--by-length`, and lengths of unknown sources.

        Raises:
            UserError: naming the flag.
        """
        if not self.by_length:
            for flag, is_given in (("--length-bins", self.length_bins), ("--chart", chart)):
                if is_given:
                    raise UserError(
                        "There are no scores by length to show",
                        where=flag,
                        remedy="Add --by-length",
                    )
            return
        if source is None:
            raise UserError(
                "Lengths are counted in the sources, which are missing",
                where="--by-length",
                remedy="Add --source FILE",
            )
        if self.length_bins:
            from heedful.apps.evaluation.length_bins import check_bounds

            check_bounds(self.length_bins)

    def plain(self) -> dict[str, Any]:
        """The flags as JSON data."""
        return {"by_length": self.by_length, "length_bins": list(self.length_bins)}


WHOLE = LengthFlags()


@dataclass(frozen=True)
class Translations:
    """Translations by one or two systems, with the settings of their scores.

    Args:
        systems: translations of each system, by its name in tables.
        references: one or more lists of reference translations.
        metrics: names of metrics.
        rules: tokenizer and case, as keyword arguments of the metrics.
        samples: number of bootstrap resamples.
    """

    systems: Mapping[str, Sequence[str]]
    references: Sequence[Sequence[str]]
    metrics: Sequence[str]
    rules: Mapping[str, Any]
    samples: int

    def by_length(
        self, source: Path, bounds: Sequence[int], chart: Path | None, *, show: bool
    ) -> dict[str, Any]:
        """Score each system in each bin; show a table, write a chart, return plain facts.

        Args:
            source: file of the source sentences.
            bounds: maximum number of words of each bin; the default bounds if empty.
            chart: file for a chart.
            show: flag that prints the table.

        Raises:
            DataError: when the number of sources differs from that of the references.
        """
        from heedful.apps.evaluation.length_bins import LENGTH_BINS, scores_by_length

        sources = read_lines(source)
        if len(sources) != len(self.references[0]):
            raise DataError(
                f"There are {len(sources):,} lines here and {len(self.references[0]):,} in the "
                "reference",
                where=str(source),
                remedy="Give files that correspond line by line",
            )
        tables = {
            name: scores_by_length(
                sources,
                lines,
                self.references,
                self.metrics,
                bounds=bounds or LENGTH_BINS,
                samples=self.samples,
                **self.rules,
            )
            for name, lines in self.systems.items()
        }
        if show:
            for name, bins in tables.items():
                self._show(name, bins)
            say(f"Ranges hold 95 % of {self.samples:,} resamples of the sentences of a bin.")
        if chart is not None:
            self._draw(tables, chart)
        facts = {name: [each.plain() for each in bins] for name, bins in tables.items()}
        return {"by_length": facts}

    def _show(self, name: str, bins: Sequence[LengthBin]) -> None:
        show_table(
            f"{name}, by words of the source",
            ("words", "sentences", *self.metrics),
            [
                (each.label, f"{each.sentences:,}", *(self._cell(each, m) for m in self.metrics))
                for each in bins
            ],
            numbers=1 + len(self.metrics),
        )

    @staticmethod
    def _cell(each: LengthBin, metric: str) -> str:
        score = each.scores.get(metric)
        return "" if score is None else f"{score.score:.2f} ({score.low:.2f} to {score.high:.2f})"

    def _draw(self, tables: Mapping[str, Sequence[LengthBin]], path: Path) -> None:
        from heedful.apps import charts

        panels = {
            _AXES[metric]: {
                name: [
                    charts.Estimate(each.label, score.score, score.low, score.high)
                    for each in bins
                    if (score := each.scores.get(metric)) is not None
                ]
                for name, bins in tables.items()
            }
            for metric in self.metrics
        }
        chart = charts.categories(
            panels,
            x="words of the source",
            title="Quality by length of the source",
            more=f"Bars hold 95 % of {self.samples:,} resamples of the sentences of a bin",
        )
        charts.save(chart, path)
        say(f"The chart is in {path}")
