"""`heedful evaluate`: score a system against references, and compare two systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from heedful.cli.evaluation.encoder_scores import TagColumns, evaluate_encoder
from heedful.cli.evaluation.record_measures import continues_sequences, evaluate_records
from heedful.cli.evaluation.text_measures import (
    StretchedRotary,
    TextFlags,
    TextMeasurement,
)
from heedful.cli.evaluation.translation_scores import LengthFlags, Translations, translate_all
from heedful.cli.flags import Running, SearchFlags, SplitFlag, search_settings
from heedful.cli.text_io import (
    Output,
    Report,
    read_aligned,
    read_lines,
    refuse_chart,
    refuse_missing_folder,
    terminal,
    write_lines,
)
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.events import Events
    from heedful.search.search_settings import SearchSettings

MetricName = Literal["bleu", "chrf", "ter", "comet"] | str  # or the name of a registered one


def evaluate(
    system: Path,
    /,
    *,
    reference: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = (),
    data: Path | None = None,
    word_column: int = 1,
    tag_column: int | None = None,
    source: Path | None = None,
    task_prefix: Annotated[str, Parameter(allow_leading_hyphen=True)] = "",
    baseline: Path | None = None,
    metrics: Annotated[tuple[MetricName, ...], Parameter(consume_multiple=True)] = ("bleu", "chrf"),
    tokenize: str = "auto",
    lowercase: bool = False,
    comet_model: str = "Unbabel/wmt22-comet-da",
    samples: int = 1000,
    output_file: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    chart: Path | None = None,
    lengths: LengthFlags = LengthFlags(),
    language: TextFlags = TextFlags(),
    rotary: StretchedRotary = StretchedRotary(),
    search: SearchFlags | None = None,
    split: SplitFlag = None,
    running: Running = Running(),
    output: Output = Output(),
) -> None:
    """Score translations against references, and compare two systems.

    Scores and their signatures are those of sacreBLEU, as in validation during training. The model
    itself is measured: numbers are as it writes them, whatever form it states for `translate`.
    `--by-length` scores short and long sources separately. `--data` names labelled examples in the
    format of training, and scores a classifier, tagger or question answerer: accuracy and F1 from 0
    to 1; for a model of token sequences it names records, whose nats and bits are measured field by
    field, and for an autoencoder images, of which it says how far they come back. `--text` measures
    the perplexity of a language model and its bits per byte and character, and `--by-position` its
    loss up to and beyond the trained length. `--choices` counts the questions of which it finds the
    right answer likeliest, alone or after solved `--examples`.

    For example:

        heedful evaluate run --source test.en --reference test.de
        heedful evaluate run --source test.en --reference test.de --baseline other-run
        heedful evaluate output.de --reference test.de
        heedful evaluate run --source test.en --reference test.de --by-length --chart lengths.svg
        heedful evaluate tagger --data test.conll
        heedful evaluate writer --text other.txt --stride 64
        heedful evaluate writer --text other.txt --by-position --length 512 --chart positions.svg
        heedful evaluate writer --text other.txt --rotary-scaling yarn --rotary-factor 4
        heedful evaluate writer --choices questions.jsonl --examples solved.jsonl --shots 8

    Args:
        system: Model directory or name, or a text file of translations.
        reference: File of reference translations, line by line; several files for several
            references.
        data: File of labelled examples, to score a classifier, tagger or question answerer; of
            records for a model of token sequences.
        word_column: Column of the words in --data for a tagger, counted from 1.
        tag_column: Column of the tags in --data, counted from 1; the last one if unset.
        source: File of source text to translate; not needed if SYSTEM is a file of translations.
        task_prefix: Text before each source, which tells a model of several tasks what to do, such
            as "summarise: "; the one of training.
        baseline: Second model or file of translations, which SYSTEM is compared with by paired
            bootstrap (Koehn 2004).
        metrics: Metrics to compute; TER counts errors, so lower is better. Of other texts than
            translations: rouge1, rouge2, rougeL, answer_exact, answer_f1, entity_f1, bracket_f1.
            COMET needs --source and its own program: pipx install unbabel-comet.
        tokenize: Tokenizer of sacreBLEU, such as 13a, zh, ja-mecab or none (for tokenised text);
            auto follows the script of the references.
        lowercase: Ignore upper and lower case in metrics.
        comet_model: Model of COMET, which its program fetches, or a .ckpt file.
        samples: Number of bootstrap resamples; more give more precise intervals.
        output_file: File for the translations of SYSTEM.
        chart: File for a chart of the scores --by-length or --by-position: .html, .png, .svg or
            .json; needs heedful[studio].
    """
    refuse_chart(chart)
    language.check()
    if language.text or language.choices is not None:
        report = Report("evaluate", output, language, rotary, running, system=system)
        TextMeasurement(system, language, rotary, running, chart, report).run()
        return
    if rotary.is_set:
        raise UserError(
            "Rotary positions are stretched for a text", where="--rotary", remedy="Add --text FILE"
        )
    lengths.check(source, chart)
    if data is not None:
        report = Report("evaluate", output, running, system=system, data=data)
        if continues_sequences(system):
            evaluate_records(system, data, running, report)
            return
        columns = TagColumns(word_column, tag_column)
        evaluate_encoder(system, data, columns, running, report)
        return
    _check_references(reference, output_file, samples)
    counted = tuple(name for name in metrics if name != "comet")
    if has_comet := "comet" in metrics:
        from heedful.cli.evaluation.comet_scores import check_comet, comet_facts

        check_comet(source, by_length=lengths.by_length and not counted)
    settings = search_settings(search)
    rules = {"tokenize": tokenize, "lowercase": lowercase}
    files = {"system": system, "source": source, "reference": reference, "baseline": baseline}
    groups = (files, rules, lengths, settings.plain(), running)
    report = Report("evaluate", output, *groups, metrics=metrics, split=split, prefix=task_prefix)
    references = [read_lines(path) for path in reference]
    options = (source, task_prefix, len(references[0]), settings, running, split)
    with terminal() as events:
        systems = {"system": _translations(system, *options, events)}
        if baseline is not None:
            systems["baseline"] = _translations(baseline, *options, events)
        _warn_of_degenerate(systems, references[0], events)
    if output_file is not None:
        write_lines(output_file, systems["system"])
    translations = Translations(systems, references, counted, rules, samples, not output.json)
    facts = translations.scores() if counted else {"scores": {}}
    if baseline is not None:
        facts |= translations.comparison() if counted else {"comparison": {}}
    if has_comet:
        assert source is not None
        more = comet_facts(translations, source, comet_model, running)
        facts = {name: {**values, **more.get(name, {})} for name, values in facts.items()}
    if lengths.by_length:
        assert source is not None
        facts |= translations.by_length(source, lengths.length_bins, chart)
    report.finish({"lines": len(systems["system"]), **facts})


def _warn_of_degenerate(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], events: Events
) -> None:
    """Warn of systems whose translations are mostly empty, or repeat themselves."""
    from heedful.evaluate.corpus_metrics import describe_degenerate

    for name, translations in systems.items():
        # A reference tells whether there was something to translate, also without sources.
        if message := describe_degenerate(translations, references, references):
            events.warn(f"{name}: {message}. The model may need more training")


def _check_references(reference: Sequence[Path], output_file: Path | None, samples: int) -> None:
    """Refuse missing references, a missing output folder, and too few resamples.

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
    refuse_missing_folder(output_file)
    if samples < 1:
        raise UserError("The bootstrap needs at least one resample", where="--samples")


def _translations(
    system: Path,
    source: Path | None,
    task_prefix: str,
    lines: int,
    settings: SearchSettings,
    running: Running,
    split: SplitFlag,
    events: Events,
) -> list[str]:
    """Return the translations by a system, which is a model or a file of translations.

    Args:
        system: directory or name of a model, or file of translations.
        source: file of texts that a model translates.
        task_prefix: text before each of them.
        lines: number of lines of the references.
        settings, running, split: options of a model.
        events: receiver of warnings and progress.

    Raises:
        UserError: when there is no such system, or no text for a model to translate.
        DataError: when the number of lines differs from that of the references.
    """
    from heedful.models.model_directory import locate

    directory = system if system.exists() else locate(system)
    if not directory.is_dir():
        if system.exists():
            return read_aligned(system, lines)
        raise UserError(
            "There is no such model directory or file of translations",
            where=str(system),
            remedy="Check the path",
        )
    if source is None:
        raise UserError(
            "A model needs text to translate", where=str(system), remedy="Add --source FILE"
        )
    texts = [task_prefix + text for text in read_aligned(source, lines)]
    return list(translate_all(system, texts, settings, running, split, events))
