"""`heedful compare` and `heedful sweep`: train several configurations and compare them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

import heedful
from heedful.cli.parser import overrides
from heedful.cli.text_io import Output, Report, say, show_table, terminal
from heedful.cli.train import SettingsFlags, corpora_settings
from heedful.config import merge, read_toml
from heedful.errors import ConfigError
from heedful.train.task_rules import takes_pairs

if TYPE_CHECKING:
    from heedful.apps.comparison.results import Comparison
    from heedful.events import Event, Events

_GROUP = Group("Comparison", sort_key=1)

_FILES = Parameter(consume_multiple=True)
_SEEDS = 3


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class ComparisonFlags:
    """The folder of a comparison, and the seeds, budget and corpora of its runs.

    Args:
        out: Folder for the comparison and its runs, created if missing.
        seeds: Number of runs of each configuration, with seeds from --seed on. [default: 3]
        max_flops: Budget of each run in floating-point operations as estimated by the cost model,
            such as 1e15; instead of --max-steps or --max-minutes.
        train: Training files as for `heedful train`, instead of those in the configurations.
        valid: Validation files as for `heedful train`, instead of those in the configurations.
    """

    out: Path
    seeds: int | None = None
    max_flops: float | None = None
    train: Annotated[list[str] | None, _FILES] = None
    valid: Annotated[list[str] | None, _FILES] = None

    def settings(self, flags: SettingsFlags | None, config: str | None) -> dict[str, Any]:
        """Return the settings of all runs.

        Args:
            flags: flags of settings.
            config: first configuration, whose task decides whether corpora are pairs.
        """
        values = overrides(flags)
        if not self.train and not self.valid:
            return values
        task = values.get("task")
        if task is None and config is not None and Path(config).is_file():
            task = read_toml(Path(config)).get("task")
        pairs = takes_pairs(task or "translation")
        return merge(values, corpora_settings(self.train, self.valid, None, pairs=pairs))

    def plain(self) -> dict[str, Any]:
        """The folder, the seeds and the budget."""
        return {"out": self.out, "seeds": self.seeds, "max_flops": self.max_flops}

    def run(self, work: Callable[..., Comparison], values: dict[str, Any], report: Report) -> int:
        """Compare configurations, show the table, and print how to continue if runs are unfinished.

        Args:
            work: function that runs and compares the configurations.
            values: settings of all runs.
            report: report of the command.

        Returns:
            The exit status, 1 if runs are unfinished.
        """
        from heedful.events import Events

        try:
            import heedful.apps.charts  # noqa: F401
        except ConfigError as error:
            say(f"{error} Without it, tables are written but no page.")
        options = self.plain() | {"seeds": _SEEDS if self.seeds is None else self.seeds}
        with terminal() as events:
            shown = Events([_OneLine(events)])
            result = work(**options, settings=values, events=shown)
        if not report.output.json:
            columns = result.columns()
            title = result.plan.budget().capitalize()
            show_table(title, columns, list(result.rows()), numbers=len(columns) - 1)
            for name in ("table.md", "page.html"):
                if (result.out / name).exists():
                    say(f"{result.out / name}")
            if not result.finished:
                left = sum(run.state != "finished" for run in result.runs)
                say(f"{left} of {len(result.runs)} runs are left. Continue with:")
                say(f"    heedful compare --out {result.out}")
        report.finish({"out": str(result.out), **result.plain()})
        return 0 if result.finished else 1


def compare(
    *configs: Annotated[str, Parameter(group=_GROUP)],
    comparison: ComparisonFlags,
    settings: SettingsFlags | None = None,
    output: Output = Output(),
) -> int:
    """Train several configurations on the same data and budget, and compare them.

    Each configuration is trained with several seeds. OUT/table.md and OUT/table.json list final
    scores with confidence intervals, seconds, tokens per second, operations, parameters and memory;
    OUT/page.html also shows learning curves, and works offline. Each run in OUT/runs is an ordinary
    run directory, which `heedful studio` opens. Ctrl-C saves and stops; `heedful compare --out OUT`
    continues without repeating finished runs. Every setting of `heedful train` is a flag here, too,
    and overrides that setting of all configurations.

    For example:

        heedful compare rotary.toml alibi.toml --out positions --seeds 3 --max-steps 2000
        heedful compare tiny small --train a.en a.de --valid b.en b.de --out sizes --max-minutes 10
        heedful compare wide.toml deep.toml --out shapes --max-flops 1e15
        heedful compare --out positions

    Args:
        configs: Configurations to compare: TOML files as for `heedful train`, or presets; none to
            continue a comparison.
    """
    values = comparison.settings(settings, configs[0] if configs else None)
    flags = comparison.plain()
    report = Report("compare", output, flags, configs=configs, overrides=values)
    if not configs and (values or flags["seeds"] is not None or flags["max_flops"] is not None):
        raise ConfigError(
            "A comparison that is continued keeps its configurations and settings",
            where="heedful compare",
            remedy="Name the configurations, or leave out all flags but --out",
        )
    return comparison.run(partial(heedful.compare, configs), values, report)


def sweep(
    config: Annotated[str, Parameter(group=_GROUP)],
    /,
    *,
    over: Annotated[str, Parameter(group=_GROUP)],
    comparison: ComparisonFlags,
    settings: SettingsFlags | None = None,
    output: Output = Output(),
) -> int:
    """Train a configuration with several values of one setting, and compare them.

    Seeds, budget, tables and the page are those of `heedful compare`. `heedful compare --out OUT`
    continues an interrupted sweep.

    For example:

        heedful sweep small.toml --over model.width=128,256,512 --out widths --max-steps 2000
        heedful sweep small.toml --over model.positions=rotary,alibi --out positions

    Args:
        config: Configuration to vary: a TOML file as for `heedful train`, or a preset.
        over: Setting to vary and its values, such as model.width=128,256,512.
    """
    values = comparison.settings(settings, config)
    flags = {"config": config, "over": over, "overrides": values}
    report = Report("sweep", output, comparison.plain(), flags)
    from heedful.apps.comparison.plan import parse_sweep

    setting, choices = parse_sweep(over)
    return comparison.run(partial(heedful.sweep, config, setting, choices), values, report)


class _OneLine:
    """An event sink that shows a progress bar on a terminal, and otherwise prints a line per run.

    Args:
        events: events of the terminal.
    """

    def __init__(self, events: Events) -> None:
        self.events = events

    def handle(self, event: Event) -> None:
        """Pass the event on, except progress that would print many lines."""
        from heedful.events import Progress

        if sys.stderr.isatty() or not isinstance(event, Progress):
            self.events.emit(event)

    def close(self) -> None:
        """Do nothing; the terminal closes its own events."""
