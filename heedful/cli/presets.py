"""`heedful presets`: the named sizes."""

from __future__ import annotations

from typing import Any

from heedful.cli.output import PLAIN, Output, Report
from heedful.cli.tables import engineering, show_table


def presets(*, output: Output = PLAIN) -> None:
    """List the named model sizes.

    A preset is a set of settings; `heedful train RUN --preset tiny …` starts from it, and every
    setting can still be changed. `heedful info tiny` shows what one is made of.

    Example: `heedful presets --json`
    """
    from heedful.cli.info import preset_spec
    from heedful.models.cost import count_parameters
    from heedful.models.sizes import describe_preset, preset_names

    report = Report("presets", output, {})
    found: list[dict[str, Any]] = []
    for name in preset_names():
        spec = preset_spec(name)
        found.append(
            {
                "name": name,
                "description": describe_preset(name),
                "parameters": count_parameters(spec),
                "vocabulary": spec.target_vocabulary,
            }
        )
    found.sort(key=lambda preset: preset["parameters"])
    if not output.json:
        show_table(
            "Presets",
            ("name", "for", "pieces", "parameters"),
            [
                (p["name"], p["description"], f"{p['vocabulary']:,}", engineering(p["parameters"]))
                for p in found
            ],
            numbers=2,
        )
    report.finish({"presets": found})
