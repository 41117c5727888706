"""`heedful demo`: data, training, translation and a look inside, in about a minute."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from heedful.cli.output import PLAIN, Output, Report
from heedful.cli.tables import say

if TYPE_CHECKING:
    from heedful.cli.demo_run import DemoResult

WRONG_SHOWN = 3


def demo(
    *,
    out: Annotated[
        Path, Parameter(help="Folder for the pairs and the run, made if missing.")
    ] = Path("heedful-demo"),
    source: Annotated[
        str, Parameter(name="--from", help="Locale to translate from, such as en, de or pt-BR.")
    ] = "en",
    target: Annotated[str, Parameter(name="--to", help="Locale to translate to.")] = "fr",
    pairs: Annotated[int, Parameter(help="Pairs to train on.")] = 50_000,
    held_out: Annotated[
        int, Parameter(help="Items to test with, and as many again to validate with.")
    ] = 1000,
    steps: Annotated[int, Parameter(help="Updates to train for.")] = 1000,
    minutes: Annotated[float, Parameter(help="Training ends here if it is not done before.")] = 3.0,
    seed: Annotated[int, Parameter(help="Of the generated pairs and of training.")] = 1,
    output: Output = PLAIN,
) -> None:
    """Train on generated dates, prices and measures in about a minute, and translate.

    Writes dates, times, prices, measures and durations in two languages as CLDR has them, trains a
    small model on them as `heedful train` would, and translates items whose dates and amounts it
    has not seen. Shows how many are right to the last character, and what the model looked at.

    The folder keeps everything: OUT/pairs the text, OUT/run the run with its model, which
    `heedful translate OUT/run` takes. The same command given again shows the demo it finds there;
    one that was stopped goes on.

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
    from heedful.decode.picture import draw_alignment

    width = min(100, shutil.get_terminal_size().columns)
    for example in result.examples:
        print(f"{example.source}\n→ {example.translation}{_verdict(example.plain())}\n")
        if example.translation.alignment is not None:
            print(draw_alignment(example.translation.alignment, width=width) + "\n")
    wrong = result.wrong()
    print(
        f"{result.exact_match:.1%} of {len(result.tested):,} items with dates and amounts it has "
        "not seen are right to the last character."
    )
    for example in wrong[:WRONG_SHOWN]:
        print(f"  {example.source} → {example.translation}{_verdict(example.plain())}")
    if len(wrong) > WRONG_SHOWN:
        print(f"  and {len(wrong) - WRONG_SHOWN} more")
    if result.training["steps"] < steps:
        say(
            f"Training was cut at {result.training['steps']} of {steps} updates: this machine is "
            "slow or busy, and --minutes allows it more time."
        )
    say(
        f"The pairs are in {out / 'pairs'}, the run in {out / 'run'}. Try: "
        f"echo '{result.examples[0].source}' | heedful translate {out / 'run'}"
    )


def _verdict(example: dict[str, Any]) -> str:
    return "" if example["exact"] else f"   (should be: {example['reference']})"
