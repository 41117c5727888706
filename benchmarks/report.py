"""How a comparison of Heedful with itself writes down what it found."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from machine import describe_machine


def write_result(results: Path, benchmark: str, command: str, found: dict[str, Any]) -> None:
    """Write RESULTS/BENCHMARK/result.json, and print it as one line.

    Args:
        results: the folder of all results.
        benchmark: its name.
        command: that gives these figures again.
        found: the figures and what they hold for.
    """
    result = {
        "benchmark": benchmark,
        "command": command,
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
        **found,
    }
    folder = results / benchmark
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    (folder / "result.json").write_text(text + "\n", encoding="utf-8")
    print(json.dumps(result))
