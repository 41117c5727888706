"""A server under load: nothing lost, nothing wrong, memory flat, and how fast.

    python benchmarks/serving.py MODEL --data DIR --minutes 10 --workers 2
    python benchmarks/serving.py MODEL --data DIR --minutes 1 -- --precision int8 --beam 2
    python benchmarks/serving.py MODEL --data DIR --peer ENV/bin/python --exported EXPORTED

Flags after -- are for `heedful translate` and `heedful serve` alike. First the sentences (Tatoeba's
and Multi30k's English, mixed lengths) are translated by `heedful translate`, which gives the right
answers and a rate. Then `heedful serve` is asked for the same by 64 clients: each asks one sentence
after the other (closed loop), which gives the server's rate; then requests come at twice that rate
in random intervals whether or not earlier ones were answered (open loop), for the given minutes.
Every answer is compared with the right one; 429 is a refusal, anything else is lost. A request's
time is from its sending to its answer.

With --peer, LibreTranslate in another environment has the same model, as `heedful export --format
ctranslate2` wrote it, and 64 clients ask both servers in turns (benchmarks/libretranslate_peer.py).
Its answers may differ, as it searches and rounds otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from driver import HERE
from machine import describe_machine
from tables import markdown_table

HEEDFUL = [sys.executable, "-m", "heedful"]
SENTENCES = 2000
TIMEOUT = 120.0


@dataclass
class Outcome:
    """What came of a phase.

    Args:
        seconds: of the phase.
        times: seconds of every right answer.
        statuses: answers by status, errors of connections by name.
        wrong: answers that differ from the sentence alone.
        memory: MB of the server's workers, each second; told are the means of the second and of
            the last fifth, and the largest.
    """

    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    memory: list[float] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return rates, percentiles and counts as JSON data."""
        lost = {name: n for name, n in self.statuses.items() if name not in ("200", "429")}
        times = sorted(self.times)
        fifth = max(1, len(self.memory) // 5)
        memory = self.memory or [0.0]
        early, late = memory[fifth : 2 * fifth] or memory, memory[-fifth:]
        first, last = statistics.fmean(early), statistics.fmean(late)
        return {
            "seconds": round(self.seconds, 1),
            "answered": len(times),
            "sentences_per_second": round(len(times) / self.seconds, 1),
            "refused": self.statuses["429"],
            "lost": sum(lost.values()),
            "losses": lost,
            "wrong": self.wrong,
            "p50": round(_percentile(times, 0.5), 3),
            "p95": round(_percentile(times, 0.95), 3),
            "p99": round(_percentile(times, 0.99), 3),
            "memory_mb": [round(first), round(max(memory)), round(last)],
            "memory_growth": round(last / max(first, 1.0) - 1, 4),
        }


def _percentile(times: Sequence[float], share: float) -> float:
    return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0


class Client:
    """Connections to a server that stay open, taken when there is a free one."""

    def __init__(
        self, address: str, languages: tuple[str, str], expected: dict[str, str] | None
    ) -> None:
        self.host, port = address.removeprefix("http://").rstrip("/").split(":")
        self.port = int(port)
        self.languages = languages
        self.expected = expected
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, text: str, outcome: Outcome) -> None:
        """Ask for a translation and note what came of it."""
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(TIMEOUT):
                status, body = await self._exchange(text)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            outcome.statuses[type(error).__name__] += 1
            return
        outcome.statuses[str(status)] += 1
        if status == 200:
            outcome.times.append(time.perf_counter() - begin)
            answer = json.loads(body)["translatedText"]
            outcome.wrong += self.expected is not None and answer != self.expected[text]

    async def hang_up(self) -> None:
        """Close the connections; waitress accepts no more than 100."""
        for _, writer in self.free:
            writer.close()
            await writer.wait_closed()
        self.free.clear()

    async def _exchange(self, text: str) -> tuple[int, bytes]:
        source, target = self.languages
        body = json.dumps({"q": text, "source": source, "target": target}).encode()
        head = (
            f"POST /translate HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        connection = self.free.pop() if self.free else None
        if connection is None or connection[0].at_eof():  # the server ends those not used for long
            connection = await asyncio.open_connection(self.host, self.port)
        reader, writer = connection
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        answer = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            writer.close()
        else:
            self.free.append(connection)
        return int(lines[0].split()[1]), answer


async def closed_loop(client: Client, texts: Sequence[str], clients: int) -> Outcome:
    """Ask for every text, so many at a time."""
    outcome, waiting = Outcome(), iter(texts)
    begin = time.perf_counter()

    async def run() -> None:
        for text in waiting:
            await client.ask(text, outcome)

    await asyncio.gather(*(run() for _ in range(clients)))
    outcome.seconds = time.perf_counter() - begin
    await client.hang_up()
    return outcome


async def open_loop(
    client: Client, texts: Sequence[str], rate: float, seconds: float, server: int
) -> Outcome:
    """Ask at random intervals, without waiting for answers."""
    outcome, draws = Outcome(), random.Random(1)
    tasks: set[asyncio.Task[None]] = set()
    process = psutil.Process(server)
    begin = time.perf_counter()
    due, measured = begin, begin
    while (now := time.perf_counter()) < begin + seconds:
        if now >= measured:
            workers = process.children(recursive=True)
            outcome.memory.append(sum(p.memory_info().rss for p in workers) / 1e6)
            measured += 1
        if due > now:
            await asyncio.sleep(min(due - now, 0.5))
            continue
        due += draws.expovariate(rate)
        task = asyncio.create_task(client.ask(draws.choice(texts), outcome))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    outcome.seconds = time.perf_counter() - begin
    await client.hang_up()
    return outcome


def read_sentences(data: Path) -> list[str]:
    """Return English sentences of mixed lengths, each once."""
    with gzip.open(data / "multi30k" / "raw" / "test_2016_flickr.en.gz", "rt") as captions_file:
        captions = captions_file.readlines()
    with gzip.open(data / "tatoeba" / "en-de.tsv.gz", "rt") as pairs_file:
        pairs = pairs_file.readlines()
    draws = random.Random(7)
    texts = {line.strip() for line in captions}
    texts |= {line.split("\t")[0].strip() for line in draws.sample(pairs, SENTENCES)}
    return draws.sample(sorted(texts), SENTENCES)


def translate(model: str, texts: Sequence[str], flags: Sequence[str]) -> tuple[list[str], float]:
    """Return translations by the command line, and sentences a second without loading."""
    report = Path(os.environ.get("TMPDIR", "/tmp")) / f"serving-{os.getpid()}.json"
    done = subprocess.run(
        [*HEEDFUL, "translate", model, *flags, "--report", str(report)],
        input="\n".join(texts) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    facts = json.loads(report.read_text())
    report.unlink()
    return done.stdout.splitlines(), float(facts["lines_per_second"])


def main() -> None:
    """Translate, serve, ask, and write what came out."""
    arguments, flags = _parse()
    started = datetime.now(UTC)
    texts = read_sentences(arguments.data)
    translated, offline = translate(arguments.model, texts, flags)
    expected = dict(zip(texts, translated, strict=True))
    place = f"{'-'.join(arguments.pair)}={arguments.model}"
    words = ["serve", place, "--port", "0", "--json", "--access-log", "none", *flags]
    words += ["--workers", str(arguments.workers), "--queue", str(arguments.queue)]
    with ExitStack() as stack:
        server = stack.enter_context(_running([*HEEDFUL, *words], stdout=subprocess.PIPE))
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        clients = {"heedful": Client(address, arguments.pair, expected)}
        if arguments.peer is not None:
            peer = stack.enter_context(_peer(arguments))
            clients["libretranslate"] = Client(peer, arguments.pair, None)
        rounds: dict[str, list[Outcome]] = {name: [] for name in clients}
        for number in range(arguments.rounds + 1):
            for name, client in clients.items():
                asked = texts if number else texts[:200]  # the first one warms up
                outcome = asyncio.run(closed_loop(client, asked, arguments.clients))
                if number:
                    rounds[name].append(outcome)
        closed = statistics.median(len(o.times) / o.seconds for o in rounds["heedful"])
        rate = arguments.load * closed
        seconds = 60 * arguments.minutes
        opened = asyncio.run(open_loop(clients["heedful"], texts, rate, seconds, server.pid))
    result = {
        "benchmark": arguments.name,
        "command": f"python benchmarks/serving.py MODEL --data DIR --minutes {arguments.minutes:g} "
        f"--workers {arguments.workers}",
        "flags": flags,
        "started": started.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "workers": arguments.workers,
        "clients": arguments.clients,
        "offline_sentences_per_second": offline,
        "closed_loop": {name: [each.plain() for each in rounds[name]] for name in rounds},
        "ratio": round(closed / offline, 3),
        "offered_per_second": round(rate, 1),
        "open_loop": opened.plain(),
    }
    out = arguments.results / arguments.name
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (out / "table.md").write_text(_table(result), encoding="utf-8")
    print(_table(result))


@contextmanager
def _running(words: Sequence[str], **streams: int) -> Iterator[subprocess.Popen[str]]:
    """Run a server that is stopped at the end."""
    with subprocess.Popen(words, text=True, **streams) as server:
        try:
            yield server
        finally:
            server.terminate()


@contextmanager
def _peer(arguments: argparse.Namespace) -> Iterator[str]:
    """Run LibreTranslate; yield its address once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [arguments.peer, str(HERE / "libretranslate_peer.py"), arguments.exported]
    silent = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)  # it logs every text
    with _running([*words, str(port), *arguments.pair], **silent):
        end = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                assert time.monotonic() < end, "LibreTranslate does not answer"
                time.sleep(0.5)
            else:
                break
        yield f"http://127.0.0.1:{port}"


def _table(result: dict[str, Any]) -> str:
    head = ["", "sentences/s", "p50 ms", "p95 ms", "refused", "lost", "wrong", "memory MB"]
    rows = [head, ["`heedful translate`", f"{result['offline_sentences_per_second']:,.0f}"]]
    rows[1] += ["–"] * 6
    phases = []
    for name, outcomes in result["closed_loop"].items():
        middle = sorted(outcomes, key=lambda o: o["sentences_per_second"])[len(outcomes) // 2]
        phases.append((f"{name}, {result['clients']} clients, one after the other", middle))
    phases.append((f"heedful, {result['offered_per_second']:,.0f} requests/s", result["open_loop"]))
    for name, phase in phases:
        memory = phase["memory_mb"]
        rows.append(
            [
                name,
                f"{phase['sentences_per_second']:,.0f}",
                f"{1000 * phase['p50']:,.0f}",
                f"{1000 * phase['p95']:,.0f}",
                f"{phase['refused']:,}",
                f"{phase['lost']:,}",
                f"{phase['wrong']:,}",
                f"{memory[0]:,} to {memory[-1]:,}" if phase["memory_mb"][1] else "–",
            ]
        )
    return markdown_table(rows)


def _parse() -> tuple[argparse.Namespace, list[str]]:
    own, flags = sys.argv[1:], []
    if "--" in own:
        place = own.index("--")
        own, flags = own[:place], own[place + 1 :]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="directory or name of a translator of English")
    parser.add_argument("--pair", nargs=2, default=("en", "de"), help="its languages (en de)")
    parser.add_argument("--data", type=Path, default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--minutes", type=float, default=10.0, help="of the open loop (10)")
    parser.add_argument("--clients", type=int, default=64, help="of the closed loop (64)")
    parser.add_argument("--rounds", type=int, default=3, help="of the closed loop (3)")
    parser.add_argument("--load", type=float, default=2.0, help="of the server's rate (2)")
    parser.add_argument("--peer", help="Python that has libretranslate")
    parser.add_argument("--exported", help="the model as CTranslate2's, for --peer")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--queue", type=int, default=200, help="texts that may wait (200)")
    parser.add_argument("--name", default="serving", help="of the result")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args(own)
    if (arguments.peer is None) != (arguments.exported is None):
        parser.error("--peer and --exported go together")
    if arguments.data is None:
        print("skipped: give the corpora by --data or HEEDFUL_DATA", file=sys.stderr)
        raise SystemExit(0)
    arguments.pair = tuple(arguments.pair)
    return arguments, flags


if __name__ == "__main__":
    main()
