"""Build the documentation: fill in what is made from code and results, check it, run zensical.

python tools/build_site.py    writes build/pages, and the site into build/site
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pydantic
import yaml

from heedful.cli.main import VERBS, main
from heedful.data.corpus_spec import CorpusSpec
from heedful.models.shape import ConvolutionShape, RecurrentShape
from heedful.train.run_settings import RunSettings

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "build" / "pages"
_IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)|<img[^>]*\ssrc=\"([^\"]+)")


def build() -> int:
    """Write the site; return 1 where a page, a link or an image is wrong."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(DOCS, PAGES)
    pages = sorted(PAGES.rglob("*.md"))
    faults = unlisted_pages(pages)
    for page in pages:
        filled = fill(page.read_text(encoding="utf-8"))
        page.write_text(filled, encoding="utf-8")
        faults += missing_images(page, filled)
    for fault in faults:
        print(fault, file=sys.stderr)
    # `--strict` fails for links to pages and headings; a cache could keep a page as it was.
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if built.returncode:
        print(built.stdout, built.stderr, sep="", file=sys.stderr)
    return int(bool(faults or built.returncode))


def unlisted_pages(pages: list[Path]) -> list[str]:
    """Name pages that the navigation lacks, which zensical does not tell."""
    # As text: sections hold pages, titled pages and sections, at any depth.
    nav = json.dumps(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    names = [page.relative_to(PAGES).as_posix() for page in pages]
    return [f"docs/{name} is not in nav of mkdocs.yml" for name in names if f'"{name}"' not in nav]


def missing_images(page: Path, markdown: str) -> list[str]:
    """Name images of a page that do not exist, which zensical does not tell."""
    sources = [first or second for first, second in _IMAGE.findall(markdown)]
    return [
        f"docs/{page.relative_to(PAGES)}: there is no image {source}"
        for source in sources
        if "://" not in source and not source.startswith("data:")
        if not (page.parent / source).is_file()
    ]


def fill(markdown: str) -> str:
    """Fill in what the pages ask for, such as `<!-- settings -->` and `<!-- result FILE -->`."""
    fillers: dict[str, Callable[..., str]] = {
        "attention": attention_chart,
        "commands": command_help,
        "http": http_tables,
        "result": result,
        "settings": settings_tables,
    }
    asked = re.compile(rf"<!-- ({'|'.join(fillers)})(?: (\S+))? -->")
    return asked.sub(lambda m: fillers[m[1]](*filter(None, [m[2]])), markdown)


def result(file: str) -> str:
    """A table (.md) or chart (.svg) that a benchmark wrote into benchmarks/results."""
    path = RESULTS / file
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8").strip()
    return _image(path.read_bytes(), file)


def _image(svg: bytes, alt: str) -> str:
    data = base64.b64encode(svg).decode("ascii")
    return f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}">'


def attention_chart() -> str:
    """The attention of `pictures/attention.json`, which `heedful inspect -o` wrote, as a chart."""
    import numpy as np

    from heedful.apps import charts
    from heedful.inspect import AttentionMap

    file = DOCS / "pictures" / "attention.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    attention = AttentionMap(
        found["part"],
        *(tuple(found[name]) for name in ("layers", "heads", "rows", "columns")),
        np.array(found["weights"], np.float32),
    )
    text = f"{found['text']} → {found['target']}"
    picture = charts.draw(charts.matrix(attention), "svg")
    return _image(picture, f"Attention as a matrix: {text}")


def command_help() -> str:
    """The help of every command, as it is printed."""
    pages = [f"## heedful {verb}\n\n```text\n{help_of(verb)}\n```" for verb in VERBS]
    return "\n\n".join(pages)


def help_of(verb: str) -> str:
    """What `heedful VERB --help` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main([*verb.split(), "--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def settings_tables() -> str:
    """A table for the settings at the top and one for each section."""
    top, sections = [], []
    for name, field in RunSettings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, pydantic.BaseModel):
            sections.append(section(f"[{name}]", field.annotation))
        else:
            top.append(name)
    layers = {"recurrent": RecurrentShape, "convolution": ConvolutionShape}
    sections += [section(f"[model.{name}]", shape) for name, shape in layers.items()]
    parts = [table(RunSettings, top), *sections, section("A corpus", CorpusSpec)]
    return "\n\n".join(parts)


def section(title: str, settings: type[pydantic.BaseModel]) -> str:
    """A heading, the first line of the class's docstring, and its table."""
    summary = (settings.__doc__ or "").strip().splitlines()[0]
    return f"## {title}\n\n{summary}\n\n{table(settings, list(settings.model_fields))}"


def table(settings: type[pydantic.BaseModel], names: list[str]) -> str:
    """Names, types, defaults and descriptions."""
    rows = ["| setting | type | default | |", "|---|---|---|---|"]
    for name in names:
        field = settings.model_fields[name]
        kind = kind_of(field.annotation)
        default = "" if field.is_required() or field.default is None else show(field.default)
        rows.append(f"| `{name}` | {kind} | {default} | {field.description or ''} |")
    return "\n".join(rows)


def kind_of(annotation: Any) -> str:
    """A type in words."""
    words = {bool: "true or false", int: "integer", float: "number", str: "text"}
    if annotation in words:
        return words[annotation]
    parts = [part for part in get_args(annotation) if part not in (type(None), Ellipsis)]
    if all(isinstance(part, str) for part in parts):
        return ", ".join(f"`{part}`" for part in parts)
    if isinstance(annotation, type) and annotation.__module__.startswith("heedful"):
        return "table"
    if getattr(annotation, "__origin__", None) is tuple:
        return f"list of {kind_of(parts[0])}"
    return kind_of(parts[0])


def show(value: Any) -> str:
    """A default as it is written in TOML."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(show(item) for item in value) or "none"
    return f"`{value}`"


def http_tables() -> str:
    """A heading and tables of values for each address of the server."""
    from heedful.apps.serve.endpoints import all_endpoints
    from heedful.apps.serve.jobs import Jobs
    from heedful.apps.serve.metrics import Metrics
    from heedful.apps.serve.openapi import describe
    from heedful.apps.serve.scheduler import Scheduler
    from heedful.apps.serve.served_models import ServedModels
    from heedful.apps.serve.server_parts import ServerParts
    from heedful.apps.serve.server_settings import GateSettings, Limits
    from heedful.apps.serve.service import Service
    from heedful.search.search_settings import SearchSettings

    scheduler = Scheduler(threads=0, positions=1, most_waiting=1)
    service = Service(ServedModels([]), scheduler, Limits(), SearchSettings())
    parts = ServerParts(service, Metrics(), GateSettings(), jobs=Jobs(Path()))
    spec = describe(all_endpoints(parts), needs_key=False)
    schemas = spec["components"]["schemas"]
    pages = []
    for path, operations in spec["paths"].items():
        methods = " or ".join(method.upper() for method in operations)
        operation = list(operations.values())[-1]
        page = [f"## {methods} {path}", f"{operation['summary']}."]
        for title, content in (
            ("Request", operation.get("requestBody", {}).get("content", {})),
            ("Answer", operation["responses"]["200"].get("content", {})),
        ):
            described = next(iter(content.values()), {})
            reference = described.get("schema", {}).get("$ref")
            fields = schemas[reference.rpartition("/")[2]] if reference else {}
            if fields.get("properties"):
                page += [f"**{title}**", fields_table(fields)]
        pages.append("\n\n".join(page))
    return "\n\n".join(pages)


def fields_table(schema: dict[str, Any]) -> str:
    """Names, types and descriptions of the fields of a JSON schema."""
    rows = ["| value | type | |", "|---|---|---|"]
    for name, field in schema["properties"].items():
        rows.append(f"| `{name}` | {json_type(field)} | {field.get('description', '')} |")
    return "\n".join(rows)


def json_type(field: dict[str, Any]) -> str:
    """A type of a JSON schema in words."""
    if "anyOf" in field:
        kinds = [json_type(each) for each in field["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds)) or "nothing"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {json_type(field.get('items', {}))}"
    if field.get("format") == "binary":
        return "file"
    words = {"string": "text", "boolean": "true or false", "null": "nothing"}
    return words.get(field.get("type", "object"), field.get("type", "object"))


if __name__ == "__main__":
    sys.exit(build())
