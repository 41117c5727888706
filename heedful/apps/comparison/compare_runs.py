"""Train the runs of a comparison one after the other, each in a separate process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.apps.comparison.plan import (
    ComparisonPlan,
    Run,
    Variant,
    extend_plan,
    load_plan,
    make_plan,
    with_steps,
    with_usual,
)
from heedful.apps.comparison.result_files import has_charts
from heedful.apps.comparison.results import Comparison, is_finished, read_comparison
from heedful.apps.comparison.worker_process import run_job
from heedful.errors import ConfigError, UserError
from heedful.train.run_config import CONFIG_FILE, locked, settings_of_run, write_run
from heedful.train.stop_request import StopRequest
from heedful.train.task import prepare_task

if TYPE_CHECKING:
    from heedful.events import Events
    from heedful.text.tokenizer_pair import TokenizerPair

__all__ = ["Comparison", "run_comparison"]

LOG_FILE = "log.txt"


def run_comparison(
    variants: Sequence[Variant],
    out: Path,
    seeds: int,
    max_flops: float | None,
    events: Events | None,
) -> Comparison:
    """Train variants, or continue their training; see `heedful.compare`.

    Args:
        variants: resolved configurations; empty to continue the comparison in `out`.
        out: folder of the comparison.
        seeds: number of runs of each variant.
        max_flops: budget of each run in operations; None for the budget in its settings.
        events: receiver of progress and notes.

    Raises:
        UserError: when there is no comparison to continue, or variants cannot be compared.
    """
    from heedful.events import Events

    events = Events() if events is None else events
    before = load_plan(out)
    if not variants and before is None:
        raise UserError(
            "There is no comparison to go on with",
            where=str(out),
            remedy="Name configurations or presets",
        )
    plan = make_plan(variants, seeds, max_flops) if variants else before
    assert plan is not None
    with locked(out):
        if before is not None:
            plan = extend_plan(before, plan, out) if variants else before
        with StopRequest() as stop:
            plan = _prepared(plan, out, events)
            plan.save(out)
            problems = _train_all(plan, out, stop, events)
    result = read_comparison(plan, out, problems)
    page = None
    if result.ranking and has_charts():
        from heedful.apps.comparison.comparison_page import page_of

        page = page_of(result)
    result.write(out, page)
    return result


def _prepared(plan: ComparisonPlan, out: Path, events: Events) -> ComparisonPlan:
    """Read the data of new variants, count their operations, and write their run directories.

    Raises:
        ConfigError: when the data or the tokenizers of two variants differ.
    """
    variants: list[Variant] = []
    fingerprint = plan.fingerprint
    tokenizers: TokenizerPair | None = None
    for variant in plan.variants:
        if variant.parameters and all(
            (run.directory / CONFIG_FILE).exists()
            for run in replace(plan, variants=(variant,)).runs(out)
        ):
            variants.append(variant)
            continue
        events.note(f"Preparing {variant.name}")
        # The first variant trains the tokenizer for all: `make_plan` refuses other tokenizer
        # settings.
        variant, task = _prepare(variant, plan.max_flops, out, tokenizers, events)
        tokenizers = task.tokenizers
        if fingerprint and task.fingerprint != fingerprint:
            raise ConfigError(
                f"{variant.name} has other data or another tokenizer than the others",
                where=str(out),
                remedy="Keep data files unchanged; start again with another --out",
            )
        fingerprint = task.fingerprint
        for run in replace(plan, variants=(variant,)).runs(out):
            if not (run.directory / CONFIG_FILE).exists():
                run.directory.mkdir(parents=True, exist_ok=True)
                write_run(run.directory, run.settings, tokenizers)
        variants.append(variant)
    return replace(plan, variants=tuple(variants), fingerprint=fingerprint)


def _prepare(
    variant: Variant,
    max_flops: float | None,
    out: Path,
    tokenizers: TokenizerPair | None,
    events: Events,
) -> tuple[Variant, Any]:
    from heedful.apps.comparison.update_cost import flops_per_update
    from heedful.events import Events

    if not variant.parameters and max_flops is None:
        variant = with_usual(variant, out)
    # Reading the data fills the folder of encoded data, which is a setting.
    settings = with_usual(variant, out).settings
    out.mkdir(parents=True, exist_ok=True)
    task = prepare_task(out, settings, tokenizers, Events())
    model = task.new_model()
    flops = flops_per_update(model, task.source, settings.optimizer.accumulate)
    parameters = sum(p.numel() for p in model.parameters())
    if max_flops is not None and not variant.parameters:
        steps = round(max_flops / flops)
        if steps < 1:
            raise ConfigError(
                f"An update of {variant.name} takes {flops:.3g} operations",
                where=f"max_flops = {max_flops:g}",
                remedy="Give a larger budget",
            )
        variant = with_usual(with_steps(variant, steps), out)
    final = variant.settings
    if final.max_minutes is not None and final.schedule.ends:
        events.warn(
            f"{variant.name}: the learning rate falls until update {final.max_steps:,}, which "
            f"{final.max_minutes:g} minutes may not reach; --max-steps sets it"
        )
    return replace(variant, parameters=parameters, flops_per_update=flops), task


def _train_all(
    plan: ComparisonPlan, out: Path, stop: StopRequest, events: Events
) -> dict[str, str]:
    """Train the unfinished runs; return the error message of each failed run, by its label."""
    runs = plan.runs(out)
    problems: dict[str, str] = {}
    for number, run in enumerate(runs, start=1):
        if is_finished(run):
            continue
        if stop:
            break
        _check_unchanged(run)
        problem = _train(run, stop, events)
        if problem:
            problems[run.label] = problem
            events.warn(f"{run.label}: {problem}")
        elif is_finished(run):
            results = read_comparison(plan, out, problems)
            events.note(f"{number} of {len(runs)}: {results.line(run)}")
            results.write(out)
    return problems


def _check_unchanged(run: Run) -> None:
    """Refuse a run directory whose settings were edited.

    Raises:
        ConfigError: when the settings differ from those of the plan.
    """
    if settings_of_run(run.directory).plain() != run.settings.plain():
        raise ConfigError(
            "The settings of this run differ from those of the comparison",
            where=str(run.directory / CONFIG_FILE),
            remedy="Restore the file, or name another --out",
        )


def _train(run: Run, stop: StopRequest, events: Events) -> str | None:
    """Train until the run ends, or until it has saved after a request to stop.

    Returns:
        The error message, or None.
    """

    def report(line: Mapping[str, Any]) -> None:
        if "done" in line:
            events.progress(line["done"], line["total"], run.label, **line["fields"])
        elif "warning" in line:
            events.warn(f"{run.label}: {line['warning']}")

    path = run.directory / LOG_FILE
    with path.open("w", encoding="utf-8") as log:
        ending = run_job("train", str(run.directory), log, on_line=report, stop=stop)
    if "result" in ending:
        return None
    killed = f"The process ended with status {ending.get('status')}; see {path}"
    return str(ending.get("problem", killed))
