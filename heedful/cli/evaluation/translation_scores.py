"""Translation scores of `heedful evaluate`: corpus scores, comparisons, and by source length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from heedful.cli.flags import Running
from heedful.cli.parser import flag_group
from heedful.cli.text_io import read_aligned, say, show_table
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.apps.evaluation.bootstrap import Interval
    from heedful.apps.evaluation.length_bins import LengthBin
    from heedful.events import Events
    from heedful.pipelines.text_splitting import Translation
    from heedful.search.search_settings import SearchSettings
    from heedful.text.tokenizer_pair import Split

_AXES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}


@flag_group("By length", 15)
class LengthFlags:
    """Scores for short and for long sources.

    Args:
        by_length: Score the translations of short and long sources separately, too; needs --source.
        length_bins: Maximum number of source words in each bin; a last bin holds longer sources.
            [default: 5 10 15 20 30 40 60]
    """

    by_length: bool = False
    length_bins: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = ()

    def check(self, source: Path | None, chart: Path | None) -> None:
        """Refuse bins or a chart without `--by-length`, and `--by-length` without sources.

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


def translate_all(
    model: Path,
    texts: Sequence[str],
    settings: SearchSettings,
    running: Running,
    split: Split | None,
    events: Events,
) -> list[Translation]:
    """Translate texts with a model.

    Args:
        model: directory or name of the translator.
        texts: texts to translate.
        settings: settings of the search.
        running: device, precision and batches.
        split: parts of a text that are translated separately.
        events: receiver of warnings and progress.
    """
    pipeline = running.load(model, split=split)
    return pipeline.translate(
        texts,
        settings=settings,
        batch_size=running.batch_size,
        batch_tokens=running.positions(pipeline, settings),
        warn=events.warn,
        progress=lambda done, total: events.progress(done, total, f"translating: {model}"),
    )


@dataclass(frozen=True)
class Translations:
    """Translations by one or two systems, with the settings of their scores.

    Args:
        systems: translations of each system, by the name of the system in tables.
        references: one or more lists of reference translations.
        metrics: names of metrics.
        rules: tokenizer and case, as keyword arguments of the metrics.
        samples: number of bootstrap resamples.
        show: flag that prints tables.
    """

    systems: Mapping[str, Sequence[str]]
    references: Sequence[Sequence[str]]
    metrics: Sequence[str]
    rules: Mapping[str, Any]
    samples: int
    show: bool

    def scores(self) -> dict[str, Any]:
        """Return the scores of the first system as plain facts."""
        from heedful.evaluate.corpus_metrics import corpus_scores, describe_spelling

        if message := describe_spelling(*self.systems.values(), *self.references):
            say(message)
        lines = self.systems["system"]
        scores = corpus_scores(lines, self.references, self.metrics, **self.rules)
        if self.show:
            show_table(
                f"{len(lines):,} lines",
                ("metric", "signature", "score"),
                [(name, each.signature, f"{each.score:.2f}") for name, each in scores.items()],
                numbers=1,
            )
        return {"scores": {name: score.plain() for name, score in scores.items()}}

    def comparison(self) -> dict[str, Any]:
        """Return a paired comparison with the second system as plain facts."""
        from heedful.apps.evaluation.bootstrap import paired_bootstrap

        system, baseline = self.systems["system"], self.systems["baseline"]
        paired = paired_bootstrap(
            baseline, system, self.references, self.metrics, samples=self.samples, **self.rules
        )
        if self.show:
            rows = [
                (
                    each.name,
                    *map(score_range, (each.a, each.b, each.difference)),
                    f"{each.p_value:.3f}",
                )
                for each in paired.values()
            ]
            show_table(
                f"Against the baseline, {self.samples:,} resamples (range that holds 95 % of them)",
                ("metric", "baseline", "system", "difference", "p"),
                rows,
                numbers=4,
            )
            say("p: probability of a difference this large if the systems were equally good.")
        return {"comparison": {name: score.plain() for name, score in paired.items()}}

    def by_length(self, source: Path, bounds: Sequence[int], chart: Path | None) -> dict[str, Any]:
        """Score each system in each bin; show a table, write a chart, return plain facts.

        Args:
            source: file of the source sentences.
            bounds: maximum number of words of each bin; the default bounds if empty.
            chart: file for a chart.

        Raises:
            DataError: when the number of sources differs from that of the references.
        """
        from heedful.apps.evaluation.length_bins import LENGTH_BINS, scores_by_length

        sources = read_aligned(source, len(self.references[0]))
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
        if self.show:
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
                (
                    each.label,
                    f"{each.sentences:,}",
                    *(score_range(each.scores.get(m)) for m in self.metrics),
                )
                for each in bins
            ],
            numbers=1 + len(self.metrics),
        )

    def _draw(self, tables: Mapping[str, Sequence[LengthBin]], path: Path) -> None:
        from heedful.apps import charts

        panels = {
            _AXES.get(metric, metric): {
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


def score_range(score: Interval | None) -> str:
    """Return a score with its interval as text; empty for no score."""
    return "" if score is None else f"{score.score:.2f} ({score.low:.2f} to {score.high:.2f})"
