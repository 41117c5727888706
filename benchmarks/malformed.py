"""Ten thousand requests that a program makes up: each gets an answer in words, none a failure.

    python benchmarks/malformed.py --schemathesis ENV/bin/schemathesis

schemathesis, in an environment of its own, reads the OpenAPI description of `heedful serve` and
makes up requests, right and wrong ones, for each path. It fails where an answer is none of those
that the description has: another status, another type, other fields, a failure of the server, 200
for what the description forbids. Statuses are counted by the server's own metrics; its log is
searched for tracebacks; afterwards it translates a sentence as before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from driver import HERE
from machine import describe_machine
from tables import markdown_table

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)
LANGUAGES = {"source": "en", "target": "de"}
NAMES = {
    "/translate": LANGUAGES,
    "/translate_file": LANGUAGES,
    "/v1/translate": {**LANGUAGES, "model": ""},
    "/v1/completions": {"model": "english"},
    "/v1/chat/completions": {"model": "en-de"},
}
"""For malformed_hooks.py."""

SENTENCE = "Two men are playing football in the snow."


def ask(address: str, path: str, values: dict[str, Any] | None = None) -> str:
    """Return the answer to a request."""
    data = None if values is None else json.dumps(values).encode()
    request = urllib.request.Request(
        address + path, data, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def statuses(address: str) -> Counter[str]:
    """Return how many answers of each status the server has given."""
    found = re.findall(
        r'^heedful_requests_total\{.*status="(\d+)"\} (\S+)', ask(address, "/metrics"), re.M
    )
    counts: Counter[str] = Counter()
    for status, number in found:
        counts[status] += int(float(number))
    return counts


def attack(arguments: argparse.Namespace, address: str, folder: Path) -> tuple[int, str]:
    """Let schemathesis ask; return its exit status and what it printed."""
    words = [str(Path(arguments.schemathesis).resolve()), "run", f"{address}/openapi.json"]
    words += ["--max-examples", str(arguments.examples), "--seed", str(arguments.seed)]
    words += ["--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS)]
    words += ["--continue-on-failure", "--workers", str(arguments.clients)]
    hooks = {"SCHEMATHESIS_HOOKS": "malformed_hooks", "PYTHONPATH": str(HERE)}
    environment = {**os.environ, **hooks, "MALFORMED_NAMES": json.dumps(NAMES)}
    done = subprocess.run(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stdout


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[str, dict[str, Any]]:
    """Run the server and schemathesis; return what it printed, and what became of the server."""
    words = [sys.executable, "-m", "heedful", "serve", *arguments.models, "--port", "0"]
    words += ["--json", "--access-log", "none"]
    with (
        Path(folder, "log").open("w+") as log,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            address = json.loads(server.stdout.readline())["address"].rstrip("/")
            question = {"q": SENTENCE, **LANGUAGES}
            before, asked = ask(address, "/translate", question), statuses(address)
            begin = time.perf_counter()
            code, output = attack(arguments, address, folder)
            seconds = time.perf_counter() - begin
            counts = statuses(address) - asked
            is_well = ask(address, "/translate", question) == before
            workers = psutil.Process(server.pid).children(recursive=True)
            memory = sum(worker.memory_info().rss for worker in workers) / 1e6
        finally:
            server.terminate()
        log.seek(0)
        tracebacks = log.read().count("Traceback")
    return output, {
        "seconds": round(seconds, 1),
        "requests": sum(counts.values()),
        "statuses": dict(sorted(counts.items())),
        "exit_status": code,
        "tracebacks": tracebacks,
        "translates_as_before": is_well,
        "memory_mb": round(memory),
    }


def main() -> None:
    """Serve, let schemathesis ask, and write what came out."""
    arguments = _parse()
    started = datetime.now(UTC)
    with tempfile.TemporaryDirectory() as name:
        output, facts = measure(arguments, Path(name))
    print(output, file=sys.stderr)
    version = re.search(r"Schemathesis v(\S+)", output)
    result = {
        "benchmark": "malformed",
        "command": "python benchmarks/malformed.py --schemathesis ENV/bin/schemathesis",
        "models": arguments.models,
        "schemathesis": version.group(1) if version else None,
        "examples": arguments.examples,
        "seed": arguments.seed,
        "checks": CHECKS,
        "started": started.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "failures": [line.strip() for line in output.splitlines() if line.startswith("- ")],
        **facts,
    }
    out = arguments.results / "malformed"
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    table = _table(result)
    (out / "table.md").write_text(table, encoding="utf-8")
    print(table)


def _table(result: dict[str, Any]) -> str:
    rows = [["requests", *result["statuses"], "failed checks", "tracebacks"]]
    numbers = [result["requests"], *result["statuses"].values()]
    numbers += [len(result["failures"]), result["tracebacks"]]
    return markdown_table([*rows, [f"{number:,}" for number in numbers]])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schemathesis", required=True, help="its program, in another environment")
    parser.add_argument("--models", nargs="+", default=["en-de", "english"])
    parser.add_argument("--examples", type=int, default=1500, help="of each path (1500)")
    parser.add_argument("--clients", type=int, default=8, help="paths asked at the same time (8)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
