"""`heedful demo`: generate data, train, translate and show an alignment, in a few minutes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from heedful.cli.text_io import Output, Report, say, terminal

if TYPE_CHECKING:
    from heedful.cli.demo_run import DemoResult, Tested

WRONG_SHOWN = 3


def demo(
    *,
    out: Path = Path("heedful-demo"),
    source: Annotated[str, Parameter(name="--from")] = "en",
    target: Annotated[str, Parameter(name="--to")] = "fr",
    pairs: int = 50_000,
    held_out: int = 1000,
    steps: int = 1000,
    minutes: float = 3.0,
    seed: int = 1,
    output: Output = Output(),
) -> None:
    """Train a small translator in a few minutes, on generated dates, prices and measures.

    The demo writes dates, times, prices, measures and durations in two languages by the rules of
    CLDR, trains a small model on them as `heedful train` does, and translates items with dates and
    amounts that are not in the training pairs. It reports the share of exact translations and draws
    the word alignment of some.

    OUT/pairs holds the text, and OUT/run the run with its model, for `heedful translate OUT/run`.
    The same command again shows the finished demo, or continues an interrupted one.

    For example:

        heedful demo --from en --to ja --out demo-ja

    Args:
        out: Folder for the sentence pairs and the run, created if missing.
        source: Locale to translate from, such as en, de or pt-BR.
        target: Locale to translate into, such as fr or ja.
        pairs: Number of training pairs.
        held_out: Number of items held out for testing, and as many more for validation.
        steps: Number of training updates.
        minutes: Time limit of training in minutes.
        seed: Random seed of the generated pairs and of training.
    """
    from heedful.cli.demo_run import DemoPlan, run_demo

    plan = DemoPlan(
        source, target, pairs=pairs, held_out=held_out, steps=steps, minutes=minutes, seed=seed
    )
    report = Report("demo", output, plan.plain(), out=out)
    with terminal() as events:
        result = run_demo(out, plan, events)
    if not output.json:
        _show(result, out, steps)
    report.finish(result.plain())


def _show(result: DemoResult, out: Path, steps: int) -> None:
    from heedful.search.alignment import draw_alignment

    width = min(100, shutil.get_terminal_size().columns)
    for example in result.examples:
        print(f"{example.item.source}\n→ {example.translation}{_verdict(example)}\n")
        if example.translation.alignment is not None:
            print(draw_alignment(example.translation.alignment, width=width) + "\n")
    wrong = result.wrong()
    print(
        f"{result.exact_match:.1%} of {len(result.tested):,} items with unseen dates and amounts "
        "are translated exactly."
    )
    for example in wrong[:WRONG_SHOWN]:
        print(f"  {example.item.source} → {example.translation}{_verdict(example)}")
    if len(wrong) > WRONG_SHOWN:
        print(f"  and {len(wrong) - WRONG_SHOWN} more")
    if result.training["steps"] < steps:
        say(
            f"Training stopped at {result.training['steps']} of {steps} updates by the time limit; "
            "--minutes allows more."
        )
    # `make demo` runs in an environment that no shell has activated.
    command = "heedful" if shutil.which("heedful") else f"{sys.executable} -m heedful"
    say(
        f"The pairs are in {out / 'pairs'}, the run in {out / 'run'}. Try: "
        f"echo '{result.examples[0].item.source}' | {command} translate {out / 'run'}"
    )


def _verdict(example: Tested) -> str:
    return "" if example.exact else f"   (should be: {example.item.target})"
