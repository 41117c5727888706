"""Record what a small translator loses without each of its parts: one command.

    python benchmarks/pretrained/components.py [--runs DIR] [--seeds 3]

The data are generated (`heedful.apps.studio.small_translator`), so nothing is downloaded. Each
variant is trained by `heedful train` with each seed, then translates test lines that share no value
with those it was trained on. A run that is finished in DIR is not trained again. The pages "Without
each part" and "Builder" of the studio show the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from driver import heedful  # noqa: E402 (a script of the folder above)
from machine import describe_machine  # noqa: E402

from heedful.apps.demo_corpus import write_demo  # noqa: E402
from heedful.apps.studio.small_translator import (  # noqa: E402
    HELD_OUT,
    PAIRS,
    RECORDS_FILE,
    SOURCE,
    STEPS,
    TARGET,
    VARIANTS,
    small_corpus,
)
from heedful.config import dump_toml  # noqa: E402
from heedful.evaluate.corpus_metrics import corpus_scores, exact_match  # noqa: E402

SHOWN = ("date", "date and time", "price", "measure", "duration", "time")
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
    references = [item.target for item in corpus.test]
    for seed in range(1, arguments.seeds + 1):
        for name in VARIANTS:
            run = folder / f"{name}-{seed}"
            train(run, name, seed, files)
            written = translate(run, files["test"][0])
            bleu = corpus_scores(written, references, ["bleu"])["bleu"].score
            scores = {
                "exact": round(exact_match(written, references), 4),
                "bleu": round(bleu, 2),
            }
            records[name].append({"seed": seed, **scores, **curves(run)})
            texts.setdefault(name, written)  # of the first seed
            print(name, seed, scores, file=sys.stderr, flush=True)
    result = {
        "command": "python benchmarks/pretrained/components.py",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": describe_machine(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
        "data": {"source": SOURCE, "target": TARGET, "pairs": PAIRS, "test": HELD_OUT},
        "steps": STEPS,
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
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 1 on")
    parser.add_argument("--out", type=Path, default=RECORDS_FILE)
    return parser.parse_args()


def train(run: Path, name: str, seed: int, files: dict[Any, tuple[Path, Path]]) -> None:
    """Train a variant by the command, unless it was."""
    if (run / "model").exists() and any(e.get("event") == "summary" for e in events(run)):
        return
    settings = run.with_suffix(".toml")
    values = VARIANTS[name].components.settings(seed)
    settings.write_text(dump_toml(values), encoding="utf-8")
    words = ["train", str(run), "--config", str(settings)]
    for part in ("train", "valid"):
        words += [f"--{part}", *map(str, files[part])]
    heedful(words, run.with_suffix(".log"))


def translate(run: Path, source: Path) -> list[str]:
    """The translations of a file's lines, greedily; those made before if there are any."""
    written = run / "test.txt"
    if not written.exists():
        words = ["translate", str(run), "-i", str(source), "-o", str(written), "--beam", "1"]
        heedful(words, run.with_suffix(".log"))
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
    """Two test lines of each kind: the first ones of middle length."""
    chosen = []
    for kind in SHOWN:
        of_kind = [i for i, item in enumerate(items) if item.kind == kind][:9]
        chosen += sorted(of_kind, key=lambda i: len(items[i].source))[4:6]
    return [
        {
            "kind": items[i].kind,
            "source": items[i].source,
            "reference": items[i].target,
            "texts": {name: lines[i] for name, lines in texts.items()},
        }
        for i in chosen
    ]


if __name__ == "__main__":
    main()
