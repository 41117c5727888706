"""Foreseen peaks of memory against measured ones, each in a process of its own.

    python benchmarks/memory.py [--steps 150] [--only tiny]

Trains and decodes with random weights and random texts of many lengths, as the command line would,
and compares the largest resident size with `heedful.engines.cost_memory`. Prints a table and a
JSON line.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

VOCABULARY, LONGEST, PAIRS = 10_000, 48, 4_000


@dataclass(frozen=True)
class Case:
    """What a process does."""

    model: str
    verb: str
    precision: str
    batch_tokens: int

    @property
    def name(self) -> str:
        return " ".join(map(str, asdict(self).values()))


CASES = [
    *(
        Case(model, "train", precision, tokens)
        for model, tokens in (("tiny", 1024), ("tiny", 4096), ("base-2+2", 2048))
        for precision in ("fp32", "bf16")
    ),
    Case("gpt", "train", "bf16", 2048),
    Case("encoder", "train", "bf16", 2048),
    Case("tiny", "decode", "fp32", 4096),
    Case("base-2+2", "decode", "bf16", 4096),
    Case("base-2+2", "decode", "fp32", 4096),
]


def main() -> None:
    """Run every case in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(measure(CASES[arguments.case], arguments.steps)))
        return
    found = []
    print(f"{'case':<32}{'foreseen':>12}{'measured':>12}{'error':>9}")
    for number, case in enumerate(CASES):
        if arguments.only not in case.name:
            continue
        command = [sys.executable, __file__, "--case", str(number), "--steps"]
        done = subprocess.run(
            [*command, str(arguments.steps)], check=True, stdout=subprocess.PIPE, text=True
        )
        result = json.loads(done.stdout.splitlines()[-1])
        result["error"] = round(result["foreseen"] / result["measured"] - 1, 4)
        found.append({**asdict(case), **result})
        sizes = (f"{result[key] / 1e6:,.0f} MB" for key in ("foreseen", "measured"))
        print(f"{case.name:<32}{''.join(f'{size:>12}' for size in sizes)}{result['error']:>+9.1%}")
    from machine import describe_machine

    worst = max((abs(each["error"]) for each in found), default=0.0)
    record = {"benchmark": "memory", "worst": worst, "cases": found, "machine": describe_machine()}
    print(json.dumps(record))


def measure(case: Case, steps: int) -> dict[str, Any]:
    """Do the work of a case in this process."""
    from heedful.cli.main import set_environment

    set_environment()
    import torch

    from heedful.engines.cost_memory import decoding_peak, training_peak
    from heedful.models import cost
    from heedful.models.build import build_model
    from heedful.nn.work import BFLOAT16, FLOAT32

    torch.manual_seed(0)
    spec = spec_of(case.model)
    model = build_model(spec)
    number_bytes = FLOAT32 if case.precision == "fp32" else BFLOAT16
    asked = {"parameters": cost.count_parameters(spec), "number_bytes": number_bytes, "length": 20}
    if case.verb == "train":
        train(case, model, steps)
        foreseen = training_peak(spec, case.batch_tokens, **asked)
    else:
        at_once = decode(case, model, steps)
        foreseen = decoding_peak(spec, case.batch_tokens, beam=4, at_once=at_once, **asked)
    measured = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"foreseen": foreseen.total, "measured": measured, "parts": asdict(foreseen)}


def spec_of(name: str) -> Any:
    """The model of a case."""
    from heedful.models.encoder_spec import MaskedLMHeadSpec
    from heedful.models.preset_files import preset_spec
    from heedful.models.shape import TranslatorShape
    from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec

    if name == "tiny":
        return preset_spec("tiny", VOCABULARY)
    shape = TranslatorShape(
        width=512, encoder_layers=2, decoder_layers=2, num_heads=8, feedforward=2048
    )
    if name == "base-2+2":
        from heedful.models.shape_to_spec import translator_spec

        return translator_spec(shape, VOCABULARY, VOCABULARY)
    shape = shape.model_copy(
        update={"width": 256, "norm_placement": "pre", "activation": "gelu", "feedforward": 1024}
    )
    if name == "gpt":
        return causal_lm_spec(shape, VOCABULARY, 128)
    return encoder_spec(shape, VOCABULARY, LONGEST, (MaskedLMHeadSpec(),))


def train(case: Case, model: Any, steps: int) -> None:
    """Updates on random texts, batched as training batches them."""
    from heedful.device import Precision
    from heedful.memory import Trimmer
    from heedful.train.objective import CausalLMObjective, MaskedObjective, TranslationObjective
    from heedful.train.optimizers import build_optimizer
    from heedful.train.run_settings import ObjectiveSettings, OptimizerSettings
    from heedful.train.update import Updater

    objectives = {"gpt": CausalLMObjective(0.0), "encoder": MaskedObjective(0.0)}
    objective = objectives.get(case.model, TranslationObjective(ObjectiveSettings()))
    precision = Precision(case.precision, "cpu")  # type: ignore[arg-type]
    optimizer = build_optimizer(model, OptimizerSettings())
    updater, trimmer = Updater(model, objective, optimizer, precision, seed=1), Trimmer()
    for step, batch in enumerate(batches(case, steps), start=1):
        updater.update([batch], step, 1e-4)
        trimmer.step()


def batches(case: Case, steps: int) -> Any:
    """Batches of random ids."""
    import numpy as np
    import torch

    from heedful.data.batch_plan import plan_epoch
    from heedful.data.batches import PairBatch, RowBatch, WindowBatch

    draw = np.random.default_rng(0)
    lengths = np.clip(np.round(draw.lognormal(2.6, 0.35, PAIRS)), 3, LONGEST).astype(np.int32)
    others = np.clip(lengths + draw.integers(-2, 3, PAIRS), 3, LONGEST).astype(np.int32)

    def padded(sizes: Any) -> Any:
        places = np.arange(sizes.max())[None].repeat(len(sizes), 0)
        positions = torch.from_numpy(np.where(places < sizes[:, None], places, -1))
        return torch.from_numpy(draw.integers(5, VOCABULARY, places.shape)), positions

    done = epoch = 0
    while True:
        for numbers in plan_epoch(
            np.maximum(lengths, others) + 1,
            [(np.arange(PAIRS), 1.0)],
            batch_tokens=case.batch_tokens,
            pool_batches=100,
            seed=1,
            epoch=epoch,
            ties=(lengths, others),
        ):
            if done == steps:
                return
            done += 1
            rows = torch.from_numpy(numbers)
            if case.model == "gpt":
                size = case.batch_tokens // 128
                ids, positions = padded(np.full(size, 128))
                segments = torch.zeros_like(ids)
                yield WindowBatch(ids, positions, segments, ids, torch.arange(size), ids.numel())
                continue
            source, places = padded(lengths[numbers] + 1)
            if case.model == "encoder":
                targets = torch.where(torch.rand(source.shape) < 0.15, source, -1)
                targets = torch.where(places >= 0, targets, -1)
                yield RowBatch(source, places, targets, rows, int((targets >= 0).sum()))
                continue
            target, positions = padded(others[numbers] + 1)
            real = int((positions >= 0).sum())
            yield PairBatch(source, places, target, target, positions, rows, real)
        epoch += 1


def decode(case: Case, model: Any, steps: int) -> int:
    """Beam searches over random texts of all lengths, that run to the texts' own length.

    Returns:
        How many batches were searched at once.
    """
    import torch

    from heedful.device import Precision
    from heedful.engines.inference.prepare import precision_of, prepare
    from heedful.pipelines.batching import batches_at_once, in_threads
    from heedful.search.dispatch import search
    from heedful.search.search_settings import SearchSettings, Specials

    model = prepare(model.eval(), Precision(case.precision, "cpu"), donate=True)  # type: ignore[arg-type]
    precision = precision_of(model)
    specials = Specials(pad=0, bos=1, eos=2)

    def work(number: int) -> None:
        length = 12 + number % 24
        rows = case.batch_tokens // (4 * length)
        ids = torch.randint(5, VOCABULARY, (rows, length))
        positions = torch.arange(length).repeat(rows, 1)
        settings = SearchSettings(beam=4, max_length=length, min_length=length - 1)
        search(
            model,
            ids,
            positions,
            settings,
            specials=specials,
            prefixes=[()] * rows,
            names=list(range(rows)),
            longest=None,
        )

    numbers = range(max(8, steps // 20))
    at_once, waiting = batches_at_once(torch.device("cpu"), len(numbers)), iter(numbers)
    with precision.autocast():
        list(in_threads(lambda: map(work, waiting), at_once, precision.in_thread))
    return at_once


if __name__ == "__main__":
    main()
