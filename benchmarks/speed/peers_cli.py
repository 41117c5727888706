"""Training by command line: `heedful train` beside JoeyNMT's and eole's own commands.

    python benchmarks/speed/peers_cli.py --data DIR        about 25 minutes

The base model (6 + 6 layers, 512 wide, 8 heads, feed-forward 2,048, dropout 0.1, label smoothing
0.1, one table of embeddings) on Multi30k, English to German. Heedful cuts the raw text itself; the
others get files of the very pieces it makes of it, and a list of them. Every project makes batches
of at most 4,096 tokens in its own way: Heedful and JoeyNMT count padding on the longer side, eole
as well. The commands are run in turn, `--rounds` times each; every one makes a few updates, logs
each, and the first two are not counted: the first batch may be a small one (Heedful's is), and then
memory is taken for the first time in the second. A run's figure is the mean over a visit's updates,
enough of them for targets of usual length where an update takes seconds.
Of eole's precisions the one that was faster when tried takes part.

How the projects count, so that all figures are target tokens a second without padding, each
sentence's end token counted:
- Heedful: `tokens` and `tokens_per_second` of metrics.jsonl are these.
- JoeyNMT: its log's "Tokens per Sec" divides `batch.ntokens`, the target positions after the first
  that are not padding, by wall-clock time since the line before. Nothing to convert.
- eole: the second of the two numbers before "tok/s" divides the targets that are not padding (the
  end token among them) by wall-clock time since the line before. Nothing to convert.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from corpus import BATCH_TOKENS, SIDES, first_batches, raw_file, run_settings, sentences
from environments import MissingPeer, environment
from harness import Row, finish, new_parser, parse, say
from turns import alternate, ratio, summary

LIMITS = {"joeynmt": (5, 8), "eole": (3, 4)}
WARM_UP = 2
UPDATES = {"heedful": 20, "joeynmt": 1, "eole": 8}
"""Updates of a visit that count."""
PRESET = {"base": "transformer-base", "tiny": "tiny"}
JOEY_LOG = re.compile(r"Tokens per Sec:\s*([0-9.]+)")
EOLE_LOG = re.compile(r"Step\s+\d+.*?/\s*([0-9.]+) tok/s")


class Commands:
    """The commands, their files, and what became of each.

    Args:
        arguments: of the program.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.folder: Path = arguments.work / "peers-cli"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        settings = run_settings(arguments.data, arguments.work / "encoded", "fp32")
        made = first_batches(PRESET[arguments.size], settings, self.folder / "batches", 1)
        self.spec, self.tokenizers = made.spec, made.tokenizers
        self._write_pieces()
        self.peers: dict[str, Any] = {}
        self.tried: dict[str, float] = {}
        self.turns: dict[str, Callable[[int], float]] = {}
        for precision in arguments.precisions:
            self.turns[f"heedful {precision}"] = lambda number, precision=precision: self._heedful(
                precision, number
            )
        if not arguments.no_peers:
            self._try("joeynmt", {"joeynmt fp32": self._joeynmt})
            eole = {
                f"eole {kind}": lambda number, kind=kind: self._eole(kind, number)
                for kind in ("fp32", "bf16")
            }
            self._try("eole", eole)

    def _try(self, name: str, turns: dict[str, Callable[[int], float]]) -> None:
        """Have a peer take part if it can be had and works once, with its fastest command."""
        try:
            _, self.peers[name] = environment(name, self.arguments.envs)
        except MissingPeer as missing:
            self.peers[name] = f"left out: {missing}"
            say(f"{name} is left out: {missing}")
            return
        rates: dict[str, float] = {}
        for label, turn in turns.items():
            try:
                rates[label] = turn(-1)
                say(f"{label}: {rates[label]:,.0f} tokens/s when tried")
            except MissingPeer as missing:
                self.peers[label] = f"left out: {missing}"
                say(f"{label} is left out: {missing}")
        self.tried |= rates
        if rates:
            best = max(rates, key=rates.__getitem__)
            self.turns[best] = turns[best]

    def _updates(self, name: str) -> int:
        return 1 if self.arguments.quick else UPDATES[name]

    def _heedful(self, precision: str, number: int) -> float:
        run = self.folder / f"heedful-{precision}-{number}"
        updates = WARM_UP + self._updates("heedful")
        corpora = [str(raw_file(self.arguments.data, "train", language)) for _, language in SIDES]
        words = [sys.executable, "-m", "heedful", "train", str(run), "--train", *corpora]
        words += ["--preset", PRESET[self.arguments.size], "--max-steps", str(updates)]
        words += ["--precision", precision, "--data.batch-tokens", str(BATCH_TOKENS)]
        words += ["--tokenizer.vocabulary-size", str(self.spec.target_vocabulary)]
        words += ["--data.cache", str(self.arguments.work / "encoded")]
        words += ["--model.dropout", "0.1", "--checkpoint.average", "none"]
        self._run("heedful", words)
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        found = [event for event in map(json.loads, lines) if "event" not in event][WARM_UP:]
        shutil.rmtree(run)
        seconds = sum(event["tokens"] / event["tokens_per_second"] for event in found)
        return float(sum(event["tokens"] for event in found) / seconds)

    def _joeynmt(self, number: int) -> float:
        folder = self.folder / f"joeynmt-{number}"
        updates = WARM_UP + self._updates("joeynmt")
        config = folder.with_suffix(".yaml")
        config.write_text(json.dumps(self._joeynmt_config(folder, updates)), encoding="utf-8")
        python, _ = environment("joeynmt", self.arguments.envs)
        words = [str(python), "-m", "joeynmt", "train", str(config), "--skip-test"]
        return self._rate("joeynmt", self._run("joeynmt", words), JOEY_LOG)

    def _eole(self, kind: str, number: int) -> float:
        folder = self.folder / f"eole-{kind}-{number}"
        updates = WARM_UP + self._updates("eole")
        config = folder.with_suffix(".yaml")
        config.write_text(json.dumps(self._eole_config(folder, updates, kind)), encoding="utf-8")
        python, _ = environment("eole", self.arguments.envs)
        words = [str(python.with_name("eole")), "train", "--config", str(config)]
        return self._rate("eole", self._run("eole", words), EOLE_LOG)

    def _run(self, name: str, words: list[str]) -> str:
        """What a command says; its environment is that of its project alone."""
        threads = str(self.arguments.threads)
        variables = dict(os.environ, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
        variables["THP_MEM_ALLOC_ENABLE"] = "1"  # as Heedful asks for itself
        if name != "heedful":
            variables.pop("PYTHONPATH", None)
        began = time.monotonic()
        try:
            done = subprocess.run(
                words,
                cwd=self.folder,
                env=variables,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self.arguments.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MissingPeer(f"no end after {self.arguments.timeout:.0f} seconds") from None
        with (self.folder / f"{name}.log").open("a", encoding="utf-8") as log:
            log.write(f"{words}\n{done.stdout}\n{time.monotonic() - began:.0f} seconds\n")
        if done.returncode:
            lines = done.stdout.strip().splitlines() or ["it said nothing"]
            raise MissingPeer(f"exit status {done.returncode}: {lines[-1][:300]}")
        return done.stdout

    def _rate(self, name: str, said: str, pattern: re.Pattern[str]) -> float:
        """The mean speed of the updates that count: as many tokens are in each, about."""
        rates = [float(rate) for rate in pattern.findall(said)][WARM_UP:]
        if len(rates) < self._updates(name):
            raise MissingPeer(f"{len(rates)} updates were logged, not {self._updates(name)}")
        return len(rates) / sum(1 / rate for rate in rates)

    def _write_pieces(self) -> None:
        tokenizers = {"source": self.tokenizers.source, "target": self.tokenizers.target}
        for side, language in SIDES:
            for part in ("train", "val"):
                texts = sentences(raw_file(self.arguments.data, part, language))
                rows = tokenizers[side].encode_batch(texts)
                lines = [" ".join(self._names(side, row)) for row in rows]
                path = self.folder / f"{part}.{language}"
                path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        target = self.tokenizers.target
        special = {target.pad, target.bos, target.eos}
        ids = [id for id in range(target.size) if id not in special]
        names = [name for name in self._names("target", ids) if name not in ("<unk>",)]
        text = "\n".join(dict.fromkeys(names)) + "\n"
        (self.folder / "pieces.txt").write_text(text, encoding="utf-8")

    def _names(self, side: str, ids: Sequence[int]) -> list[str]:
        """Pieces without white space, which would cut them."""
        tokenizer = self.tokenizers.source if side == "source" else self.tokenizers.target
        return [re.sub(r"\s", "\u2420", piece) or "\u2420" for piece in tokenizer.pieces(ids)]

    def _joeynmt_config(self, folder: Path, updates: int) -> dict[str, Any]:
        block = self.spec.encoder.block
        stack = {
            "type": "transformer",
            "num_layers": self.spec.encoder.num_layers,
            "num_heads": block.self_attention.num_heads,
            "hidden_size": self.spec.width,
            "ff_size": block.feedforward.width,
            "dropout": 0.1,
            "embeddings": {"embedding_dim": self.spec.width, "scale": True, "dropout": 0.1},
        }
        pieces = str(self.folder / "pieces.txt")
        sides = {
            short: {"lang": language, "level": "word", "voc_file": pieces, "max_length": 256}
            for short, (_, language) in zip(("src", "trg"), SIDES, strict=True)
        }
        far = 10**6
        return {
            "name": "base",
            "joeynmt_version": "2.3.0",
            "model_dir": str(folder),
            "use_cuda": False,
            "random_seed": 1,
            "data": {
                "train": str(self.folder / "train"),
                "dev": str(self.folder / "val"),
                "dataset_type": "plain",
                **sides,
            },
            "testing": {"beam_size": 1, "batch_size": 64, "eval_metrics": ["bleu"]},
            "training": {
                "optimizer": "adam",
                "adam_betas": [0.9, 0.98],
                "learning_rate": 0.0005,
                "learning_rate_min": 0.0,
                "scheduling": "decaying",  # after an epoch; neither none nor "plateau" runs
                "label_smoothing": 0.1,
                "clip_grad_norm": 1.0,
                "normalization": "tokens",
                "batch_size": BATCH_TOKENS,
                "batch_type": "token",
                "epochs": 100,
                "updates": updates,
                "logging_freq": 1,
                "validation_freq": far,
                "early_stopping_metric": "loss",
                "overwrite": True,
                "shuffle": True,
            },
            "model": {
                "initializer": "xavier_uniform",
                "embed_initializer": "xavier_uniform",
                "tied_embeddings": True,
                "tied_softmax": True,
                "encoder": stack,
                "decoder": stack,
            },
        }

    def _eole_config(self, folder: Path, updates: int, kind: str) -> dict[str, Any]:
        block = self.spec.encoder.block
        pieces = str(self.folder / "pieces.txt")
        far = 10**6
        return {
            "save_data": str(folder / "data"),
            "overwrite": True,
            "seed": 1,
            "report_every": 1,
            "n_sample": 0,
            "src_vocab": pieces,
            "tgt_vocab": pieces,
            "share_vocab": True,
            "data": {
                "corpus_1": {
                    "path_src": str(self.folder / "train.en"),
                    "path_tgt": str(self.folder / "train.de"),
                    "transforms": [],
                }
            },
            "transforms": [],
            "training": {
                "model_path": str(folder / "model"),
                "compute_dtype": kind,
                "train_steps": updates,
                "valid_steps": far,
                "save_checkpoint_steps": far,
                "batch_type": "tokens",
                "batch_size": BATCH_TOKENS,
                "bucket_size": 32_768,
                "num_workers": 0,
                "optim": "adam",
                "learning_rate": 0.0005,
                "adam_beta2": 0.98,
                "max_grad_norm": 1.0,
                "label_smoothing": 0.1,
                "dropout": [0.1],
                "attention_dropout": [0.0],
                "normalization": "tokens",
                "log_attention_entropy": False,
            },
            "model": {
                "architecture": "transformer",
                "layers": self.spec.encoder.num_layers,
                "heads": block.self_attention.num_heads,
                "hidden_size": self.spec.width,
                "transformer_ff": block.feedforward.width,
                "share_embeddings": True,
                "share_decoder_embeddings": True,
                "embeddings": {
                    "word_vec_size": self.spec.width,
                    "position_encoding": True,
                    "position_encoding_type": "SinusoidalInterleaved",
                },
            },
        }


def rows_of(size: str, figures: dict[str, list[float]]) -> list[Row]:
    """The best precision of ours beside the best of each peer."""

    def best(project: str) -> str | None:
        names = [name for name in figures if name.startswith(project)]
        return max(names, key=lambda name: summary(figures[name])["median"], default=None)

    ours = best("heedful")
    assert ours is not None
    rows: list[Row] = []
    for project in LIMITS:
        peer = best(project)
        if peer is None:
            continue
        least, aim = LIMITS[project] if size == "base" else (None, None)
        rows.append(
            {
                "work": f"training {size} by command: {ours} / {peer}",
                "unit": "target tokens/s",
                "ours": summary(figures[ours]),
                "theirs": summary(figures[peer]),
                "ratio": ratio(figures[ours], figures[peer]),
                "least": least,
                "aim": aim,
            }
        )
    row = {"work": f"training {size} by command: {ours}", "unit": "target tokens/s"}
    return rows or [{**row, "ours": summary(figures[ours])}]


def main() -> None:
    """Try all once, then let them take turns; write what came out."""
    parser = new_parser(__doc__, data=True)
    parser.add_argument("--size", choices=PRESET, default="base")
    parser.add_argument("--precisions", nargs="+", default=["bf16"], help="of Heedful")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for a command (600)")
    arguments = parse(parser)
    commands = Commands(arguments)
    figures = alternate(commands.turns, arguments.rounds, say)
    facts = {
        "figures": {name: summary(runs) for name, runs in figures.items()},
        "updates_of_a_visit": UPDATES,
        "tokens_per_second_when_tried": commands.tried,
    }
    rows = rows_of(arguments.size, figures)
    name = f"speed-peers-cli-{arguments.size}"
    finish(arguments, name, rows, facts, peers=commands.peers)


if __name__ == "__main__":
    main()
