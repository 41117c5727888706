"""Record what a small translator loses without each of its parts: one command.

    python benchmarks/pretrained/components.py [--runs DIR] [--seeds 2]

The data are generated (`heedful.apps.studio.small_translator`), so nothing is downloaded. Each
variant is trained with each seed, then translates test lines that share no date with those it was
trained on. A run that is finished in DIR is not trained again. The pages "Without
each part" and "Builder" of the studio show the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from machine import describe_machine  # noqa: E402 (a script of the folder above)

from heedful.apps.demo_corpus import DemoItem, write_demo  # noqa: E402
from heedful.apps.studio.small_translator import (  # noqa: E402
    HELD_OUT,
    PAIRS,
    RECORDS_FILE,
    SOURCE,
    TARGET,
    VARIANTS,
    small_corpus,
)
from heedful.evaluate.corpus_metrics import corpus_scores, exact_match  # noqa: E402
from heedful.events import Events  # noqa: E402
from heedful.pipelines.translation import TranslationPipeline  # noqa: E402
from heedful.train.run import run_training  # noqa: E402
from heedful.train.run_settings import RunSettings  # noqa: E402

SHOWN = 8
"""Number of test lines whose translations are kept."""
TRAIN_EVERY = 25
"""Steps between two points of the training loss that are kept."""


def main() -> None:
    """Train every variant with every seed, and write the figures."""
    arguments = parse()
    folder: Path = arguments.runs
    folder.mkdir(parents=True, exist_ok=True)
    corpus = small_corpus()
    files = write_demo(corpus, folder / "pairs")
    records: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    texts: dict[str, list[str]] = {}
    for seed in range(1, arguments.seeds + 1):
        for name in VARIANTS:
            run = folder / f"{name}-{seed}"
            train(run, VARIANTS[name].settings(seed), files)
            written, scores = measure(run, corpus.test)
            records[name].append({"seed": seed, **scores, **curves(run)})
            texts.setdefault(name, written)  # of the first seed
    result = {
        "command": "python benchmarks/pretrained/components.py",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": describe_machine(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
        "data": {"source": SOURCE, "target": TARGET, "pairs": PAIRS, "test": HELD_OUT},
        "runs": records,
        "samples": samples(corpus.test, texts),
    }
    text = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
    arguments.out.write_text(text + "\n", encoding="utf-8")
    exact = {name: [each["exact"] for each in runs] for name, runs in records.items()}
    print(json.dumps({"file": arguments.out.name, "bytes": len(text), "exact": exact}))


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs") / "components")
    parser.add_argument("--seeds", type=int, default=2, help="how many, from 1 on")
    parser.add_argument("--out", type=Path, default=RECORDS_FILE)
    return parser.parse_args()


def train(run: Path, values: dict[str, Any], files: dict[Any, tuple[Path, Path]]) -> None:
    """Train a run, unless it was; in this process, as importing takes longer than training."""
    if (run / "model").exists() and any(e.get("event") == "summary" for e in events(run)):
        return
    shutil.rmtree(run, ignore_errors=True)  # what was broken off
    for part in ("train", "valid"):
        source, target = map(str, files[part])
        values["data"][part] = [{"source": source, "target": target}]
    run_training(run, RunSettings.parse(values), events=Events([]))


def measure(run: Path, items: Sequence[DemoItem]) -> tuple[list[str], dict[str, float]]:
    """Translate test lines with a run, and score the translations."""
    written = translate(run, [item.source for item in items])
    references = [item.target for item in items]
    bleu = corpus_scores(written, references, ["bleu"])["bleu"].score
    scores = {"exact": round(exact_match(written, references), 4), "bleu": round(bleu, 2)}
    print(run.name, scores, file=sys.stderr, flush=True)
    return written, scores


def translate(run: Path, sources: list[str]) -> list[str]:
    """The translations of lines, greedily; those made before if there are any."""
    written = run / "test.txt"
    if not written.exists():
        texts = [str(text) for text in TranslationPipeline.load(run).translate(sources, beam=1)]
        # What is wrong may hold a line break of its own.
        text = "".join(f"{' '.join(text.split())}\n" for text in texts)
        written.write_text(text, encoding="utf-8")
    return written.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def events(run: Path) -> list[dict[str, Any]]:
    """Return the events of a run."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def curves(run: Path) -> dict[str, Any]:
    """The curves of a run, and its seconds."""
    every = events(run)
    valid = [e for e in every if e.get("event") == "validation"]
    training = [e for e in every if "event" not in e and e["step"] % TRAIN_EVERY == 0]
    return {
        "seconds": round(next(e["seconds"] for e in every if e.get("event") == "summary"), 1),
        "train": [[e["step"], round(e["loss"], 3)] for e in training],
        "loss": [[e["step"], round(e["loss"], 4)] for e in valid],
        "valid_bleu": [[e["step"], round(e["bleu"], 2)] for e in valid],
    }


def samples(items: Any, texts: dict[str, list[str]]) -> list[dict[str, Any]]:
    """The first test lines that are no copies of each other's form, with all translations."""
    by_form = {(len(item.source.split()), "/" in item.source, i % 2): i
               for i, item in reversed(list(enumerate(items)))}  # fmt: skip
    return [
        {
            "source": items[i].source,
            "reference": items[i].target,
            "texts": {name: lines[i] for name, lines in texts.items()},
        }
        for i in sorted(by_form.values())[:SHOWN]
    ]


if __name__ == "__main__":
    main()
