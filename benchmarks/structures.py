"""Distances of random chains from noisy contacts: an Evoformer block beside plain attention.

    python benchmarks/structures.py [--models evoformer plain axial] [--seeds 1 2 3]

A chain has 8 residues at steps of length 1 in any direction, none nearer to another than 0.9. What
is seen of a pair is one word: `same`, or `near` where the distance is below 2, else `far`; a tenth
of the words of pairs that are not neighbours are turned round. A model tags each of the 64 pairs
with its distance in bins of half a step, as AlphaFold's distogram, and the expected distance is
compared with the true one, over pairs that are not neighbours.

`evoformer` has two blocks of triangle multiplication and triangle attention. `plain` has five
layers of attention among all pairs, and `axial` the same within the row and the column of a pair;
both have as many parameters. Two tables know no other pair: the mean distance of training chains by
the separation i − j, and by separation and word.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from driver import HERE, hide_paths, new_parser, parse, read_events, train, write_result

import heedful
from heedful.pipelines.encoder_input import encode, frame, word_tokens

NAME = "structures"
SETTINGS = HERE / NAME / "tagger.toml"
SIDE = 8
COUNTS = {"train": 6400, "valid": 100, "test": 500}
NEAREST, CONTACT, NOISE = 0.9, 2.0, 0.1
"""Least distance of two residues, distance of a contact, and share of wrong words."""
BIN, NUM_BINS = 0.5, 16
"""Width of a bin in steps; the last bin has all larger distances."""

_ROWS = {"encoder_layers": 5, "feedforward": 131}
MODELS: dict[str, dict[str, Any]] = {
    "evoformer": {"encoder_layers": 2, "evoformer.side": SIDE},
    "plain": _ROWS,
    "axial": _ROWS | {"mask": f"window_2d({SIDE}, 1, {SIDE}, 1) | window_2d({SIDE}, {SIDE}, 1, 1)"},
}
"""Settings of the models beside those of the file, whose numbers of parameters differ by 0.1 %."""

Array = npt.NDArray[np.float64]
Words = npt.NDArray[np.str_]


def main() -> None:
    """Draw the chains, train each model with each seed, measure distances, write the results."""
    parser = new_parser(__doc__)
    parser.set_defaults(data=HERE)  # the chains are drawn here
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments = parse(parser)
    started = datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    runs = arguments.run or Path("runs") / NAME
    runs.mkdir(parents=True, exist_ok=True)
    words, distances = observed(np.random.default_rng(0), sum(COUNTS.values()))
    files = write_parts(words, distances, runs)
    test = slice(-COUNTS["test"], None)
    rows: list[dict[str, Any]] = tables(words, distances)
    for seed in arguments.seeds:
        for name in arguments.models:
            run, log = runs / f"{name}-{seed}", out / f"{name}-{seed}.log"
            settings = {f"model.{key}": value for key, value in MODELS[name].items()}
            parts = {part: [str(files[part])] for part in ("train", "valid")}
            train(run, SETTINGS, parts, settings | {"seed": seed}, arguments.extra, log)
            hide_paths(log, {runs: "RUNS"})
            found, parameters = expected_distances(run, words[test])
            minutes = round(read_events(run)[-1]["seconds"] / 60, 1)
            row = {"estimate": name, "seed": seed, "parameters": parameters, "minutes": minutes}
            rows.append(row | errors(found, distances[test]))
            print(json.dumps(rows[-1]), flush=True)
    command = "python benchmarks/structures.py"
    write_result(out, command, arguments.extra, started, runs=rows)


def observed(draw: np.random.Generator, count: int) -> tuple[Words, Array]:
    """Return what is seen of the pairs of chains [count, N, N], and their distances."""
    chains = np.stack([chain(draw) for _ in range(count)])
    distances = np.linalg.norm(chains[:, :, None] - chains[:, None], axis=-1)
    near = distances < CONTACT
    wrong = np.triu(draw.random(near.shape) < NOISE, k=2)
    near ^= wrong | wrong.transpose(0, 2, 1)  # both orders of two residues have one word
    words = np.where(near, "near", "far")
    words[:, range(SIDE), range(SIDE)] = "same"
    return words, distances


def chain(draw: np.random.Generator) -> Array:
    """Return the places of residues [N, 3], each step drawn until it keeps its distance."""
    places = np.zeros((1, 3))
    while len(places) < SIDE:
        # A chain that has enclosed its end cannot go on: it begins anew.
        places = next_places(draw, places) if len(places) else np.zeros((1, 3))
    return places


def next_places(draw: np.random.Generator, places: Array) -> Array:
    """Return the places with one more; no places after 100 steps that come too near."""
    for _ in range(100):
        step = draw.normal(size=3)
        end = places[-1] + step / np.linalg.norm(step)
        if np.all(np.linalg.norm(places[:-1] - end, axis=1) >= NEAREST):
            return np.vstack([places, end])
    return places[:0]


def write_parts(words: Words, distances: Array, runs: Path) -> dict[str, Path]:
    """Write the pairs of each part as tagged sentences, a chain a line, and return the files."""
    tags = np.char.mod("%.2f", centers()[bins(distances)])
    files, start = {}, 0
    for name, count in COUNTS.items():
        files[name] = runs / f"{name}.jsonl"
        with files[name].open("w", encoding="utf-8") as file:
            for number in range(start, start + count):
                pairs = {"tokens": words[number].ravel(), "tags": tags[number].ravel()}
                file.write(json.dumps({key: each.tolist() for key, each in pairs.items()}) + "\n")
        start += count
    return files


def bins(distances: Array) -> npt.NDArray[np.int64]:
    """Return the number of the bin of each distance."""
    return np.minimum((distances / BIN).astype(np.int64), NUM_BINS - 1)


def centers() -> Array:
    """Return the middle of each bin, which is the name of its tag."""
    return (np.arange(NUM_BINS) + 0.5) * BIN


@torch.inference_mode()
def expected_distances(run: Path, words: Words) -> tuple[Array, int]:
    """Return the distances [M, N, N] that a model expects, and its number of parameters."""
    pipeline = heedful.load(run)
    model, tokenizer = pipeline.model, pipeline.tokenizer
    (head,) = model.spec.heads
    middles = torch.tensor([float(name) for name in head.labels])
    texts = [word_tokens(tokenizer, each.ravel().tolist())[0] for each in words]
    items = [frame(tokenizer, ids) for ids in texts]
    found = np.empty(words.shape)
    for batch in encode(model, items, padding=tokenizer.pad):
        scores = model.token_logits(batch.states[:, 1 : 1 + SIDE * SIDE])
        expected = (scores.float().softmax(-1) * middles).sum(-1)
        found[batch.numbers] = expected.numpy().reshape(-1, SIDE, SIDE)
    return found, sum(each.numel() for each in model.parameters())


def tables(words: Words, distances: Array) -> list[dict[str, Any]]:
    """Return the errors of mean distances by separation, and by separation and word."""
    train_part, test = slice(COUNTS["train"]), slice(-COUNTS["test"], None)
    separations = np.abs(np.subtract.outer(range(SIDE), range(SIDE)))
    keys = {
        "separation": np.broadcast_to(separations, words.shape),
        "separation and word": separations + SIDE * (words == "near"),
    }
    rows = []
    for name, key in keys.items():
        sums = np.bincount(key[train_part].ravel(), distances[train_part].ravel(), 2 * SIDE)
        counts = np.bincount(key[train_part].ravel(), minlength=2 * SIDE)
        means = sums / np.maximum(counts, 1)
        rows.append({"estimate": name} | errors(means[key[test]], distances[test]))
    return rows


def errors(found: Array, true: Array) -> dict[str, float]:
    """Return the mean absolute error over pairs that are not neighbours, and by their distance."""
    apart = np.triu_indices(SIDE, k=2)
    error = np.abs(found - true)[:, *apart]
    far = true[:, *apart] >= 2 * CONTACT
    # Chains, not pairs, are independent draws.
    by_chain = error.mean(axis=1)
    return {
        "error": float(by_chain.mean()),
        "half_interval": float(1.96 * by_chain.std(ddof=1) / np.sqrt(len(by_chain))),
        "error_far": float(error[far].mean()),
    }


if __name__ == "__main__":
    main()
