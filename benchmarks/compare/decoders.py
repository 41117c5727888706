"""Do decoders without self-attention translate as well, and how much faster?

    python benchmarks/compare/decoders.py --data DIR [--seeds 1 2 3] [--steps 1000]
    python benchmarks/compare/decoders.py --data DIR --seeds 1 --steps 2    what it costs alone

Three translators that differ in what mixes the tokens of the decoder: attention, average attention
(Zhang 2018) or an SSRU (Kim 2019). DIR holds multi30k/raw (or set HEEDFUL_DATA). Reported for each
system and seed: BLEU and chrF of test_2016_flickr at beam 4, in float32 and in 8 bits. Then the
models of the first seed translate in turns, in one process and on one thread unless --threads says
more: the test set in batches with beam 4 and with greedy search, some sentences one at a time, and
some whose translations are made of a given number of tokens. Where other programs keep the
processor busy, the seconds that it worked tell more than those on the clock, so both are there.

The result is written anew after every run and every way to translate, and what is done stays: the
same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "speed")]

import torch  # noqa: E402
from driver import (  # noqa: E402
    heedful,
    hide_paths,
    multi30k_raw,
    new_parser,
    parse,
    read_events,
    read_lines,
    train,
    translation_scores,
    write_curve,
)
from machine import describe_machine  # noqa: E402
from tables import markdown_table  # noqa: E402
from turns import alternate, ratio, summary  # noqa: E402

from heedful.pipelines.translation import TranslationPipeline  # noqa: E402

SYSTEMS = ("attention", "average_attention", "ssru")
PRECISIONS = ("fp32", "int8")
CLOCKS = {"per_second": time.perf_counter, "per_processor_second": time.process_time}


@dataclass(frozen=True)
class Mode:
    """A way to translate.

    Args:
        beam: hypotheses.
        sentences: of the test set, from its beginning; all if None.
        batch_size: sentences at a time; as many as fit a batch if None.
        tokens: of every translation; as many as the model writes if None.
    """

    beam: int
    sentences: int | None = None
    batch_size: int | None = None
    tokens: int | None = None

    @property
    def name(self) -> str:
        """For people."""
        parts = ["greedy" if self.beam == 1 else f"beam {self.beam}"]
        parts += ["one at a time"] if self.batch_size == 1 else []
        parts += [f"{self.tokens} tokens"] if self.tokens else []
        return ", ".join(parts)


LENGTHS = (20, 50, 100, 200)
MODES = (
    Mode(4),
    Mode(1),
    Mode(4, sentences=100, batch_size=1),
    Mode(1, sentences=100, batch_size=1),
    *(Mode(4, sentences=32, batch_size=32, tokens=count) for count in LENGTHS),
    *(Mode(4, sentences=4, batch_size=1, tokens=count) for count in LENGTHS),
)


def main() -> None:
    """Train what is missing, score it, and let the models take turns."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    out = arguments.results / "decoders"
    folder = arguments.run or Path("runs") / "decoders"
    for each in (out, folder):
        each.mkdir(parents=True, exist_ok=True)
    parts = multi30k_raw(arguments.data)
    result: dict[str, Any] = {
        "benchmark": "decoders",
        "command": "python benchmarks/compare/decoders.py --data DIR "
        f"--seeds {' '.join(map(str, arguments.seeds))} --steps {arguments.steps} "
        f"--rounds {arguments.rounds} --threads {arguments.threads}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "runs": [],
        "speed": {},
    }
    for seed in arguments.seeds:
        for name in SYSTEMS:
            run = folder / f"{name}-{seed}"
            log = out / f"{name}-{seed}.log"
            settings = {"seed": seed, "max-steps": arguments.steps, "model.mixer": name}
            train(run, HERE / "decoders.toml", parts, settings, arguments.extra, log)
            hide_paths(log, {folder: "RUNS", arguments.data: "DIR"})
            write_curve(run / "metrics.jsonl", out / f"{name}-{seed}-curve.csv", ("bleu",))
            result["runs"].append({"system": name, "seed": seed} | _score(run, parts["test"]))
            _write(result, out)
            _say(f"{name}, seed {seed}: {result['runs'][-1]['test']}")
    bench = Bench(
        {name: folder / f"{name}-{arguments.seeds[0]}" for name in SYSTEMS}, parts["test"]
    )
    for mode in MODES:
        done = folder / "speed" / f"{mode.name}, {arguments.rounds} rounds.json"
        if not done.exists():
            done.parent.mkdir(exist_ok=True)
            found = json.dumps(bench.measure(mode, arguments.rounds))
            done.write_text(found, encoding="utf-8")
        result["speed"][mode.name] = json.loads(done.read_text(encoding="utf-8"))
        _write(result, out)
    table = markdown_table([["", *SYSTEMS], *_rows(result)])
    (out / "table.md").write_text(table, encoding="utf-8")
    _say(table)
    print(json.dumps(result))


def _arguments() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    return parse(parser)


def _score(run: Path, test: Sequence[str]) -> dict[str, Any]:
    """Size, training and test scores of a finished run."""
    scores = {}
    for precision in PRECISIONS:
        output = run / f"test-{precision}.txt"
        if not output.exists():
            made = run / "translating.txt"
            command = ["translate", str(run), "-i", test[0], "-o", str(made), "--beam", "4"]
            heedful([*command, "--precision", precision], run / "translate.log")
            made.rename(output)
        outputs = output.read_text(encoding="utf-8").splitlines()
        scores[precision] = translation_scores(outputs, read_lines(test[1]))
    facts = json.loads(heedful(["info", str(run), "--json"]))
    trained = next(e for e in reversed(read_events(run)) if e.get("event") == "summary")
    return {"parameters": facts["parameters"]["total"], "training": trained, "test": scores}


class Bench:
    """Models of each system in each precision, and the sentences that they translate.

    Args:
        runs: a finished run of each system.
        test: source and target file.
    """

    def __init__(self, runs: Mapping[str, Path], test: Sequence[str]) -> None:
        self._sources = read_lines(test[0])
        self._pipelines = {
            f"{name} {precision}": TranslationPipeline.load(run, device="cpu", precision=precision)
            for name, run in runs.items()
            for precision in PRECISIONS
        }

    def measure(self, mode: Mode, rounds: int) -> dict[str, Any]:
        """Return sentences a second of each, and the ratios to attention, by either clock."""
        lines = self._sources[: mode.sentences]
        worked: dict[str, list[float]] = {name: [] for name in self._pipelines}

        def turn(name: str, number: int) -> float:
            starts = [clock() for clock in CLOCKS.values()]
            self._translate(name, lines, mode)
            passed, own = (c() - s for c, s in zip(CLOCKS.values(), starts, strict=True))
            worked[name].append(len(lines) / own)
            return len(lines) / passed

        for name in self._pipelines:  # the first time, much is set up
            self._translate(name, lines[:32], mode)
        _say(f"{mode.name}: {len(lines)} sentences")
        turns = {name: functools.partial(turn, name) for name in self._pipelines}
        figures = alternate(turns, rounds, _say, settle=0.0)
        found: dict[str, Any] = {"sentences": len(lines)}
        for clock, runs in zip(CLOCKS, (figures, worked), strict=True):
            found[clock] = {name: summary(each) for name, each in runs.items()}
            found[clock]["to attention"] = {
                name: ratio(each, runs[f"attention {name.split()[1]}"])
                for name, each in runs.items()
                if not name.startswith("attention")
            }
        return found

    def _translate(self, name: str, lines: Sequence[str], mode: Mode) -> None:
        length = {"min_length": mode.tokens, "max_length": mode.tokens} if mode.tokens else {}
        calls = [[line] for line in lines] if mode.batch_size == 1 else [list(lines)]
        for call in calls:
            self._pipelines[name].translate(
                call, beam=mode.beam, batch_size=mode.batch_size, **length
            )


def _rows(result: Mapping[str, Any]) -> Iterator[list[str]]:
    """Scores, then sentences a processor second."""
    for precision in PRECISIONS:
        for metric in ("bleu", "chrf"):
            cells = []
            for name in SYSTEMS:
                runs = [each["test"] for each in result["runs"] if each["system"] == name]
                found = summary([each[precision][metric] for each in runs])
                spread = f" ({found['lowest']:.1f}-{found['highest']:.1f})"
                cells.append(f"{found['median']:.1f}{spread if len(runs) > 1 else ''}")
            yield [f"{metric}, {precision}", *cells]
    for mode, found in result["speed"].items():
        speeds = found["per_processor_second"]
        for precision in PRECISIONS:
            cells = []
            for name in SYSTEMS:
                key = f"{name} {precision}"
                times = speeds["to attention"].get(key)
                share = f" (×{times['median']:.2f})" if times else ""
                cells.append(f"{speeds[key]['median']:,.1f}{share}")
            yield [f"{mode}, {precision}", *cells]


def _write(result: Mapping[str, Any], out: Path) -> None:
    text = json.dumps(result, indent=1) + "\n"
    (out / "result.json").write_text(text, encoding="utf-8")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
