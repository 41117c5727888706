"""Train the runs of a comparison one after the other, each in a process of its own."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from heedful.apps.comparison.plan import (
    ComparisonPlan,
    Configuration,
    Run,
    Variant,
    extend_plan,
    load_plan,
    make_plan,
    sweep_variants,
    variants_of,
    with_steps,
    with_usual,
)
from heedful.apps.comparison.results import Comparison, is_finished, read_comparison
from heedful.durable import replace_synced
from heedful.errors import ConfigError, UserError
from heedful.train.run_config import CONFIG_FILE, locked, settings_of_run, write_run
from heedful.train.stop_request import StopRequest
from heedful.train.tasks import prepare_task

if TYPE_CHECKING:
    from heedful.events import Events
    from heedful.text.tokenizer_pair import TokenizerPair

LOG_FILE = "log.txt"

_PATIENCE = 0.2
"""Seconds after which a request to stop is looked for while a run says nothing."""


def compare(
    configurations: Sequence[Configuration] | Mapping[str, Configuration],
    settings: Mapping[str, Any],
    out: Path,
    seeds: int,
    max_flops: float | None,
    events: Events | None,
) -> Comparison:
    """Compare configurations; see `heedful.compare`."""
    return run_comparison(variants_of(configurations, settings), out, seeds, max_flops, events)


def sweep(
    configuration: Configuration,
    setting: str,
    values: Sequence[Any],
    settings: Mapping[str, Any],
    out: Path,
    seeds: int,
    max_flops: float | None,
    events: Events | None,
) -> Comparison:
    """Compare values of one setting; see `heedful.sweep`."""
    variants = sweep_variants(configuration, setting, values, settings)
    return run_comparison(variants, out, seeds, max_flops, events)


def run_comparison(
    variants: Sequence[Variant],
    out: Path,
    seeds: int,
    max_flops: float | None,
    events: Events | None,
) -> Comparison:
    """Train variants, or go on training them; see `heedful.compare`.

    Args:
        variants: resolved configurations; none to go on with those in `out`.
        out: folder of the comparison.
        seeds: runs of each.
        max_flops: budget of each run in operations; None for that of the settings.
        events: receive progress and notes.

    Raises:
        UserError: when there is nothing to go on with, or variants cannot be compared.
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
    write_results(result)
    return result


def write_results(comparison: Comparison, *, page: bool = True) -> None:
    """Write table.json, table.md and, where charts can be drawn, page.html.

    Args:
        comparison: its results so far.
        page: whether to write the page, too.
    """
    out = comparison.out
    table = json.dumps(comparison.plain(), indent=2, ensure_ascii=False) + "\n"
    replace_synced(out / "table.json", table.encode())
    replace_synced(out / "table.md", comparison.markdown().encode())
    if not page or not comparison.ranking:
        return
    try:
        from heedful.apps.comparison.comparison_page import page_of
    except ConfigError:  # without the extra there are the tables
        return
    replace_synced(out / "page.html", page_of(comparison).encode())


def _prepared(plan: ComparisonPlan, out: Path, events: Events) -> ComparisonPlan:
    """Read the data of variants that are new, count their operations, and write their runs.

    Raises:
        ConfigError: when the data or the tokenizers turn out to differ.
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
        # All use the tokenizer that the first one trains: their settings for it are the same.
        variant, task = _prepare(variant, plan.max_flops, out, tokenizers, events)
        tokenizers = task.tokenizers
        if fingerprint and task.fingerprint != fingerprint:
            raise ConfigError(
                f"The data or the tokenizer of {variant.name} is not that of the others",
                where=str(out),
                remedy="Do not change files while they are compared; name another --out",
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
    # The cache must be known before data is read.
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
    _warn_of_schedule(variant, events)
    return replace(variant, parameters=parameters, flops_per_update=flops), task


def _warn_of_schedule(variant: Variant, events: Events) -> None:
    settings = variant.settings
    if settings.max_minutes is not None and settings.schedule.kind in ("cosine", "linear"):
        events.warn(
            f"{variant.name}: the learning rate falls until update {settings.max_steps:,}, which "
            f"{settings.max_minutes:g} minutes may not reach; --max-steps sets it"
        )


def _train_all(
    plan: ComparisonPlan, out: Path, stop: StopRequest, events: Events
) -> dict[str, str]:
    """Train what is not finished; return the problem of each run that failed, by its label."""
    runs = plan.runs(out)
    problems: dict[str, str] = {}
    for number, run in enumerate(runs, start=1):
        if is_finished(run):
            continue
        if stop:
            break
        _check_unchanged(run)
        problem = _Worker(run, events).train(stop)
        if problem:
            problems[run.label] = problem
            events.warn(f"{run.label}: {problem}")
        elif is_finished(run):
            events.note(f"{number} of {len(runs)}: {read_comparison(plan, out).line(run)}")
            write_results(read_comparison(plan, out, problems), page=False)
    return problems


def _check_unchanged(run: Run) -> None:
    """Refuse a run directory whose settings someone has edited.

    Raises:
        ConfigError: when they are not those of the plan.
    """
    if settings_of_run(run.directory).plain() != run.settings.plain():
        raise ConfigError(
            "The settings of this run are not those of the comparison",
            where=str(run.directory / CONFIG_FILE),
            remedy="Restore the file, or name another --out",
        )


@dataclass(frozen=True)
class _Worker:
    """The process that trains one run, and what it says.

    Args:
        run: to be trained.
        events: receive its progress and warnings.
    """

    run: Run
    events: Events

    def train(self, stop: StopRequest) -> str | None:
        """Train until the run ends, or has saved because a stop was asked for.

        Returns:
            What went wrong, or None.
        """
        last: dict[str, Any] = {}
        with self._process() as (process, lines):
            asked = False
            while (item := self._next(lines)) is not None:
                if stop and not asked:
                    process.send_signal(signal.SIGTERM)
                    asked = True
                if item:
                    last = item
                    self._tell(item)
            process.wait()
        if "finished" in last:
            return None
        log = self.run.directory / LOG_FILE
        return str(
            last.get("problem", f"The process ended with status {process.returncode}; see {log}")
        )

    def _tell(self, item: Mapping[str, Any]) -> None:
        if "done" in item:
            self.events.progress(item["done"], item["total"], self.run.label, **item["fields"])
        elif "warning" in item:
            self.events.warn(f"{self.run.label}: {item['warning']}")

    @staticmethod
    def _next(lines: queue.SimpleQueue[str | None]) -> dict[str, Any] | None:
        """The next line; nothing if none has come for a while, None at the end."""
        try:
            line = lines.get(timeout=_PATIENCE)
        except queue.Empty:
            return {}
        if line is None:
            return None
        item: dict[str, Any] = json.loads(line)
        return item

    @contextmanager
    def _process(
        self,
    ) -> Iterator[tuple[subprocess.Popen[str], queue.SimpleQueue[str | None]]]:
        """A context with the process and its lines; it never outlives the context."""
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        with (self.run.directory / LOG_FILE).open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "heedful.apps.comparison.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": path},
                # Ctrl-C of a terminal goes to this process alone, which passes it on once.
                start_new_session=True,
            )
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(json.dumps(str(self.run.directory)) + "\n")
                process.stdin.flush()
                lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
                threading.Thread(
                    target=_read_lines, args=(process.stdout, lines), daemon=True
                ).start()
                yield process, lines
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
                process.stdin.close()


def _read_lines(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)
