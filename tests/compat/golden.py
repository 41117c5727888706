"""Record and compare golden numbers: losses, weights, translations and scores, to the bit.

Run it with the interpreter of an installation before a change and with that of another after it,
on the same machine with the same PyTorch, then compare the two files:

    python tests/compat/golden.py record before.json --python OLD/bin/python
    python tests/compat/golden.py record after.json
    python tests/compat/golden.py compare before.json after.json

Everything goes through the command line, the one interface that does not change: toy corpora from a
seeded generator, trainings of 50 updates of every kind of model in float32 and bfloat16, a run that
was interrupted and resumed, then every command that runs a model in every precision. `--models DIR`
keeps the model directories; `--reuse DIR` runs those of another recording, so that directories an
older version wrote are read by this one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

STEPS = 50
SOURCE_WORDS = [
    "ba",
    "be",
    "bi",
    "bo",
    "bu",
    "da",
    "de",
    "di",
    "do",
    "du",
    "ga",
    "ge",
    "gi",
    "go",
    "gu",
    "ka",
    "ke",
    "ki",
    "ko",
    "ku",
]
TARGET_WORDS = [
    "la",
    "le",
    "li",
    "lo",
    "lu",
    "ma",
    "me",
    "mi",
    "mo",
    "mu",
    "na",
    "ne",
    "ni",
    "no",
    "nu",
    "ra",
    "re",
    "ri",
    "ro",
    "ru",
]
TRANSLATION = dict(zip(SOURCE_WORDS, TARGET_WORDS, strict=True))

COMMON = ["--data.batch-tokens", 1024, "--validation.every-steps", STEPS]
COMMON += ["--checkpoint.every-steps", STEPS // 2, "--schedule.warmup-steps", 20]
SMALL = ["--model.width", 64, "--model.encoder-layers", 2, "--model.decoder-layers", 2]
SMALL += ["--model.num-heads", 4, "--model.feedforward", 128]
PAIRS = ["--train", "train.src", "train.tgt", "--valid", "valid.src", "valid.tgt"]
TEXTS = ["--train", "train.src", "--valid", "valid.src"]
VOCABULARY = ["--tokenizer.vocabulary-size", 64]

TRAININGS: dict[str, list[object]] = {
    "post-norm": [*PAIRS, *SMALL, *VOCABULARY],
    "pre-norm-rotary": [
        *[*PAIRS, *SMALL, *VOCABULARY, "--model.norm-placement", "pre", "--model.norm", "rms"],
        *["--model.positions", "rotary", "--model.activation", "swiglu"],
        *["--model.num-kv-heads", 2, "--model.share-embeddings", "none"],
    ],
    "t5-experts": [
        *[*PAIRS, *SMALL, *VOCABULARY, "--model.positions", "t5", "--model.num-experts", 4],
        *["--model.attention-dropout", 0.1, "--model.feedforward-dropout", 0.1],
    ],
    "window-alibi": [
        *[*PAIRS, *SMALL, *VOCABULARY, "--model.positions", "alibi", "--model.window", 4],
        *["--model.activation", "gelu", "--objective.r-drop", 0.5, "--optimizer.accumulate", 2],
    ],
    "relative-keys": [*PAIRS, *SMALL, *VOCABULARY, "--model.positions", "relative_keys"],
    "causal": [*TEXTS, *SMALL, *VOCABULARY, "--task", "causal_lm", "--data.max-length", 64],
    "causal-rotary": [
        *[*TEXTS, *SMALL, *VOCABULARY, "--task", "causal_lm", "--data.max-length", 64],
        *["--model.positions", "rotary", "--model.window", 16, "--model.norm", "rms"],
    ],
    "masked": [*TEXTS, *SMALL, *VOCABULARY, "--task", "masked_lm"],
    "spans": [*TEXTS, *SMALL, *VOCABULARY, "--task", "span_corruption"],
    "classifier": [
        *["--train", "train.tsv", "--valid", "valid.tsv", "--task", "classify"],
        *[*SMALL, *VOCABULARY],
    ],
    "tagger": [
        *["--train", "train.conll", "--valid", "valid.conll", "--task", "tag"],
        *[*SMALL, *VOCABULARY],
    ],
    "images": [
        *["--train", "images.idx", "labels.idx", "--valid", "images.idx", "labels.idx"],
        *["--task", "images", "--images.patch-size", 4, *SMALL],
    ],
}
"""Arguments of each training, beside precision and what all have in common."""

MIXERS = ("linear_attention", "average_attention", "ssru", "s4d", "mamba", "rwkv")
TRAININGS |= {
    each: [*PAIRS, *SMALL, *VOCABULARY, "--model.mixer", each, "--model.positions", "none"]
    for each in MIXERS
}
SMALL_LSTM = ["--model.width", 64, "--model.encoder-layers", 2, "--model.decoder-layers", 2]
TRAININGS |= {
    "linformer": [*PAIRS, *SMALL, *VOCABULARY, "--model.encoder-mixer", "linformer"],
    "recurrent": [
        *[*PAIRS, *SMALL_LSTM, *VOCABULARY, "--model.recurrent.attention", "additive"],
        *["--model.recurrent.feeding", "context", "--model.positions", "none"],
    ],
    "convolution": [
        *[*PAIRS, *SMALL_LSTM, *VOCABULARY, "--model.convolution.kernel-width", 3],
        *["--model.positions", "learned", "--model.max-length", 64, "--data.max-length", 64],
    ],
    "wide": [  # products of kernels in C, and whole sub-layers by them
        *[*PAIRS, *VOCABULARY, "--model.width", 512, "--model.num-heads", 8],
        *["--model.encoder-layers", 1, "--model.decoder-layers", 1],
    ],
    "wide-pre-norm": [
        *[*PAIRS, *VOCABULARY, "--model.width", 512, "--model.num-heads", 8],
        *["--model.encoder-layers", 1, "--model.decoder-layers", 1, "--model.norm-placement"],
        *["pre", "--model.activation", "gelu", "--model.feedforward-dropout", 0.1],
        *["--checkpointing", "selective"],
    ],
    "global-tokens": [
        *[*TEXTS, *SMALL, *VOCABULARY, "--task", "masked_lm", "--model.global-tokens", 2],
        *["--model.window", 4, "--checkpointing", "full"],
    ],
    "packed": [*PAIRS, *SMALL, *VOCABULARY, "--data.max-length", 60, "--data.packed-length", 64],
    "memory": [
        *[*TEXTS, *SMALL, *VOCABULARY, "--task", "causal_lm", "--data.max-length", 32],
        *["--model.positions", "transformer_xl", "--model.memory", 16],
    ],
}

BOTH_PRECISIONS = (
    *("post-norm", "pre-norm-rotary", "t5-experts", "causal", "masked", "images"),
    *("wide", "wide-pre-norm"),
)
TRANSLATORS = (
    *("post-norm", "pre-norm-rotary", "t5-experts", "window-alibi", "relative-keys"),
    *(*MIXERS, "recurrent", "convolution", "packed"),
)


def main() -> int:
    """Parse the arguments; record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="run everything and write the numbers")
    record.add_argument("file", type=Path)
    record.add_argument("--python", default=sys.executable, help="interpreter to record with")
    record.add_argument("--only", nargs="+", default=list(TRAININGS), metavar="TRAINING")
    record.add_argument("--models", type=Path, help="folder to keep the runs in")
    record.add_argument("--reuse", type=Path, help="folder of runs to read instead of training")
    compare = commands.add_parser("compare", help="list every number that differs")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        return report_differences(arguments.before, arguments.after)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.models or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        recorder = Recorder(arguments.python, folder, arguments.reuse or folder)
        for name in arguments.only:
            recorder.record(name, train=arguments.reuse is None)
            arguments.file.write_text(json.dumps(recorder.numbers, indent=1), encoding="utf-8")
            print(name, len(recorder.numbers), flush=True)
    return 0


class Recorder:
    """Runs commands and collects what they print.

    Args:
        python: interpreter of the installation.
        folder: where corpora are written and commands run.
        runs: where the runs are.
    """

    def __init__(self, python: str, folder: Path, runs: Path) -> None:
        self.python = python
        self.folder = folder.resolve()
        self.runs = runs.resolve()
        self.numbers: dict[str, Any] = {}
        write_corpora(self.folder)

    def record(self, name: str, *, train: bool) -> None:
        """Train a model in each precision and run every command that it serves."""
        precisions = ("fp32", "bf16") if name in BOTH_PRECISIONS else ("fp32",)
        if train:
            for precision in precisions:
                run = f"{name}-{precision}"
                self.train(run, STEPS, [*TRAININGS[name], *COMMON, "--precision", precision])
                self.numbers[f"{run}/losses"] = read_losses(self.folder / run)
                self.numbers[f"{run}/weights"] = digest(self.folder / run / "model")
            if name in ("post-norm", "causal"):
                self.record_resumed(name)
        run = self.runs / f"{name}-fp32"
        for label, words in commands_for(name):
            for precision in ("fp32", "bf16", "int8"):
                output = self.run(*words(run), "--precision", precision, "--device", "cpu")
                self.numbers[f"{name}/{label}/{precision}"] = output.splitlines()

    def record_resumed(self, name: str) -> None:
        """Stop a training half way and go on: the weights are those of the whole run."""
        run = f"{name}-resumed"
        self.train(run, STEPS // 2, [*TRAININGS[name], *COMMON, "--precision", "fp32"])
        self.train(run, STEPS, ["--resume"])
        self.numbers[f"{run}/weights"] = digest(self.folder / run / "model")

    def train(self, run: str, steps: int, arguments: list[object]) -> None:
        self.run("train", run, "--max-steps", steps, *arguments)

    def run(self, *words: object) -> str:
        """Run a command; return its standard output, or the status where it refuses."""
        environment = os.environ | {"HEEDFUL_DEBUG": "", "OMP_NUM_THREADS": "2"}
        result = subprocess.run(
            [self.python, "-m", "heedful", *map(str, words)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode and words[0] == "train":
            raise SystemExit(f"{' '.join(map(str, words))}\n{result.stderr}")
        return result.stdout if not result.returncode else f"status {result.returncode}"


def commands_for(name: str) -> Iterator[tuple[str, Any]]:
    """Yield a label and a function from a run to the words of a command."""
    if name in TRANSLATORS:
        for label, flags in {
            "beam": ["--beam", 4, "--n-best", 2],
            "greedy": ["--beam", 1],
            "alone": ["--beam", 4, "--batch-size", 1],
            "sampled": ["--sampling", "--top-k", 5, "--seed", 3],
            "aligned": ["--alignment"],
        }.items():
            words = ["--scores", "--json", *flags]
            yield label, lambda run, words=words: ["translate", run, "-i", "test.src", *words]
        yield "few", lambda run: ["translate", run, "-i", "few.src", "--scores", "--json"]
        both = ["--source", "test.src", "--target", "test.tgt", "--json"]
        yield "score", lambda run: ["score", run, *both]
    elif name.startswith("causal"):
        for label, flags in {"greedy": ["--beam", 1], "beam": ["--beam", 3]}.items():
            words = ["-i", "test.src", "--json", "--max-length", 20, *flags]
            yield label, lambda run, words=words: ["generate", run, *words]
    elif name == "masked":
        yield "fill", lambda run: ["fill", run, "-i", "masks.txt", "--json"]
    elif name == "spans":
        yield "fill", lambda run: ["fill", run, "-i", "gaps.txt", "--json"]
    elif name == "classifier":
        yield "labels", lambda run: ["classify", run, "-i", "test.src", "--json"]
    elif name == "tagger":
        yield "tags", lambda run: ["tag", run, "-i", "test.src", "--json"]


def read_losses(run: Path) -> list[object]:
    """Loss and gradient norm of every event that has them, as they are written."""
    events = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [[e["step"], e.get("loss"), e.get("grad_norm")] for e in events if "loss" in e]


def digest(model: Path) -> str:
    """SHA-256 of all tensors by name, independent of how the file orders them."""
    state = hashlib.sha256()
    with safe_open(str(model / "model.safetensors"), framework="np") as file:
        for name in sorted(file.keys()):
            state.update(name.encode())
            state.update(file.get_tensor(name).tobytes())
    return state.hexdigest()


def report_differences(before: Path, after: Path) -> int:
    """Print what differs; return 1 where anything does."""
    old, new = (json.loads(each.read_text(encoding="utf-8")) for each in (before, after))
    different = 0
    for key in sorted(set(old) | set(new)):
        if key not in old or key not in new:
            print(f"{key}: only {'before' if key in old else 'after'}")
        elif old[key] != new[key]:
            print(f"{key}: differs")
            if isinstance(old[key], list):
                pairs = list(zip(old[key], new[key], strict=False))
                unequal = [pair for pair in pairs if pair[0] != pair[1]]
                print(f"  {len(unequal)} of {len(pairs)}")
                for one, other in unequal[:2]:
                    print(f"  - {one}\n  + {other}")
        else:
            continue
        different += 1
    print(f"{len(set(old) & set(new))} compared, {different} differ")
    return 1 if different else 0


def write_corpora(folder: Path) -> None:
    """Toy corpora: word-by-word translation with reversed order, labels by the first word."""
    generator = random.Random(7)
    for part, count in {"train": 1500, "valid": 40, "test": 24, "few": 3}.items():
        lines = [
            [generator.choice(SOURCE_WORDS) for _ in range(generator.randint(1, 24))]
            for _ in range(count)
        ]
        texts = {
            "src": [" ".join(line) for line in lines],
            "tgt": [" ".join(TRANSLATION[word] for word in reversed(line)) for line in lines],
            "tsv": ["text\tlabel", *(f"{' '.join(line)}\t{line[0]}" for line in lines)],
            "conll": [
                "\n".join(f"{word}\t{word[1].upper()}" for word in line) + "\n" for line in lines
            ],
        }
        for ending, rows in texts.items():
            (folder / f"{part}.{ending}").write_text("\n".join(rows) + "\n", encoding="utf-8")
    words = (folder / "test.src").read_text(encoding="utf-8").splitlines()[:12]
    masks = [" ".join([*line.split()[:-1], "[MASK]"]) for line in words]
    (folder / "masks.txt").write_text("\n".join(masks) + "\n", encoding="utf-8")
    (folder / "gaps.txt").write_text("\n".join(masks) + "\n", encoding="utf-8")
    write_images(folder, generator, 200)


def write_images(folder: Path, generator: random.Random, count: int) -> None:
    """IDX files of 8 x 8 squares whose label is the quadrant that is bright."""
    pixels, labels = bytearray(), bytearray()
    for _ in range(count):
        label = generator.randrange(4)
        labels.append(label)
        for row in range(8):
            for column in range(8):
                bright = (row // 4) * 2 + column // 4 == label
                pixels.append(generator.randrange(128) + 127 * bright)
    sizes = b"".join(number.to_bytes(4, "big") for number in (count, 8, 8))
    (folder / "images.idx").write_bytes(b"\0\0\x08\x03" + sizes + bytes(pixels))
    (folder / "labels.idx").write_bytes(b"\0\0\x08\x01" + sizes[:4] + bytes(labels))


if __name__ == "__main__":
    sys.exit(main())
