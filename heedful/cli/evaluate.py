"""`heedful evaluate`: score systems against references, and compare two."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.evaluation.encoder_scores import TagColumns, evaluate_encoder
from heedful.cli.evaluation.length_table import WHOLE, LengthFlags, Translations
from heedful.cli.evaluation.text_measures import (
    NO_TEXT,
    UNSTRETCHED,
    StretchedRotary,
    TextFlags,
    measure_text,
)
from heedful.cli.flags import STANDARD, Running, SearchFlags, SplitFlag, search_settings
from heedful.cli.text_io import (
    PLAIN,
    Output,
    Report,
    read_lines,
    refuse_missing_folder,
    say,
    show_table,
    terminal,
    write_lines,
)
from heedful.errors import DataError, UserError

if TYPE_CHECKING:
    from heedful.evaluate.bootstrap import PairedScore
    from heedful.evaluate.corpus_metrics import MetricScore
    from heedful.events import Events
    from heedful.search.search_settings import SearchSettings

MetricName = Literal["bleu", "chrf", "ter"]


def evaluate(
    system: Annotated[
        Path,
        Parameter(help="Model directory or name, or a text file of translations."),
    ],
    /,
    *,
    reference: Annotated[
        tuple[Path, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            show_default=False,
            help="File of reference translations, line by line; several files for several "
            "references.",
        ),
    ] = (),
    data: Annotated[
        Path | None,
        Parameter(
            help="File of labelled examples, to score a classifier, tagger or question answerer."
        ),
    ] = None,
    word_column: Annotated[
        int, Parameter(help="Column of the words in --data for a tagger, counted from 1.")
    ] = 1,
    tag_column: Annotated[
        int | None,
        Parameter(help="Column of the tags in --data, counted from 1; the last one if unset."),
    ] = None,
    source: Annotated[
        Path | None,
        Parameter(
            help="File of source text to translate; not needed if SYSTEM is a file of translations."
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        Parameter(
            help="Second model or file of translations, which SYSTEM is compared with by paired "
            "bootstrap (Koehn 2004)."
        ),
    ] = None,
    metrics: Annotated[
        tuple[MetricName, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            show_default=False,
            help="Metrics to compute; TER counts errors, so lower is better. [default: bleu chrf]",
        ),
    ] = ("bleu", "chrf"),
    tokenize: Annotated[
        str,
        Parameter(
            help="Tokenizer of sacreBLEU, such as 13a, zh, ja-mecab or none (for tokenised text); "
            "auto follows the script of the references."
        ),
    ] = "auto",
    lowercase: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Ignore upper and lower case in metrics."),
    ] = False,
    samples: Annotated[
        int, Parameter(help="Number of bootstrap resamples; more give more precise intervals.")
    ] = 1000,
    output_file: Annotated[
        Path | None, Parameter(name=("--output", "-o"), help="File for the translations of SYSTEM.")
    ] = None,
    chart: Annotated[
        Path | None,
        Parameter(
            help="File for a chart of the scores --by-length or --by-position: .html, .png, .svg "
            "or .json; needs heedful[studio]."
        ),
    ] = None,
    lengths: LengthFlags = WHOLE,
    language: TextFlags = NO_TEXT,
    rotary: StretchedRotary = UNSTRETCHED,
    search: SearchFlags | None = None,
    split: SplitFlag = None,
    running: Running = STANDARD,
    output: Output = PLAIN,
) -> None:
    """Score translations against references, and compare two systems.

    Scores and their signatures are those of sacreBLEU, as in validation during training.
    `--by-length` scores short and long sources separately. `--data` names labelled examples in the
    format of training, and scores a classifier, tagger or question answerer: accuracy and F1 from 0
    to 1. `--text` measures the perplexity of a language model and its bits per byte and character,
    and `--by-position` its loss up to and beyond the trained length.

    For example:

        heedful evaluate run --source test.en --reference test.de
        heedful evaluate run --source test.en --reference test.de --baseline other-run
        heedful evaluate output.de --reference test.de
        heedful evaluate run --source test.en --reference test.de --by-length --chart lengths.svg
        heedful evaluate tagger --data test.conll
        heedful evaluate writer --text other.txt --stride 64
        heedful evaluate writer --text other.txt --by-position --length 512 --chart positions.svg
        heedful evaluate writer --text other.txt --rotary-scaling yarn --rotary-factor 4
    """
    if chart is not None:
        _check_chart(chart)
    language.check()
    if language.text:
        flags = {"system": str(system), **language.plain(), **rotary.options(), **running.plain()}
        report = Report("evaluate", output, flags)
        measure_text(system, language, rotary, running, chart, report)
        return
    if rotary.is_set:
        raise UserError(
            "Rotary positions are stretched for a text", where="--rotary", remedy="Add --text FILE"
        )
    lengths.check(source, chart)
    if data is not None:
        flags = {"system": str(system), "data": str(data), **running.plain()}
        columns = TagColumns(word_column, tag_column)
        evaluate_encoder(system, data, columns, running, Report("evaluate", output, flags))
        return
    _check_references(reference, output_file, samples)
    settings = search_settings(search)
    flags = {
        "system": str(system),
        "source": None if source is None else str(source),
        "reference": [str(path) for path in reference],
        "baseline": None if baseline is None else str(baseline),
        "metrics": list(metrics),
        "tokenize": tokenize,
        "lowercase": lowercase,
        **lengths.plain(),
        **settings.plain(),
        "split": split,
        **running.plain(),
    }
    report = Report("evaluate", output, flags)
    references = [read_lines(path) for path in reference]
    systems = _Systems(source, settings, running, split, len(references[0]))
    with closing(terminal()) as events:
        hypotheses = systems.translations(system, events)
        others = None if baseline is None else systems.translations(baseline, events)
    if output_file is not None:
        write_lines(output_file, hypotheses)
    _say_spelling(hypotheses, others or (), *references)
    rules = {"tokenize": tokenize, "lowercase": lowercase}
    facts = _scores(hypotheses, references, metrics, rules, show=not output.json)
    if others is not None:
        facts |= _comparison(
            others, hypotheses, references, metrics, samples, rules, show=not output.json
        )
    if lengths.by_length:
        assert source is not None
        named = {"system": hypotheses} | ({} if others is None else {"baseline": others})
        translations = Translations(named, references, metrics, rules, samples)
        facts |= translations.by_length(source, lengths.length_bins, chart, show=not output.json)
    report.finish({"lines": len(hypotheses), **facts})


def _check_references(reference: Sequence[Path], output_file: Path | None, samples: int) -> None:
    """Refuse missing references, an output folder that is missing, and too few resamples.

    Raises:
        UserError: naming the flag.
    """
    if not reference:
        raise UserError(
            "There is nothing to compare with",
            where="heedful evaluate",
            remedy="Give --reference FILE to a translator, --text FILE to a language model, --data "
            "FILE to any other model",
        )
    if output_file is not None:
        refuse_missing_folder(output_file)
    if samples < 1:
        raise UserError("The bootstrap needs at least one resample", where="--samples")


def _check_chart(path: Path) -> None:
    """Refuse a chart that cannot be written, before the model is loaded.

    Raises:
        UserError: when a library or the folder is missing, or the kind of file is unknown.
    """
    from heedful.apps import charts

    charts.kind_of(path)
    refuse_missing_folder(path)


class _Systems:
    """The translations of systems, which are models or files of translations."""

    def __init__(
        self,
        source: Path | None,
        settings: SearchSettings,
        running: Running,
        split: SplitFlag,
        lines: int,
    ) -> None:
        self.source = source
        self.settings = settings
        self.running = running
        self.split = split
        self.lines = lines

    def translations(self, system: Path, events: Events) -> list[str]:
        """Return one translation for each line of the references.

        Raises:
            UserError: when there is no such system, or no text for a model to translate.
            DataError: when the number of lines differs from that of the references.
        """
        from heedful.models.model_directory import locate

        directory = system if system.exists() else locate(system)
        if directory.is_dir():
            return self._translate(directory, events)
        if not system.exists():
            raise UserError(
                "There is no such model directory or file of translations",
                where=str(system),
                remedy="Check the path",
            )
        return self._aligned(read_lines(system), system)

    def _translate(self, system: Path, events: Events) -> list[str]:
        if self.source is None:
            raise UserError(
                "A model needs text to translate", where=str(system), remedy="Add --source FILE"
            )
        texts = self._aligned(read_lines(self.source), self.source)
        pipeline = self.running.load(system, split=self.split)
        return list(
            pipeline.translate(
                texts,
                settings=self.settings,
                batch_size=self.running.batch_size,
                batch_tokens=self.running.positions(pipeline, self.settings),
                warn=events.warn,
                progress=lambda done, total: events.progress(done, total, f"translating: {system}"),
            )
        )

    def _aligned(self, lines: list[str], path: Path) -> list[str]:
        if len(lines) != self.lines:
            raise DataError(
                f"There are {len(lines):,} lines here and {self.lines:,} in the reference",
                where=str(path),
                remedy="Give files that correspond line by line",
            )
        return lines


def _scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str],
    rules: dict[str, Any],
    *,
    show: bool,
) -> dict[str, Any]:
    from heedful.evaluate.corpus_metrics import corpus_scores

    scores = corpus_scores(hypotheses, references, metrics, **rules)
    if show:
        show_table(
            f"{len(hypotheses):,} lines", ("metric", "signature", "score"), _rows(scores), numbers=1
        )
    return {"scores": {name: score.plain() for name, score in scores.items()}}


def _say_spelling(*texts: Sequence[str]) -> None:
    from heedful.evaluate.corpus_metrics import describe_spelling

    if message := describe_spelling(*texts):
        say(message)


def _comparison(
    baseline: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str],
    samples: int,
    rules: dict[str, Any],
    *,
    show: bool,
) -> dict[str, Any]:
    from heedful.evaluate.bootstrap import paired_bootstrap

    paired = paired_bootstrap(baseline, hypotheses, references, metrics, samples=samples, **rules)
    if show:
        show_table(
            f"Against the baseline, {samples:,} resamples (range that holds 95 % of them)",
            ("metric", "baseline", "system", "difference", "p"),
            [_compared(score) for score in paired.values()],
            numbers=4,
        )
        say("p: probability of a difference this large if the systems were equally good.")
    return {"comparison": {name: score.plain() for name, score in paired.items()}}


def _rows(scores: dict[str, MetricScore]) -> list[tuple[str, str, str]]:
    return [(name, score.signature, f"{score.score:.2f}") for name, score in scores.items()]


def _compared(score: PairedScore) -> tuple[str, ...]:
    columns = [
        f"{part.score:.2f} ({part.low:.2f} to {part.high:.2f})"
        for part in (score.a, score.b, score.difference)
    ]
    return (score.name, *columns, f"{score.p_value:.3f}")
