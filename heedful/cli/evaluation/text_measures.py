"""`heedful evaluate --text`: perplexity, bits per byte and loss by position of a language model."""

from __future__ import annotations

import dataclasses
import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

import heedful
from heedful.cli.flags import Running
from heedful.cli.text_io import Report, say, show_table, terminal
from heedful.errors import ModelError, UserError

if TYPE_CHECKING:
    from heedful.apps.evaluation.text_likelihood import PositionLoss, TextLikelihood

_GROUP = Group("Language models", sort_key=20)


_ROTARY = Group("Rotary positions", sort_key=40)


@Parameter(name="*", group=_ROTARY)
@dataclass(frozen=True, kw_only=True)
class StretchedRotary:
    """Rotary positions of a trained model, stretched to longer texts than it was trained on."""

    rotary_scaling: Annotated[
        Literal["linear", "ntk", "yarn", "by_wavelength"] | None,
        Parameter(
            help="Method that stretches rotary positions for longer texts; needs --rotary-factor."
        ),
    ] = None
    rotary_factor: Annotated[
        float | None,
        Parameter(help="Factor of --rotary-scaling: 4 reads texts four times as long."),
    ] = None
    rotary_original_length: Annotated[
        int | None,
        Parameter(help="Maximum length in tokens before stretching; that of the model if unset."),
    ] = None

    @property
    def is_set(self) -> bool:
        """True if the positions are to be stretched."""
        return self != UNSTRETCHED

    def options(self) -> dict[str, Any]:
        """The flags as arguments of `heedful.load_generator`, and as JSON data."""
        return dataclasses.asdict(self)


UNSTRETCHED = StretchedRotary()


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class TextFlags:
    """Text to score with a language model, and the windows it is read in."""

    text: Annotated[
        tuple[Path, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            show_default=False,
            help="Files of text (plain, gzip or .jsonl) to measure the perplexity of a "
            "language model on.",
        ),
    ] = ()
    documents: Annotated[
        Literal["file", "paragraph", "line"],
        Parameter(
            help="Unit of text in the files, as in training; units are scored independently."
        ),
    ] = "file"
    length: Annotated[
        int | None,
        Parameter(
            help="Length of a window in tokens; the model's maximum length if unset, and four "
            "times that with --by-position. For a model with memory, the length of a segment."
        ),
    ] = None
    stride: Annotated[
        int | None,
        Parameter(
            help="Tokens between the starts of overlapping windows; half of --length if unset. "
            "Smaller strides give tokens more context and take longer."
        ),
    ] = None
    by_position: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Measure the loss at each position of the window, up to and beyond the trained "
            "length.",
        ),
    ] = False

    def plain(self) -> dict[str, Any]:
        """The flags as JSON data."""
        return {
            "text": [str(path) for path in self.text],
            "documents": self.documents,
            "length": self.length,
            "stride": self.stride,
            "by_position": self.by_position,
        }

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


NO_TEXT = TextFlags()


def measure_text(
    model: Path,
    flags: TextFlags,
    rotary: StretchedRotary,
    running: Running,
    chart: Path | None,
    report: Report,
) -> None:
    """Measure a language model on text and report it.

    Args:
        model: the model's directory.
        flags: files of text, and windows.
        rotary: scaling of rotary positions.
        running: device, precision and batches.
        chart: file for a chart of the loss by position.
        report: report of the command.

    Raises:
        UserError: when the model is an ensemble, or a chart of a perplexity is asked for.
        ModelError: when the model is no language model.
    """
    from heedful.interop.hugging_face import describe_any

    if running.ensemble:
        raise UserError("Only translators make an ensemble", where="--ensemble")
    if chart is not None and not flags.by_position:
        raise UserError(
            "Perplexity is one number and has no chart", where="--chart", remedy="Add --by-position"
        )
    texts = flags.read()
    spec = describe_any(model).spec
    masked = any(head.kind == "masked_lm" for head in getattr(spec, "heads", ()))
    if spec.reads == "texts" and spec.predicts == "next_token":
        _measure_causal(model, texts, flags, rotary, running, chart, report)
    elif masked and not flags.by_position:
        _measure_masked(model, texts, flags, rotary, running, report)
    else:
        raise ModelError(
            f"A model of kind {spec.kind!r} "
            + ("reads all positions at once" if masked else "is no language model"),
            where=str(model),
            remedy="Give a causal language model; for translators there is heedful score",
        )


def _measure_causal(
    model: Path,
    texts: list[str],
    flags: TextFlags,
    rotary: StretchedRotary,
    running: Running,
    chart: Path | None,
    report: Report,
) -> None:
    from heedful.apps.evaluation.text_likelihood import loss_by_position, text_likelihood

    pipeline = heedful.load_generator(
        model, device=running.device, precision=running.precision, **rotary.options()
    )
    batch_tokens = running.positions(pipeline)
    in_windows = flags.by_position or pipeline.model.spec.memory is None
    with closing(terminal()) as events:

        def progress(done: int, total: int) -> None:
            events.progress(done, total, "windows read" if in_windows else "segments read")

        if flags.by_position:
            rows = loss_by_position(
                pipeline,
                texts,
                length=flags.length,
                batch_tokens=batch_tokens,
                progress=progress,
            )
        else:
            result = text_likelihood(
                pipeline,
                texts,
                length=flags.length,
                stride=flags.stride,
                batch_tokens=batch_tokens,
                progress=progress,
            )
    if flags.by_position:
        _report_positions(rows, pipeline.model.spec.max_length, chart, report)
    else:
        _report_likelihood(result, report)


def _measure_masked(
    model: Path,
    texts: list[str],
    flags: TextFlags,
    rotary: StretchedRotary,
    running: Running,
    report: Report,
) -> None:
    from heedful.apps.evaluation.pseudo_likelihood import pseudo_likelihood

    if flags.stride is not None or rotary.is_set:
        raise UserError(
            "These flags are for causal language models, and this is a masked one",
            where="--stride" if flags.stride is not None else "--rotary-scaling",
            remedy="Leave them out",
        )
    pipeline = heedful.load_encoder(model, device=running.device, precision=running.precision)
    with closing(terminal()) as events:
        result = pseudo_likelihood(
            pipeline,
            texts,
            length=flags.length,
            batch_tokens=running.positions(pipeline),
            progress=lambda done, total: events.progress(done, total, "tokens hidden"),
        )
    _report_likelihood(result, report)


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
        show_table(
            "",
            ("score", "value"),
            [(name.replace("_", " "), f"{value:.4f}") for name, value in result.scores.items()],
            numbers=1,
        )
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
    facts = [
        {
            "first": row.first,
            "last": row.last,
            "tokens": row.tokens,
            "loss": None if row.loss is None else row.loss.score,
            "low": None if row.loss is None else row.loss.low,
            "high": None if row.loss is None else row.loss.high,
            "problem": row.problem,
        }
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

    # On a logarithmic axis a bin stands at the geometric mean of its ends.
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
