"""Does one vector hold a sentence? Translators with and without attention, by source length.

    python benchmarks/compare/bottleneck.py multi30k --data DIR
    python benchmarks/compare/bottleneck.py tatoeba --data DIR --seeds 1 2 3 --steps 600

An LSTM with a fixed vector, the same with Bahdanau's and with Luong's attention, ConvS2S and a
Transformer, of sizes within 10 %, learn from the same pairs for as many updates. DIR holds
multi30k/raw and tatoeba/en-de.tsv.gz (or set HEEDFUL_DATA); Tatoeba is split so that its parts
share no sentence. Reported for each system and seed: BLEU and chrF of the test set as a whole and
by the length of its sources, seconds until validation reached given scores, tokens a second, and
the alignment of one sentence. The result is written anew after every run, and runs that are done
stay: the same command goes on where it was stopped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "pretrained")]

from bottleneck_report import draw_alignments, write_report  # noqa: E402
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
from tatoeba import one_reference_each, split_pairs  # noqa: E402

_LSTM = {
    "model.encoder-layers": 2,
    "model.decoder-layers": 2,
    "model.positions": "none",
    "model.recurrent.cell": "lstm",
    "model.recurrent.direction": "both",
}
_CONTEXT = {"model.recurrent.feeding": "context", "model.recurrent.readout": "maxout"}

_RATES = {"lstm": 0.003, "convs2s": 0.003, "transformer": 0.004}
"""Peak learning rates, the better of two in 240 updates of 4,096 positions, by validation."""

SYSTEMS: dict[str, dict[str, Any]] = {
    "lstm-fixed": _LSTM | _CONTEXT | {"model.width": 184},
    "lstm-bahdanau": _LSTM
    | _CONTEXT
    | {"model.width": 180, "model.recurrent.attention": "additive"},
    "lstm-luong": _LSTM
    | {
        "model.width": 192,
        "model.recurrent.attention": "general",
        "model.recurrent.feeding": "output",
        "model.recurrent.readout": "tanh",
    },
    "convs2s": {
        "model.width": 160,
        "model.encoder-layers": 5,
        "model.decoder-layers": 3,
        "model.positions": "learned",
        "model.convolution.kernel-width": 3,
    },
    "transformer": {
        "model.width": 128,
        "model.encoder-layers": 3,
        "model.decoder-layers": 3,
        "model.num-heads": 4,
        "model.feedforward": 640,
        "model.norm-placement": "pre",
    },
}

BINS = ((1, 5), (6, 10), (11, 15), (16, 20), (21, 30), (31, 10_000))
"""Words of a source, from and to."""

FEWEST = 20
"""Sentences below which a bin has no score."""

GOALS = (5, 10, 15, 20, 25, 30, 35)
"""BLEU of validation; seconds until each is reached."""

SENTENCE = {
    "multi30k": "A man in a blue shirt is standing on a ladder cleaning a window.",
    "tatoeba": "I don't know why he came home so late last night.",
}


def main() -> None:
    """Train what is missing, then write what all runs say."""
    arguments = _arguments()
    out = arguments.results / f"bottleneck-{arguments.corpus}"
    out.mkdir(parents=True, exist_ok=True)
    folder = arguments.run or Path("runs") / f"bottleneck-{arguments.corpus}"
    parts = _corpus(arguments.corpus, arguments.data, folder / "corpus")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    results: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        for name in arguments.systems:
            run = folder / f"{name}-{seed}"
            log = out / f"{name}-{seed}.log"
            settings = {"seed": seed, "max-steps": arguments.steps} | SYSTEMS[name]
            settings["schedule.peak-learning-rate"] = _RATES[name.split("-")[0]]
            train(run, HERE / "bottleneck.toml", parts, settings, arguments.extra, log)
            hide_paths(log, {folder: "RUNS", arguments.data: "DIR"})
            write_curve(run / "metrics.jsonl", out / f"{name}-{seed}-curve.csv", ("bleu",))
            results.append(_measured(run, name, seed, parts["test"], arguments.corpus))
            result = {
                "benchmark": f"bottleneck-{arguments.corpus}",
                "command": f"python benchmarks/compare/bottleneck.py {arguments.corpus} --data DIR "
                f"--seeds {' '.join(map(str, arguments.seeds))} --steps {arguments.steps}",
                "started": started,
                "machine": describe_machine(),
                "bins": [f"{low}-{high}" for low, high in BINS[:-1]] + [f"{BINS[-1][0]}+"],
                "runs": results,
            }
            (out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
            write_report(result, out)
            print(_line(results[-1]), file=sys.stderr)
    attending = {
        name: folder / f"{name}-{arguments.seeds[0]}"
        for name in arguments.systems
        if _attends(name)
    }
    draw_alignments(attending, SENTENCE[arguments.corpus], out)
    print(json.dumps(result))


def _arguments() -> Any:
    parser = new_parser(__doc__)
    parser.add_argument("corpus", choices=["multi30k", "tatoeba"])
    parser.add_argument("--systems", nargs="+", choices=[*SYSTEMS], default=[*SYSTEMS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=900)
    return parse(parser)


def _corpus(name: str, data: Path, made: Path) -> dict[str, list[str]]:
    """Source and target file of each part."""
    if name == "multi30k":
        return multi30k_raw(data)
    parts = {part: [str(made / f"{part}.{s}") for s in ("en", "de")] for part in _PARTS}
    if not all(Path(file).exists() for pair in parts.values() for file in pair):
        made.mkdir(parents=True, exist_ok=True)
        pairs = split_pairs(data / "tatoeba" / "en-de.tsv.gz")
        pairs |= {part: one_reference_each(pairs[part]) for part in ("valid", "test")}
        for part in _PARTS:
            for side, file in enumerate(parts[part]):
                lines = "".join(f"{pair[side]}\n" for pair in pairs[part])
                Path(file).write_text(lines, encoding="utf-8")
    return parts


_PARTS = ("train", "valid", "test")


def _measured(run: Path, name: str, seed: int, test: Sequence[str], corpus: str) -> dict[str, Any]:
    """What a finished run is worth."""
    output, report = run / "test.txt", run / "test.json"
    if not report.exists():
        command = ["translate", str(run), "-i", test[0], "-o", str(output), "--beam", "5"]
        heedful([*command, "--report", str(report)], run / "translate.log")
    sources, references = map(read_lines, test)
    outputs = output.read_text(encoding="utf-8").splitlines()
    summary = next(e for e in reversed(read_events(run)) if e.get("event") == "summary")
    facts = json.loads(heedful(["info", str(run), "--json"]))
    translated = json.loads(report.read_text(encoding="utf-8"))
    return {
        "system": name,
        "seed": seed,
        "parameters": facts["parameters"]["total"],
        "training": summary,
        "seconds_to_bleu": _seconds_to(read_events(run)),
        "translating": {name: translated[name] for name in _TRANSLATING},
        "test": translation_scores(outputs, references),
        "by_length": list(_by_length(sources, outputs, references)),
        "alignment": _alignment(run, SENTENCE[corpus], attends=_attends(name)),
    }


_TRANSLATING = ("lines", "tokens", "seconds", "lines_per_second", "peak_memory_bytes")


def _by_length(
    sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Scores of the sentences whose sources have so many words."""
    for low, high in BINS:
        rows = [i for i, source in enumerate(sources) if low <= len(source.split()) <= high]
        chosen = [outputs[i] for i in rows], [references[i] for i in rows]
        scores = translation_scores(*chosen) if len(rows) >= FEWEST else None
        words = sum(len(sources[row].split()) for row in rows) / max(len(rows), 1)
        yield {
            "from": low,
            "to": high,
            "sentences": len(rows),
            "words": round(words, 2),
            "scores": scores,
        }


def _seconds_to(events: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Seconds of training until a validation first had each score; None where none had."""
    reached: dict[str, float | None] = {str(goal): None for goal in GOALS}
    seconds = 0.0
    for event in events:
        seconds = event.get("seconds", seconds) if "lr" in event else seconds
        for goal in GOALS:
            if event.get("bleu", -1.0) >= goal and reached[str(goal)] is None:
                reached[str(goal)] = round(seconds, 1)
    return reached


def _attends(name: str) -> bool:
    """Whether a system looks at its source while it writes."""
    return name != "lstm-fixed"


def _alignment(run: Path, sentence: str, *, attends: bool) -> dict[str, Any]:
    """The translation of a sentence, and its attention where there is any."""
    source = run / "sentence.txt"
    source.write_text(f"{sentence}\n", encoding="utf-8")
    flags = ["--alignment"] if attends else []
    said = heedful(["translate", str(run), "-i", str(source), *flags, "--json"], run / "align.log")
    found: dict[str, Any] = json.loads(said.splitlines()[0])
    return {"source": sentence} | found


def _line(result: dict[str, Any]) -> str:
    lengths = " ".join(
        "-" if each["scores"] is None else f"{each['scores']['bleu']:.1f}"
        for each in result["by_length"]
    )
    test = result["test"]["bleu"]
    return f"{result['system']} seed {result['seed']}: BLEU {test:.1f}; by length {lengths}"


if __name__ == "__main__":
    main()
