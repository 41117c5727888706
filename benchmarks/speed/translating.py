"""How fast translators translate: the same weights in Heedful, Hugging Face and CTranslate2.

    python benchmarks/speed/translating.py base --data DIR                about 10 minutes
    python benchmarks/speed/translating.py tiny --data DIR                about 5 minutes
    python benchmarks/speed/translating.py tiny --data DIR --model MODEL  trained, free lengths
    python benchmarks/speed/translating.py big --data DIR --device cuda

The first 1,000 sentences of test_2016_flickr, raw English; a model of the preset with random
weights from a fixed seed, and every translation forced to 16 tokens and its end token, or a trained
model that ends by itself. It is exported by `heedful export`. Beam 5 in batches of 32, greedy in
batches of 64, and one sentence at a time with beam 5 (100 sentences). No length penalty, since the
projects do not mean the same by one. What is slow translates fewer of the sentences: a rate is what
counts, and the result says how many. Heedful's `auto` is float32 on the fastest exact route; `fp32`
(PyTorch's own route) is left out where `auto` is exact, unless it is asked for.

Forced lengths cost Heedful and Hugging Face 17 steps, as the end token is scored; CTranslate2 stops
after 16 without it. Heedful's time is from text to text; the others get tokens and give tokens, so
what they need to cut and join them is left out. CTranslate2 uses its threads in the way that is
faster. All processes live on and take turns. The share of
identical translations is that of the same tokens as Heedful gives in float32.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from corpus import first_batches, raw_file, run_settings, sentences
from environments import MissingPeer, environment
from harness import Row, finish, new_parser, parse, say
from turns import Worker, WorkerError, alternate, ratio, summary

PRESETS = {"base": "transformer-base", "tiny": "tiny", "big": "transformer-big"}
FORCED = 16


@dataclass(frozen=True)
class Mode:
    """A way to translate.

    Args:
        name: for people.
        beam: hypotheses.
        batch: sentences at a time.
        count: sentences in all.
        fewer: sentences for Hugging Face and for the others' float32, by size of the model.
    """

    name: str
    beam: int
    batch: int
    count: int
    fewer: Mapping[str, tuple[int, int]]


MODES = (
    Mode(
        "beam 5, batch 32",
        5,
        32,
        1000,
        {"base": (192, 480), "tiny": (480, 1000), "big": (480, 1000)},
    ),
    Mode(
        "greedy, batch 64",
        1,
        64,
        1000,
        {"base": (448, 1000), "tiny": (1000, 1000), "big": (1000, 1000)},
    ),
    Mode(
        "one at a time, beam 5", 5, 1, 100, {"base": (20, 50), "tiny": (50, 100), "big": (20, 50)}
    ),
)

PEER_TYPES = {
    "cpu": {"huggingface": ["float32"], "ctranslate2": ["float32", "int8"]},
    "cuda": {"huggingface": ["bfloat16"], "ctranslate2": ["bfloat16", "int8_bfloat16"]},
}

# (size, mode) and the peer: at least, aim
LIMITS = {
    ("base", MODES[0].name, "huggingface float32"): (4.5, 6.0),
    ("base", MODES[0].name, "ctranslate2 int8"): (1.0, 1.3),
    ("base", MODES[0].name, "ctranslate2 float32"): (1.0, 1.5),
    ("tiny", MODES[0].name, "ctranslate2 int8"): (0.8, 1.2),
    ("base", MODES[2].name, "ctranslate2 int8"): (0.8, 1.2),
}


@dataclass
class Engine:
    """A contestant.

    Args:
        worker: its process.
        speed: "slow", "exact" (which is slower than it could be) or "fast".
        found: what it translated last, by mode: the pieces of each sentence.
    """

    worker: Worker
    speed: str
    found: dict[str, list[list[str]]] = field(default_factory=dict)


class Contest:
    """The engines of one model, ready to take turns.

    Args:
        arguments: of the program.
        stack: ends the processes.
    """

    def __init__(self, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self.arguments = arguments
        self.stack = stack
        self.size: str = arguments.size
        self.folder: Path = arguments.work / f"translating-{arguments.label}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.length = None if arguments.model else FORCED
        self.model: Path = arguments.model or self._random_model()
        self.tokenizers = _tokenizers(self.model)
        self._write_sentences()
        self.engines: dict[str, Engine] = {}
        self.facts: dict[str, Any] = {}
        self.peers: dict[str, Any] = {}
        for precision in arguments.precisions or precision_names():
            asked = bool(arguments.precisions)
            if precision == "fp32" and not asked and self._has_exact():
                continue
            self._add_heedful(precision)
        if not arguments.no_peers:
            self._add_huggingface()
            self._add_ctranslate2()

    def count(self, mode: Mode, engine: Engine) -> int:
        """How many sentences an engine translates in a turn."""
        if self.arguments.quick:
            return 3
        slow, exact = mode.fewer[self.size]
        return {"slow": slow, "exact": exact}.get(engine.speed, mode.count)

    def turn(self, mode: Mode, name: str) -> float:
        """Sentences a second."""
        engine = self.engines[name]
        count = self.count(mode, engine)
        done = engine.worker.ask("translate", **self._work(mode, count))
        pieces = done.get("pieces")
        if pieces is None:
            pieces = [self.tokenizers.target.pieces(ids) for ids in done["ids"]]
        engine.found[mode.name] = [list(each) for each in pieces]
        kept = ("peak_memory_mb", "gpu_memory_mb")
        self.facts[name] |= {key: done[key] for key in kept if key in done}
        if "threads" in done:
            self.facts[name].setdefault("batches_at_once_x_threads", {})[mode.name] = done[
                "threads"
            ]
        return float(count / done["seconds"])

    def identical(self, mode: Mode) -> dict[str, float]:
        """For every engine the percentage of translations that Heedful's float32 gives too."""
        exact = next(e for e in self.engines.values() if e.speed == "exact")
        return {
            name: round(100 * _equal(engine.found[mode.name], exact.found[mode.name]), 1)
            for name, engine in self.engines.items()
        }

    def _work(self, mode: Mode, count: int) -> dict[str, Any]:
        return {
            "sentences": str(self.folder / "sentences.json"),
            "first": 0,
            "count": count,
            "batch": mode.batch,
            "search": {"beam": mode.beam, "length": self.length},
        }

    def _random_model(self) -> Path:
        import torch

        from heedful.models.build import build_model
        from heedful.models.checkpoint import save_model

        settings = run_settings(self.arguments.data, self.arguments.work / "encoded", "fp32")
        batches = first_batches(PRESETS[self.size], settings, self.folder / "batches", 1)
        torch.manual_seed(1)
        save_model(build_model(batches.spec), batches.tokenizers, self.folder / "model")
        return self.folder / "model"

    def _write_sentences(self) -> None:
        texts = sentences(raw_file(self.arguments.data, "test_2016_flickr", "en"))
        content = {
            "texts": texts,
            "ids": [list(row) for row in self.tokenizers.source.encode_batch(texts)],
            "pad": self.tokenizers.source.pad,
            "bos": self.tokenizers.target.bos,
            "eos": self.tokenizers.source.eos,
        }
        path = self.folder / "sentences.json"
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    def _worker(self, script: str, label: str, python: Path | None = None) -> Worker:
        log = self.folder / f"{label}.log"
        worker = Worker(script, log, python=python, threads=self.arguments.threads)
        self.stack.callback(worker.close)
        return worker

    def _add_heedful(self, precision: str) -> None:
        name = f"heedful {precision}"
        worker = self._worker("heedful_translator.py", f"heedful-{precision}")
        began = time.perf_counter()
        try:
            begun = worker.ask(
                "begin", model=str(self.model), precision=precision, device=self.arguments.device
            )
        except WorkerError as error:
            worker.close()
            self.facts[name] = {"refused": str(error)}
            say(f"{name} is left out: {error}")
            return
        said = str(begun["precision"])
        self.facts[name] = {"precision": said}
        say(f"{name}: {said}")
        self.engines[name] = Engine(worker, "exact" if said.startswith("fp32") else "fast")
        self._warm_up(name, began)

    def _add_huggingface(self) -> None:
        dtype = PEER_TYPES[self.arguments.device]["huggingface"][0]
        name = f"huggingface {dtype}"
        mode = MODES[0]
        try:
            python, self.peers["huggingface"] = environment("huggingface", self.arguments.envs)
            model = self._export("hf")
            began = time.perf_counter()
            worker = self._worker("marian_translator.py", "huggingface", python)
            begun = worker.ask(
                "begin",
                model=str(model),
                sentences=str(self.folder / "sentences.json"),
                search={"beam": mode.beam, "length": self.length},
                count=2 if self.arguments.quick else 2 * mode.batch,
                batch=mode.batch,
                device=self.arguments.device,
                dtype=dtype,
            )
        except (MissingPeer, WorkerError) as missing:
            self.peers["huggingface"] = f"left out: {missing}"
            say(f"huggingface is left out: {missing}")
            return
        self.facts[name] = {key: begun[key] for key in ("attention", "attention_seconds")}
        say(f"{name}: {self.facts[name]}")
        self.engines[name] = Engine(worker, "slow")
        self._warm_up(name, began)

    def _add_ctranslate2(self) -> None:
        try:
            python, self.peers["ctranslate2"] = environment("ctranslate2", self.arguments.envs)
            model = self._export("ctranslate2")
            for kind in PEER_TYPES[self.arguments.device]["ctranslate2"]:
                name, began = f"ctranslate2 {kind}", time.perf_counter()
                worker = self._worker("ctranslate2_translator.py", f"ctranslate2-{kind}", python)
                begun = worker.ask(
                    "begin",
                    model=str(model),
                    compute_type=kind,
                    threads=self.arguments.threads,
                    device=self.arguments.device,
                )
                self.facts[name] = {"compute_type": begun["compute_type"]}
                self.engines[name] = Engine(worker, "exact" if kind == "float32" else "fast")
                self._warm_up(name, began)
        except (MissingPeer, WorkerError) as missing:
            self.peers["ctranslate2"] = f"left out: {missing}"
            say(f"ctranslate2 is left out: {missing}")

    def _has_exact(self) -> bool:
        return any(engine.speed == "exact" for engine in self.engines.values())

    def _warm_up(self, name: str, began: float) -> None:
        """Translate one batch of every kind, and note the seconds since the engine began."""
        for mode in MODES:
            count = 2 if self.arguments.quick else mode.batch
            self.engines[name].worker.ask("translate", **self._work(mode, count))
        self.facts[name]["warm_up_seconds"] = round(time.perf_counter() - began, 2)

    def _export(self, kind: str) -> Path:
        out = self.folder / kind
        command = [sys.executable, "-m", "heedful", "export", str(self.model), str(out)]
        done = subprocess.run(
            [*command, "--format", kind], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise MissingPeer(f"heedful export --format {kind} said: {done.stderr.strip()}")
        return out


def precision_names() -> list[str]:
    """The precisions that `heedful translate` knows."""
    from heedful.cli.flags import Running

    flag = get_type_hints(Running, include_extras=True)["precision"]
    return [name for name in get_args(get_args(flag)[0]) if name != "fp16"]  # for GPUs only


def _tokenizers(model: Path) -> Any:
    from heedful.models.checkpoint import load_translator

    return load_translator(model)[1]


def _equal(found: Sequence[list[str]], wanted: Sequence[list[str]]) -> float:
    """The share of equal ones of the sentences that both translated."""
    pairs = list(zip(found, wanted, strict=False))
    return sum(a == b for a, b in pairs) / len(pairs)


def rows_of(contest: Contest, mode: Mode, figures: dict[str, list[float]]) -> list[Row]:
    """The lines of a mode: the best of ours beside each peer, float32 beside float32."""
    ours = [name for name in figures if name.startswith("heedful")]
    exact = [name for name in ours if contest.engines[name].speed == "exact"]
    rows: list[Row] = []
    for peer in (name for name in figures if name not in ours):
        like = exact if peer == "ctranslate2 float32" else ours
        if not like:  # none of that precision was asked for
            continue
        best = max(like, key=lambda name: summary(figures[name])["median"])
        least, aim = LIMITS.get((contest.arguments.label, mode.name, peer), (None, None))
        rows.append(
            {
                "work": f"{contest.arguments.label}, {mode.name}: {best} / {peer}",
                "unit": "sentences/s",
                "ours": summary(figures[best]),
                "theirs": summary(figures[peer]),
                "ratio": ratio(figures[best], figures[peer]),
                "least": least,
                "aim": aim,
            }
        )
    if not rows:
        rows = [
            {
                "work": f"{contest.arguments.label}, {mode.name}: {name}",
                "unit": "sentences/s",
                "ours": summary(figures[name]),
            }
            for name in ours
        ]
    return rows


def main() -> None:
    """Load all, let them take turns, write what came out."""
    parser = new_parser(__doc__, data=True)
    parser.add_argument("size", choices=PRESETS, help="of the model")
    parser.add_argument("--model", type=Path, help="a trained model's or run's directory")
    parser.add_argument("--precisions", nargs="+", help="of Heedful; all it has if unset")
    parser.add_argument(
        "--device", default="cpu", choices=PEER_TYPES, help="where all of them run (cpu)"
    )
    parser.add_argument(
        "--modes",
        nargs="+",
        type=int,
        default=[0, 1, 2],
        choices=[0, 1, 2],
        help="; ".join(f"{number}: {mode.name}" for number, mode in enumerate(MODES)),
    )
    arguments = parse(parser)
    arguments.label = f"trained-{arguments.size}" if arguments.model else arguments.size
    rows: list[Row] = []
    facts: dict[str, Any] = {"figures": {}, "identical_percent": {}, "sentences": {}}
    with ExitStack() as stack:
        contest = Contest(arguments, stack)
        for mode in (MODES[i] for i in arguments.modes):
            say(mode.name)
            turns = {
                name: lambda _, mode=mode, name=name: contest.turn(mode, name)
                for name in contest.engines
            }
            figures = alternate(turns, arguments.rounds, say)
            rows += rows_of(contest, mode, figures)
            facts["figures"][mode.name] = {n: summary(runs) for n, runs in figures.items()}
            facts["identical_percent"][mode.name] = contest.identical(mode)
            facts["sentences"][mode.name] = {
                name: contest.count(mode, engine) for name, engine in contest.engines.items()
            }
            say(f"identical to float32, percent: {facts['identical_percent'][mode.name]}")
    facts |= {"engines": contest.facts, "forced_tokens": contest.length}
    finish(arguments, f"speed-translating-{arguments.label}", rows, facts, peers=contest.peers)


if __name__ == "__main__":
    main()
