"""What every verb has in common: `--json`, `--report`, and where its figures go."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

import heedful
from heedful.cli.failures import refuse_missing_folder
from heedful.cli.files import writing
from heedful.train.summary import peak_memory_bytes

_GROUP = Group("Output", sort_key=90)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class Output:
    """The flags every verb has."""

    json: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Standard output becomes JSON, one object a line.",
        ),
    ] = False
    report: Annotated[
        Path | None,
        Parameter(help="Write what was done to this file, as one JSON object."),
    ] = None


PLAIN = Output()


class Report:
    """Collects what was done and tells it at the end.

    Args:
        verb: the command.
        output: the common flags.
        settings: what was asked for, as plain data.
    """

    def __init__(self, verb: str, output: Output, settings: Mapping[str, Any]) -> None:
        self.verb = verb
        self.output = output
        self.settings = settings
        self.started = time.perf_counter()
        if output.report is not None:
            refuse_missing_folder(output.report)

    @property
    def seconds(self) -> float:
        """Since the verb began."""
        return time.perf_counter() - self.started

    def finish(self, facts: Mapping[str, Any], *, summary: bool = True) -> None:
        """Write the report, and the summary to standard output where `--json` asks for one.

        Args:
            facts: counts, rates and scores, as plain data.
            summary: whether standard output gets them; not where it already has its items.
        """
        record = {
            "command": self.verb,
            "version": heedful.__version__,
            "settings": dict(self.settings),
            **facts,
            "seconds": round(self.seconds, 3),
            "peak_memory_bytes": peak_memory_bytes(),
            "machine": {"system": platform.platform(), "python": platform.python_version()},
        }
        if self.output.report is not None:
            with writing(self.output.report) as stream:
                stream.write(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        if summary and self.output.json:
            print_json(record)


def print_json(item: Mapping[str, Any]) -> None:
    """One object on one line of standard output."""
    print(json.dumps(item, ensure_ascii=False))


def one_line(text: str) -> str:
    """A text as a part of a line: what would end the line or the part is escaped as in C."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return escaped.replace("\t", "\\t")
