"""`heedful presets`: the named sizes."""

from __future__ import annotations

from typing import Any

from heedful.cli.output import PLAIN, Output, Report
from heedful.cli.tables import engineering, show_table


def presets(*, output: Output = PLAIN) -> None:
    """List the named model sizes.

    A preset of a translator is a set of settings; `heedful train RUN --preset tiny …` starts from
    it, and every setting can still be changed. The others are published models: beside the
    parameters that Heedful's model has stands the published count. `heedful info tiny` shows what
    one is made of.

    Example: `heedful presets --json`
    """
    from heedful.models.sizes import preset_names

    report = Report("presets", output, {})
    found = [_facts(name) for name in preset_names()]
    found.sort(key=lambda preset: preset["parameters"])
    if not output.json:
        show_table(
            "Presets",
            ("name", "for", "kind", "pieces", "parameters", "exactly", "published"),
            [
                (
                    p["name"],
                    p["description"],
                    p["kind"].replace("_", " "),
                    "" if p["vocabulary"] is None else f"{p['vocabulary']:,}",
                    engineering(p["parameters"]),
                    f"{p['parameters']:,}",
                    "" if p["published_parameters"] is None else f"{p['published_parameters']:,}",
                )
                for p in found
            ],
            numbers=4,
        )
    report.finish({"presets": found})


def _facts(name: str) -> dict[str, Any]:
    from heedful.cli.info import preset_spec
    from heedful.models.cost import count_parameters
    from heedful.models.family import VisionSpec
    from heedful.models.sizes import describe_preset, has_spec, published_parameters
    from heedful.models.spec import TranslatorSpec

    spec = preset_spec(name)
    if has_spec(name):
        from heedful.models.build import count_built

        parameters = count_built(spec)
    else:
        assert isinstance(spec, TranslatorSpec)
        parameters = count_parameters(spec)
    vocabulary = None
    if isinstance(spec, TranslatorSpec):
        vocabulary = spec.target_vocabulary
    elif not isinstance(spec, VisionSpec):
        vocabulary = spec.vocabulary
    return {
        "name": name,
        "description": describe_preset(name),
        "kind": spec.kind,
        "parameters": parameters,
        "published_parameters": published_parameters(name),
        "vocabulary": vocabulary,
    }
