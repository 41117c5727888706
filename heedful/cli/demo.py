"""`heedful demo`: generate data, train, translate and show an alignment, in a few minutes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from heedful.cli.text_io import PLAIN, Output, Report, say

if TYPE_CHECKING:
    from heedful.cli.demo_run import DemoResult

WRONG_SHOWN = 3


def demo(
    *,
    out: Annotated[
        Path, Parameter(help="Folder for the sentence pairs and the run, created if missing.")
    ] = Path("heedful-demo"),
    source: Annotated[
        str, Parameter(name="--from", help="Locale to translate from, such as en, de or pt-BR.")
    ] = "en",
    target: Annotated[
        str, Parameter(name="--to", help="Locale to translate into, such as fr or ja.")
    ] = "fr",
    pairs: Annotated[int, Parameter(help="Number of training pairs.")] = 50_000,
    held_out: Annotated[
        int,
        Parameter(help="Number of items held out for testing, and as many more for validation."),
    ] = 1000,
    steps: Annotated[int, Parameter(help="Number of training updates.")] = 1000,
    minutes: Annotated[float, Parameter(help="Time limit of training in minutes.")] = 3.0,
    seed: Annotated[int, Parameter(help="Random seed of the generated pairs and of training.")] = 1,
    output: Output = PLAIN,
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
    """
    from heedful.cli.demo_run import DemoPlan, run_demo
    from heedful.events import Events, Terminal

    plan = DemoPlan(
        source, target, pairs=pairs, held_out=held_out, steps=steps, minutes=minutes, seed=seed
    )
    report = Report("demo", output, {"out": str(out), **plan.plain()})
    events = Events([Terminal()])
    try:
        result = run_demo(out, plan, events)
    finally:
        events.close()
    if not output.json:
        _show(result, out, steps)
    report.finish(result.plain())


def _show(result: DemoResult, out: Path, steps: int) -> None:
    from heedful.search.alignment import draw_alignment

    width = min(100, shutil.get_terminal_size().columns)
    for example in result.examples:
        print(f"{example.source}\n→ {example.translation}{_verdict(example.plain())}\n")
        if example.translation.alignment is not None:
            print(draw_alignment(example.translation.alignment, width=width) + "\n")
    wrong = result.wrong()
    print(
        f"{result.exact_match:.1%} of {len(result.tested):,} items with unseen dates and amounts "
        "are translated exactly."
    )
    for example in wrong[:WRONG_SHOWN]:
        print(f"  {example.source} → {example.translation}{_verdict(example.plain())}")
    if len(wrong) > WRONG_SHOWN:
        print(f"  and {len(wrong) - WRONG_SHOWN} more")
    if result.training["steps"] < steps:
        say(
            f"Training stopped at {result.training['steps']} of {steps} updates by the time limit; "
            "--minutes allows more."
        )
    say(
        f"The pairs are in {out / 'pairs'}, the run in {out / 'run'}. Try: "
        f"echo '{result.examples[0].source}' | heedful translate {out / 'run'}"
    )


def _verdict(example: dict[str, Any]) -> str:
    return "" if example["exact"] else f"   (should be: {example['reference']})"
