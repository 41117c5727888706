"""Train a classifier of film reviews on SST-2: one command, one JSON line at the end.

    python benchmarks/sentiment.py --data DIR                  from nothing
    python benchmarks/sentiment.py --data DIR --init MODEL     from a model of benchmarks/masked.py
    python benchmarks/sentiment.py --data DIR --kinds          causal beside masked
    python benchmarks/sentiment.py --data DIR --few-shot       `english` untrained, with examples

DIR holds sst2/train.tsv.gz and sst2/dev.tsv.gz (or set HEEDFUL_DATA). The last 2,000 texts of the
training file are validated on and not trained on; as they are often parts of the same sentences,
their scores are higher than those of the dev file, which is the test set and is labelled once, at
the end. The settings stand in benchmarks/sentiment/sst2.toml. Everything goes through the `heedful`
command.

With --kinds the first texts of the training file train a causal and a masked model of one size,
each from nothing and from the model at hand, with three seeds (benchmarks/sentiment/kinds.toml).
With --few-shot `english` labels the first texts of the test set by the likelier of two words after
0 to 8 examples.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from driver import HERE, heedful, hide_paths, write_result
from encoders import Corpora, parse_arguments, read_lines, run, test_scores, write

VALID = 2_000
TEXTS = 60_000
"""Training texts with --kinds: 1.2 epochs in a run of two minutes on one core."""
SEEDS = (1, 2, 3)
SHOTS = (0, 1, 4, 8)
SIZE = ("width=192", "encoder_layers=4", "num_heads=6", "feedforward=768", "positions=learned")
SIZE = (*SIZE, "norm_placement=pre", "activation=gelu", "dropout=0.1")
ARMS = {
    "causal from english": ["--init", "english"],
    "masked from english-masked": ["--init", "english-masked"],
    "causal from nothing": [*SIZE, "mask=causal"],
    "masked from nothing": [*SIZE],
}
WORDS = ("bad", "good")
ASKED = 200
"""Test texts that are labelled by likelihood: 0.07 is then the half width of an interval."""


def main() -> None:
    """Split, train, label the test set, write the results."""
    compared = {"--kinds": compare_kinds, "--few-shot": choose_by_likelihood}
    flag = next((flag for flag in compared if flag in sys.argv), None)
    if flag is not None:
        sys.argv.remove(flag)
    name = "sentiment-sst2" if flag is None else f"sentiment-{flag.strip('-')}"
    arguments = parse_arguments(name, __doc__)
    folder = arguments.data / "sst2"
    train, test = (read_lines(folder / f"{part}.tsv.gz")[1:] for part in ("train", "dev"))
    count = len(train) if flag is None else TEXTS
    corpora = Corpora(
        write(arguments.run, "train.tsv", train[:-VALID][:count]),
        write(arguments.run, "valid.tsv", train[-VALID:]),
        write(arguments.run, "test.tsv", test),
    )
    if flag is not None:
        compared[flag](arguments, corpora)
        return
    config = Path("sentiment") / "sst2.toml"
    run(arguments, "sentiment.py", config, corpora, ("accuracy", "macro_f1"))


def compare_kinds(arguments: argparse.Namespace, corpora: Corpora) -> None:
    """Train every arm with every seed, and write the results.

    Args:
        arguments: result of `parse_arguments`.
        corpora: the files.
    """
    started = datetime.now(UTC)
    out = arguments.results / arguments.label
    out.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[float]] = {arm: [] for arm in ARMS}
    command = "python benchmarks/sentiment.py --data DIR --kinds"
    # Seeds in the outer loop: a benchmark that is stopped has every arm with the first of them.
    for seed in SEEDS:
        for arm in ARMS:
            runs[arm].append(train_arm(arguments, corpora, arm, seed, out))
            summaries = {each: _summary(found) for each, found in runs.items() if found}
            write_result(out, command, arguments.extra, started, texts=TEXTS, runs=summaries)
    print(json.dumps(summaries))


def choose_by_likelihood(arguments: argparse.Namespace, corpora: Corpora) -> None:
    """Label the test set with `english` untrained, and write the results.

    Args:
        arguments: result of `parse_arguments`.
        corpora: the files; examples are training texts.
    """
    started = datetime.now(UTC)
    out = arguments.results / arguments.label
    out.mkdir(parents=True, exist_ok=True)
    rows = list(by_likelihood(arguments, corpora))
    command = "python benchmarks/sentiment.py --data DIR --few-shot"
    write_result(out, command, arguments.extra, started, asked=ASKED, few_shot=rows)
    print(json.dumps(rows))


def _summary(values: list[float]) -> dict[str, Any]:
    """Return accuracies with their mean and standard deviation."""
    spread = stdev(values) if len(values) > 1 else None
    return {"accuracy": values, "mean": mean(values), "deviation": spread}


def train_arm(
    arguments: argparse.Namespace, corpora: Corpora, arm: str, seed: int, out: Path
) -> float:
    """Train a classifier, and return its accuracy on the test set.

    Args:
        arguments: result of `parse_arguments`.
        corpora: the files.
        arm: name of the arm.
        seed: seed of the run.
        out: folder of logs.
    """
    name = arm.replace(" ", "-")
    directory = arguments.run.with_suffix(f".{name}-{seed}")
    words = ["train", str(directory), "--config", str(HERE / "sentiment" / "kinds.toml")]
    words += ["--train", str(corpora.train), "--valid", str(corpora.valid), "--seed", str(seed)]
    words += flags_of(arm)
    log = out / f"{name}-{seed}.log"
    if not (directory / "model").exists():
        heedful([*words, *arguments.extra], log)
        hide_paths(log, {directory: "RUN", arguments.data: "DIR"})
    assert corpora.test is not None
    return float(test_scores(directory, corpora.test)["accuracy"])


def flags_of(arm: str) -> Iterator[str]:
    """Yield the flags of an arm; settings of the model are written as name=value above."""
    for word in ARMS[arm]:
        name, equals, value = word.partition("=")
        yield from (f"--model.{name.replace('_', '-')}", value) if equals else (word,)


def by_likelihood(arguments: argparse.Namespace, corpora: Corpora) -> Iterator[dict[str, Any]]:
    """Label the test set with `english` untrained, and yield the accuracy by number of examples.

    Args:
        arguments: result of `parse_arguments`.
        corpora: the files; examples are training texts.
    """
    assert corpora.test is not None
    lines = corpora.test.read_text(encoding="utf-8").splitlines()[:ASKED]
    gold = [line.split("\t") for line in lines]
    texts = write(arguments.run, "texts.txt", [text for text, _ in gold])
    train = corpora.train.read_text(encoding="utf-8").splitlines()
    solved = [
        f"{text}\t{WORDS[int(label)]}" for text, label in (each.split("\t") for each in train)
    ]
    # Of at most 20 characters: the model reads 97 tokens, the examples and the text together.
    examples = write(arguments.run, "examples.tsv", [each for each in solved if len(each) <= 20])
    named = [WORDS[int(label)] for _, label in gold]
    for shots, calibrated in product(SHOTS, (False, True)):
        right = []
        for seed in SEEDS if shots else SEEDS[:1]:
            words = ["classify", "english", "-i", str(texts), "--labels", *WORDS, "--json"]
            words += ["--examples", str(examples), "--shots", str(shots), "--seed", str(seed)]
            words += ["--template", "{text} It was {label}."]
            words += ["--calibrate"] if calibrated else []
            found = [json.loads(line)["labels"][0]["label"] for line in heedful(words).splitlines()]
            right.append(mean(a == b for a, b in zip(found, named, strict=True)))
        yield {"shots": shots, "calibrated": calibrated, **_summary(right)}


if __name__ == "__main__":
    main()
