"""`heedful presets`: list the named model sizes."""

from __future__ import annotations

from typing import Any

from heedful.cli.output import PLAIN, Output, Report, engineering, show_table


def presets(*, output: Output = PLAIN) -> None:
    """List the named model sizes.

    A preset is a set of settings: `heedful train RUN --preset tiny …` starts from it, and flags
    override each setting. Presets of published models fit some tasks only: `heedful train RUN
    --task causal_lm --preset gpt2 …` trains a new model of that shape on your texts. They show
    the published number of parameters beside the one counted here. `heedful info tiny` shows the
    parts and the cost of one.

    Example: `heedful presets --json`
    """
    from heedful.models.preset_files import preset_names

    report = Report("presets", output, {})
    facts = [_facts(name) for name in preset_names()]
    facts.sort(key=lambda preset: preset["parameters"])
    if not output.json:
        show_table(
            "Presets",
            ("name", "for", "tasks", "pieces", "parameters", "exactly", "published"),
            [
                (
                    p["name"],
                    p["description"],
                    _tasks(p["tasks"]),
                    "" if p["vocabulary"] is None else f"{p['vocabulary']:,}",
                    engineering(p["parameters"]),
                    f"{p['parameters']:,}",
                    "" if p["published_parameters"] is None else f"{p['published_parameters']:,}",
                )
                for p in facts
            ],
            numbers=4,
        )
    report.finish({"presets": facts})


def _tasks(names: list[str]) -> str:
    return "all of text" if len(names) > 4 else ", ".join(names)


def _facts(name: str) -> dict[str, Any]:
    from heedful.models.cost import count_parameters
    from heedful.models.preset_files import (
        describe_preset,
        preset_spec,
        preset_tasks,
        published_parameters,
    )

    spec = preset_spec(name)
    return {
        "name": name,
        "description": describe_preset(name),
        "kind": spec.kind,
        "tasks": list(preset_tasks(name)),
        "parameters": count_parameters(spec),
        "published_parameters": published_parameters(name),
        "vocabulary": spec.vocabularies().get("target"),
    }
