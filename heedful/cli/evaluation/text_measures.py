"""`heedful evaluate --text`: perplexity, bits per byte and loss by position of a language model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

import heedful
from heedful.cli.encoder_verbs import load_encoder
from heedful.cli.evaluation.choice_measures import evaluate_choices
from heedful.cli.flags import Running
from heedful.cli.parser import flag_group
from heedful.cli.text_io import Report, say, show_table, show_values, terminal
from heedful.errors import ModelError, UserError

if TYPE_CHECKING:
    from heedful.apps.evaluation.text_likelihood import PositionLoss, TextLikelihood


_SHOTS = 4


@flag_group("Rotary positions", 40)
class StretchedRotary:
    """Rotary positions of a trained model, rescaled for texts longer than its training texts.

    Args:
        rotary_scaling: Method that stretches rotary positions for longer texts; needs
            --rotary-factor.
        rotary_factor: Factor of --rotary-scaling: 4 reads texts four times as long.
        rotary_original_length: Maximum length in tokens before stretching; that of the model if
            unset.
    """

    rotary_scaling: Literal["linear", "ntk", "yarn", "by_wavelength"] | None = None
    rotary_factor: float | None = None
    rotary_original_length: int | None = None

    @property
    def is_set(self) -> bool:
        """True if rotary positions are to be rescaled."""
        return self != StretchedRotary()


@flag_group("Language models", 20)
class TextFlags:
    """Text to score with a language model, and the windows it is read in.

    Args:
        text: Files of text (plain, gzip or .jsonl) to measure the perplexity of a language model
            on.
        documents: Unit of text in the files, as in training; units are scored independently.
        length: Length of a window in tokens; the model's maximum length if unset, and four times
            that with --by-position. For a model with memory, the length of a segment.
        stride: Tokens between the starts of overlapping windows; half of --length if unset. Smaller
            strides give tokens more context and take longer.
        by_position: Measure the loss at each position of the window, up to and beyond the trained
            length.
        choices: File of questions with answers to choose from, as lines of JSON with prompt,
            choices and answer; the answer that the model finds likeliest is its choice.
        examples: File of solved questions, some of which stand before each of --choices.
        shots: Number of --examples before each question; 4 if unset.
    """

    text: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = ()
    documents: Literal["file", "paragraph", "line"] = "file"
    length: int | None = None
    stride: int | None = None
    by_position: bool = False
    choices: Path | None = None
    examples: Path | None = None
    shots: int | None = None

    def check(self) -> None:
        """Refuse flags of --text without it, and flags that exclude each other.

        Raises:
            UserError: naming the flag.
        """
        given = {"--by-position": self.by_position, "--length": self.length is not None}
        given |= {"--stride": self.stride is not None, "--documents": self.documents != "file"}
        flag = next((flag for flag, is_given in given.items() if is_given), None)
        if not self.text and flag is not None:
            raise UserError("There is no text to score", where=flag, remedy="Add --text FILE")
        if self.shots is not None and self.examples is None:
            raise UserError(
                "There is nothing to show before a question",
                where="--shots",
                remedy="Add --examples FILE",
            )
        if self.examples is not None and self.choices is None:
            raise UserError(
                "There is no question to answer", where="--examples", remedy="Add --choices FILE"
            )
        if self.text and self.choices is not None:
            raise UserError(
                "A text is measured, or choices are counted",
                where="--choices",
                remedy="Leave one out",
            )
        if self.shots is not None and self.shots < 0:
            raise UserError("There cannot be fewer than 0 examples", where="--shots")
        if self.by_position and self.stride is not None:
            raise UserError(
                "Windows do not overlap where the loss is measured by position",
                where="--stride",
                remedy="Leave it out",
            )

    def read(self) -> list[str]:
        """The texts of all files.

        Raises:
            DataError: when a file is missing, empty, or not text.
        """
        from heedful.data.text_corpus import DocumentReader

        return [d.text for path in self.text for d in DocumentReader(path, self.documents)]


@dataclass(frozen=True)
class TextMeasurement:
    """A measurement of a language model on text.

    Args:
        model: the model's directory.
        flags: files of text, and windows.
        rotary: scaling of rotary positions.
        running: device, precision and batches.
        chart: file for a chart of the loss by position.
        report: report of the command.
    """

    model: Path
    flags: TextFlags
    rotary: StretchedRotary
    running: Running
    chart: Path | None
    report: Report

    def run(self) -> None:
        """Measure the model and report the result.

        Raises:
            UserError: when the model is an ensemble, or a chart of a perplexity is requested.
            ModelError: when the model is no language model.
        """
        from heedful.interop.hugging_face import describe_any

        flags = self.flags
        if flags.choices is not None:
            shots = _SHOTS if flags.shots is None else flags.shots
            options = (flags.choices, flags.examples, shots, self.running, self.report)
            evaluate_choices(self.model, *options)
            return
        if self.running.ensemble:
            raise UserError("Only translators make an ensemble", where="--ensemble")
        if self.chart is not None and not flags.by_position:
            raise UserError(
                "Perplexity is one number and has no chart",
                where="--chart",
                remedy="Add --by-position",
            )
        texts = flags.read()
        spec = describe_any(self.model).spec
        masked = any(head.kind == "masked_lm" for head in getattr(spec, "heads", ()))
        if spec.reads == "texts" and spec.predicts == "next_token":
            self._measure_causal(texts)
        elif masked and not flags.by_position:
            self._measure_masked(texts)
        else:
            raise ModelError(
                f"A model of kind {spec.kind!r} "
                + ("reads all positions at once" if masked else "is no language model"),
                where=str(self.model),
                remedy="Give a causal language model; for translators there is heedful score",
            )

    def _measure_causal(self, texts: list[str]) -> None:
        from heedful.apps.evaluation.text_likelihood import loss_by_position, text_likelihood

        flags, running = self.flags, self.running
        pipeline = heedful.load(
            self.model, device=running.device, precision=running.precision, **vars(self.rotary)
        )
        positions, spec = running.positions(pipeline), pipeline.spec
        what = "windows" if flags.by_position or spec.memory is None else "segments"
        with terminal() as events:
            options: dict[str, Any] = {
                "length": flags.length,
                "batch_tokens": positions,
                "progress": lambda done, total: events.progress(done, total, f"{what} read"),
            }
            if flags.by_position:
                rows = loss_by_position(pipeline, texts, **options)
            else:
                result = text_likelihood(pipeline, texts, stride=flags.stride, **options)
        if flags.by_position:
            _report_positions(rows, spec.max_length, self.chart, self.report)
        else:
            _report_likelihood(result, self.report)

    def _measure_masked(self, texts: list[str]) -> None:
        from heedful.apps.evaluation.text_likelihood import pseudo_likelihood

        flags, running = self.flags, self.running
        if flags.stride is not None or self.rotary.is_set:
            raise UserError(
                "These flags are for causal language models, and this is a masked one",
                where="--stride" if flags.stride is not None else "--rotary-scaling",
                remedy="Leave them out",
            )
        pipeline = load_encoder(self.model, device=running.device, precision=running.precision)
        with terminal() as events:
            result = pseudo_likelihood(
                pipeline,
                texts,
                length=flags.length,
                batch_tokens=running.positions(pipeline),
                progress=lambda done, total: events.progress(done, total, "tokens hidden"),
            )
        _report_likelihood(result, self.report)


def _report_likelihood(result: TextLikelihood, report: Report) -> None:
    if not report.output.json:
        windows = f"windows of {result.length:,} tokens"
        if result.memory is not None:
            windows = f"read as wholes, with a memory of {result.memory:,} tokens"
        elif not result.pseudo:
            windows += f", a stride of {result.stride:,}"
        texts = "1 text" if result.texts == 1 else f"{result.texts:,} texts"
        say(
            f"{texts}, {result.tokens:,} tokens, {result.bytes:,} bytes, "
            f"{result.characters:,} characters; {windows}"
        )
        show_values("", ("score", "value"), result.scores, "{:.4f}".format)
    if result.unknown:
        say(
            f"warning: {result.unknown:,} tokens stand for characters that the tokenizer does not "
            "know: bits per byte and character are too low"
        )
    elif not result.lossless:
        say(
            "warning: the tokenizer does not keep texts as they are (such as case or white space), "
            "so bits per byte and character are of what it keeps"
        )
    report.finish(result.plain())


def _report_positions(
    rows: list[PositionLoss], trained: int | None, chart: Path | None, report: Report
) -> None:
    if not report.output.json:
        known = "" if trained is None else f". The model was made for {trained:,} tokens"
        say(f"Ranges hold 95 % of resampled windows{known}.")
        show_table(
            "Loss by position in the window",
            ("positions", "tokens", "loss", "perplexity"),
            [_position_row(row) for row in rows],
            numbers=3,
        )
    if chart is not None:
        _draw(rows, trained, chart)
    parts = {"loss": "score", "low": "low", "high": "high"}
    facts = [
        vars(row) | {name: getattr(row.loss, part, None) for name, part in parts.items()}
        for row in rows
    ]
    report.finish({"trained_length": trained, "by_position": facts})


def _position_row(row: PositionLoss) -> tuple[str, ...]:
    places = f"{row.first:,}–{row.last:,}" if row.first < row.last else f"{row.first:,}"
    if row.loss is None:
        return places, f"{row.tokens:,}", row.problem or "", ""
    loss = row.loss
    return (
        places,
        f"{row.tokens:,}",
        f"{loss.score:.4f} ({loss.low:.4f} to {loss.high:.4f})",
        f"{math.exp(loss.score):.3f}",
    )


def _draw(rows: list[PositionLoss], trained: int | None, path: Path) -> None:
    from heedful.apps import charts

    # On a logarithmic axis a bin is placed at the geometric mean of its ends.
    points = [
        charts.Estimate((row.first * row.last) ** 0.5, row.loss.score, row.loss.low, row.loss.high)
        for row in rows
        if row.loss is not None
    ]
    chart = charts.bands(
        {"loss": points},
        x="position in the window",
        y="loss, nats per token",
        title="Loss by position",
        more="Bands hold 95 % of resampled windows",
        log=True,
        mark=trained,
        mark_label="trained length",
    )
    charts.save(chart, path)
    say(f"The chart is in {path}")
