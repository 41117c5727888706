"""`heedful frontier`: speed, memory and quality of a translator's settings on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from heedful.cli.flags import ModelPath
from heedful.cli.parser import flag_group
from heedful.cli.text_io import Output, Report, read_parallel, say, show_table, terminal
from heedful.errors import ConfigError, UserError

if TYPE_CHECKING:
    from heedful.apps.comparison.frontier_results import Frontier
    from heedful.apps.comparison.frontier_rounds import Grid, MeasuredTask


@flag_group("Settings to measure", 10)
class GridFlags:
    """The values of each search setting; all combinations are measured.

    Args:
        precisions: Precisions to measure (--precision of translate).
        beams: Beam widths to measure.
        shortlists: Search without and with a lexical shortlist. [default: no, and yes if the model
            has one]
        shortlist_file: File of a lexical shortlist to use instead of the model's own.
        batches: Batch sizes to measure (--batch-tokens of translate).
        threads: Numbers of threads to measure (OMP_NUM_THREADS). [default: 1 and all cores]
    """

    precisions: Annotated[
        tuple[Literal["fp32", "bf16", "int8"], ...], Parameter(consume_multiple=True)
    ] = ("fp32", "bf16", "int8")
    beams: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = (1, 4)
    shortlists: Annotated[tuple[Literal["no", "yes"], ...], Parameter(consume_multiple=True)] = ()
    shortlist_file: Path | None = None
    batches: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = (1024, 4096)
    threads: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = ()

    def grid(self, task: MeasuredTask) -> Grid:
        """Return all combinations; unset values depend on the model and the machine.

        Raises:
            ConfigError: when a shortlist is requested and the model has none.
        """
        from heedful.apps.comparison.frontier_rounds import Grid

        chosen = self.shortlists or (("no",) if task.shortlist is None else ("no", "yes"))
        if "yes" in chosen and task.shortlist is None:
            raise ConfigError(
                "The model has no shortlist",
                where="--shortlists yes",
                remedy="Make one with `heedful shortlist`, or name one: --shortlist-file FILE",
            )
        return Grid(
            precisions=self.precisions,
            beams=self.beams,
            shortlists=[word == "yes" for word in chosen],
            batch_tokens=self.batches,
            threads=self.threads or (1, task.machine["cores"]),
        )


def frontier(
    model: ModelPath,
    /,
    *,
    source: Path,
    reference: Path,
    out: Path = Path("frontier"),
    minutes: float = 15.0,
    rounds: int = 5,
    lines: int = 300,
    alone: int = 30,
    grid: GridFlags = GridFlags(),
    output: Output = Output(),
) -> None:
    """Measure speed, memory and quality of a translator under many search settings.

    Every combination of precision, beam, shortlist, batch size and threads translates the same
    sentences. The results are sentences per second, the latency of a single sentence, peak memory,
    and BLEU and chrF of the whole file. Each measurement runs in its own process, and rounds
    alternate between settings, so that other load on the machine affects all of them alike.
    Dominated settings are greyed: another setting is no worse in any measure and significantly
    better in one. OUT gets table.md, table.json, picture.svg and page.html. Ctrl-C stops; the same
    command continues.

    For example:

        heedful frontier en-de --source test.en --reference test.de
        heedful frontier run --source a.en --reference a.de --precisions int8 --beams 1 2 4

    Args:
        source: File of sentences to translate, one a line.
        reference: File of reference translations, line by line.
        out: Folder for measurements and results; an existing one is continued.
        minutes: Minutes after which no further measurement starts.
        rounds: Number of measurements of each setting.
        lines: Number of sentences to time, spread over the file.
        alone: Number of those sentences that are also translated one by one, for latency.
    """
    limits = {"minutes": minutes, "rounds": rounds, "lines": lines, "alone": alone}
    report = Report(
        "frontier", output, limits, model=model, source=source, reference=reference, out=out
    )
    if wrong := [name for name, value in limits.items() if value <= 0]:
        raise UserError("It must be positive", where=f"--{wrong[0]}")
    from heedful.apps.comparison.frontier_results import Frontier
    from heedful.apps.comparison.frontier_rounds import MeasuredTask, measure, read_measurements

    texts, references = read_parallel(source, reference)
    task = MeasuredTask.of(
        str(model), texts, references, lines=lines, alone=alone, shortlist=grid.shortlist_file
    )
    settings = grid.grid(task).settings()
    stopped = False
    with terminal() as events:
        say(f"{len(settings)} settings, {rounds} rounds, {task.timed} sentences")
        try:
            measure(task, settings, out, rounds=rounds, minutes=minutes, events=events)
        except KeyboardInterrupt:
            stopped = True
    results = Frontier(read_measurements(task, out), settings)
    if not results.points:
        raise KeyboardInterrupt if stopped else _nothing(results)
    files = _write(results, out)
    if not output.json:
        _show(results, files)
    report.finish({**results.plain(), "stopped": stopped})
    if stopped:
        raise KeyboardInterrupt


def _nothing(results: Frontier) -> UserError:
    """Return the error for a run that measured no setting."""
    if results.problems:
        return UserError(
            f"No setting can be measured: {next(iter(results.problems.values()))}",
            where="heedful frontier",
        )
    return UserError(
        "The time was over before a setting was measured",
        where="--minutes",
        remedy="Give more minutes; the same command continues",
    )


def _write(results: Frontier, out: Path) -> list[Path]:
    """Write tables and, if Altair is installed, a chart and a page; return the files."""
    from heedful.apps.comparison.result_files import has_charts

    tables = [out / "table.md", out / "table.json"]
    if not has_charts():
        results.write(out)
        return tables
    from heedful.apps import charts
    from heedful.apps.comparison.frontier_page import page_of, picture

    charts.save(picture(results), out / "picture.svg")
    results.write(out, page_of(results))
    return [*tables, out / "picture.svg", out / "page.html"]


def _show(results: Frontier, files: list[Path]) -> None:
    faint = [i for i, p in enumerate(results.points) if p.setting in results.dominated]
    show_table(results.about(), results.COLUMNS, results.rows(), faint=faint)
    _say_missing("not possible here", list(map(str, results.problems)))
    _say_missing("not measured yet: no time was left", list(map(str, results.unmeasured)))
    if len(results.dominated) > 0:
        say(
            f"{len(results.dominated)} of {len(results.points)} settings are dominated (greyed): "
            "the one in the last column is no worse in any measure and significantly better in one."
        )
    for name, setting in results.recommended.items():
        say(f"{name}: {results.command(setting)}")
    say(f"Wrote {', '.join(map(str, files))}")
    if len(files) == 2:
        say("For page.html: pip install 'heedful[studio]'")


def _say_missing(why: str, names: Sequence[str]) -> None:
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        say(f"{len(names)} settings are {why}: {'; '.join(names[:3])}{more}")
