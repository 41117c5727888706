"""`heedful models`: the trained models that come with Heedful."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from heedful.cli.text_io import Output, Report, engineering, print_json, show_table
from heedful.errors import ModelError, suggest
from heedful.pretrained.catalogue import Card, ModelAtHand, models_at_hand


def models(
    name: str = "",
    /,
    *,
    output: Output = Output(),
) -> None:
    """List the trained models that come with Heedful.

    Every command accepts these names in place of a model directory: `heedful translate en-de`. A
    directory of the same name takes precedence, with a note.

    For example:

        heedful models
        heedful models en-de
        echo "I love cats." | heedful translate en-de

    Args:
        name: Name of a model whose card is shown; a table of all models if unset.
    """
    report = Report("models", output, name=name)
    at_hand = models_at_hand()
    if name and name not in at_hand:
        raise ModelError(
            "There is no model at hand of this name",
            where=name,
            remedy=suggest(name, at_hand) or f"There are {', '.join(at_hand) or 'none'}",
        )
    facts = [_facts(each) for each in at_hand.values() if name in ("", each.name)]
    if output.json:
        for each in facts:
            print_json(each)
    elif name:
        _print_card(name, at_hand[name].card(), facts[0])
    else:
        show_table(
            "Models at hand",
            ("name", "for", "parameters", "MB", "quality"),
            [
                (
                    each["name"],
                    each["summary"],
                    engineering(each["parameters"]),
                    f"{each['bytes'] / 1e6:.1f}",
                    _qualities(each["scores"]),
                )
                for each in facts
            ],
            numbers=3,
        )
    report.finish({"models": facts}, summary=False)


def _qualities(scores: Sequence[Mapping[str, Any]]) -> str:
    """Return the scores of a card as text, grouped by the system they are measured against."""
    groups: dict[str, list[str]] = {}
    for score in scores:
        groups.setdefault(score["against"], []).append(f"{score['metric']} {score['value']:g}")
    return "; ".join(
        ", ".join(found) + (f" against {against}" if against else "")
        for against, found in groups.items()
    )


def _facts(model: ModelAtHand) -> dict[str, Any]:
    """Return a model's card with its size, as JSON data."""
    from heedful.models.compact_weights import stored_parameters

    count = sum(stored_parameters(model.path).values())
    size = {"name": model.name, "parameters": count, "bytes": model.size}
    return size | model.card().plain()


def _print_card(name: str, card: Card, facts: dict[str, Any]) -> None:
    lines = [f"{name}: {card.title}", "", card.summary, ""]
    rows = {
        "parameters": f"{facts['parameters']:,} in {facts['bytes'] / 1e6:.1f} MB",
        "data": card.data,
        "licence": card.licence,
        "attribution": card.attribution,
        "made by": card.command,
        "on": f"{card.machine}, {card.date}, {card.minutes:g} minutes of training",
    }
    lines += [f"{key}: {value}" for key, value in rows.items()]
    lines += ["", "Measured on data it was not trained on:"]
    for score in card.scores:
        interval = ""
        if score.interval is not None:
            interval = f" (95 %: {score.interval[0]:g} to {score.interval[1]:g})"
        note = f" {score.note}" if score.note else ""
        against = f" against {score.against}" if score.against else ""
        lines.append(f"  {score.metric} {score.value:g}{interval}{against}, {score.data}.{note}")
    if heads := [each for each in card.noted_heads if each.gain[0] > 0]:
        lines += ["", "Heads that find a word better than one at a fixed place (layer.head):"]
    for each in heads:
        beside = f"{each.offset_share:.0%} at {each.offset:+d}"
        right = f"{each.share:.0%} of {each.count:,} words, {beside}"
        lines.append(f"  {each.relation}: {each.part} {each.layer}.{each.head}, {right}")
    lines += ["", "What it cannot do:", *(f"  {limit}" for limit in card.limits)]
    # Whole records, such as pictures, are for the studio.
    # A command is one line, and short enough to be typed.
    all_texts = [each.text for each in card.examples]
    texts = [text for text in all_texts if len(text) <= LONGEST and "\n" not in text]
    if texts:
        lines += ["", "To begin with:", *(f"  {_command(name, card, text)}" for text in texts)]
    for line in lines:
        print(line)


LONGEST = 240
"""Maximum number of characters of an example in a command."""

_VERBS = {
    "translation": "translate {}",
    "causal_lm": "generate {} --prompt",
    "masked_lm": "fill {}",
    "tokens": "generate {} --prompt",
}
"""Verb for an example text of a task; images and sounds have none."""


def _command(name: str, card: Card, text: str) -> str:
    """Return the command of an example."""
    # Double quotes are easier to read and to change, as most texts have an apostrophe.
    quoted = shlex.quote(text) if re.search(r'["$`!\\]', text) else f'"{text}"'
    return f"heedful {_VERBS[card.task].format(name)} {quoted}"
