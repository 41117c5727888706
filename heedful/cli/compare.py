"""`heedful compare` and `heedful sweep`: train several configurations and compare them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

import heedful
from heedful.cli.parser import overrides
from heedful.cli.text_io import PLAIN, Output, Report, say, show_table, terminal
from heedful.cli.train import SettingsFlags, corpora_settings
from heedful.config import merge
from heedful.errors import ConfigError

if TYPE_CHECKING:
    from heedful.apps.comparison.results import Comparison
    from heedful.events import Event, Events

_GROUP = Group("Comparison", sort_key=1)

Out = Annotated[
    Path,
    Parameter(group=_GROUP, help="Folder for the comparison and its runs, created if missing."),
]
Seeds = Annotated[
    int | None,
    Parameter(
        group=_GROUP,
        help="Number of runs of each configuration, with seeds from --seed on. [default: 3]",
    ),
]
MaxFlops = Annotated[
    float | None,
    Parameter(
        group=_GROUP,
        help="Budget of each run in floating-point operations as estimated by the cost model, "
        "such as 1e15; instead of --max-steps or --max-minutes.",
    ),
]
_FILES: Any = {"group": _GROUP, "consume_multiple": True, "negative": ()}
TrainFiles = Annotated[
    list[str] | None,
    Parameter(
        help="Training files as for `heedful train`, instead of those in the configurations.",
        **_FILES,
    ),
]
ValidFiles = Annotated[
    list[str] | None,
    Parameter(
        help="Validation files as for `heedful train`, instead of those in the configurations.",
        **_FILES,
    ),
]


def compare(
    *configs: Annotated[
        str,
        Parameter(
            group=_GROUP,
            help="Configurations to compare: TOML files as for `heedful train`, or presets; none "
            "to continue a comparison.",
        ),
    ],
    out: Out,
    seeds: Seeds = None,
    max_flops: MaxFlops = None,
    train: TrainFiles = None,
    valid: ValidFiles = None,
    settings: SettingsFlags | None = None,
    output: Output = PLAIN,
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
    """
    values = merge(overrides(settings), _corpora(configs[:1], train, valid, settings))
    flags = {"configs": list(configs), "out": str(out), "seeds": seeds, "max_flops": max_flops}
    report = Report("compare", output, {**flags, "overrides": values})
    if not configs and (values or seeds is not None or max_flops is not None):
        raise ConfigError(
            "A comparison that is continued keeps its configurations and settings",
            where="heedful compare",
            remedy="Name the configurations, or leave out all flags but --out",
        )

    options = _options(out, seeds, max_flops, values)
    return _run(partial(heedful.compare, configs, **options), report)


def sweep(
    config: Annotated[
        str,
        Parameter(
            group=_GROUP,
            help="Configuration to vary: a TOML file as for `heedful train`, or a preset.",
        ),
    ],
    /,
    *,
    over: Annotated[
        str,
        Parameter(
            group=_GROUP, help="Setting to vary and its values, such as model.width=128,256,512."
        ),
    ],
    out: Out,
    seeds: Seeds = None,
    max_flops: MaxFlops = None,
    train: TrainFiles = None,
    valid: ValidFiles = None,
    settings: SettingsFlags | None = None,
    output: Output = PLAIN,
) -> int:
    """Train a configuration with several values of one setting, and compare them.

    Seeds, budget, tables and the page are those of `heedful compare`. `heedful compare --out OUT`
    continues an interrupted sweep.

    For example:

        heedful sweep small.toml --over model.width=128,256,512 --out widths --max-steps 2000
        heedful sweep small.toml --over model.positions=rotary,alibi --out positions
    """
    values = merge(overrides(settings), _corpora((config,), train, valid, settings))
    flags = {"config": config, "over": over, "out": str(out), "seeds": seeds}
    report = Report("sweep", output, {**flags, "max_flops": max_flops, "overrides": values})
    from heedful.apps.comparison.plan import parse_sweep

    setting, choices = parse_sweep(over)

    options = _options(out, seeds, max_flops, values)
    return _run(partial(heedful.sweep, config, setting, choices, **options), report)


_SEEDS = 3


def _options(
    out: Path, seeds: int | None, max_flops: float | None, values: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments that a comparison and a sweep share."""
    seeds = _SEEDS if seeds is None else seeds
    return {"out": out, "seeds": seeds, "max_flops": max_flops, "settings": values}


def _run(work: Callable[..., Comparison], report: Report) -> int:
    """Run the comparison, show its table, and print how to continue if runs are left."""
    from heedful.events import Events

    try:
        import heedful.apps.charts  # noqa: F401
    except ConfigError as error:
        say(f"{error} Without it, tables are written but no page.")
    with closing(Events([_OneLine(terminal())])) as events:
        result = work(events=events)
    if not report.output.json:
        columns = result.columns()
        show_table(
            f"{result.plan.budget().capitalize()}",
            columns,
            list(result.rows()),
            numbers=len(columns) - 1,
        )
        for name in ("table.md", "page.html"):
            if (result.out / name).exists():
                say(f"{result.out / name}")
        if not result.finished:
            left = sum(run.state != "finished" for run in result.runs)
            say(f"{left} of {len(result.runs)} runs are left. Continue with:")
            say(f"    heedful compare --out {result.out}")
    report.finish({"out": str(result.out), **result.plain()})
    return 0 if result.finished else 1


class _OneLine:
    """An event sink that shows a progress bar on a terminal, and elsewhere a line for each run.

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
        """Restore the terminal."""
        self.events.close()


def _corpora(
    configs: tuple[str, ...], train: list[str] | None, valid: list[str] | None, settings: Any
) -> dict[str, Any]:
    """Return the flags of corpora as settings; the first configuration's task decides on pairs."""
    if not train and not valid:
        return {}
    task = overrides(settings).get("task")
    if task is None and configs and Path(configs[0]).is_file():
        from heedful.config import read_toml

        task = read_toml(Path(configs[0])).get("task")
    return corpora_settings(train, valid, None, pairs=task in (None, "translation", "images"))
