"""Ring attention in 1, 2 and 4 processes beside one: equality, memory of each, time spent waiting.

    python benchmarks/ring_attention.py --results DIR [--tokens 32768]

Attention alone (causal, 2 heads of 64 that share keys) is compared with PyTorch's own fused
attention in one process, outputs and gradients. The forward and backward pass of a small language
model (4 layers, windows of 1,024, a quarter of the tokens) is compared with the same model in one
process, loss and gradients.
Every process makes its share of the tokens from seeds, so that none ever holds more. Its memory is
the largest resident size over that before the tokens were made.

Writes result.json and table.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SIZES = (1, 2, 4)
PIECES = 2 * max(SIZES)
"""Pieces of a sequence, each made from a seed of its own."""

HEADS, KV_HEADS, WIDTH = 2, 1, 64
VOCABULARY, WINDOW, LAYERS = 512, 1024, 4
PATIENCE = 1800


def main() -> None:
    """Run every number of processes, compare, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="directory that they are written to")
    parser.add_argument("--tokens", type=int, default=32_768, help="a multiple of 32")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--shared", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        run_worker(arguments)
        return
    assert arguments.tokens % (4 * PIECES) == 0, arguments.tokens
    assert arguments.results is not None, "--results DIR"
    load = os.getloadavg()[0]
    tokens = {"attention": arguments.tokens, "model": arguments.tokens // 4}
    runs = {work: compare(work, count) for work, count in tokens.items()}
    from machine import describe_machine

    record = {
        "benchmark": "ring-attention",
        "command": f"python benchmarks/ring_attention.py --tokens {arguments.tokens}",
        "tokens": tokens,
        "machine": describe_machine(),
        "load": load,
        **runs,
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "result.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    (arguments.results / "table.md").write_text(table(runs), "utf-8")
    print(table(runs))


def compare(work: str, tokens: int) -> list[dict[str, Any]]:
    """Return the figures of each number of processes."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        launch(work, "whole", directory, tokens, 1)
        for size in SIZES:
            figures = launch(work, "shares", directory, tokens, size)
            eager = figures
            if size == max(SIZES):
                eager = launch(work, "waiting", directory, tokens, size)
            rows.append(
                {
                    "processes": size,
                    "largest_error": largest_error(directory, size),
                    "memory_mb": [round(each["bytes"] / 1e6, 1) for each in figures],
                    "seconds": [round(each["seconds"], 2) for each in figures],
                    "waiting": [round(each["waiting"], 3) for each in figures],
                    "seconds_without_overlap": [round(each["seconds"], 2) for each in eager],
                    "waiting_without_overlap": [round(each["waiting"], 3) for each in eager],
                    "computed_scores": [each["pairs"] for each in figures],
                }
            )
            print(json.dumps({"work": work, **rows[-1]}), flush=True)
    return rows


def launch(work: str, how: str, directory: Path, tokens: int, size: int) -> list[dict[str, Any]]:
    """Run processes, and return what each measured."""
    for old in directory.glob("store*"):
        old.unlink()
    command = [sys.executable, __file__, "--work", f"{work}/{how}", "--shared", str(directory)]
    command += ["--tokens", str(tokens), "--size", str(size), "--rank"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen([*command, str(rank)], env=environment, stdout=sys.stderr)
        for rank in range(size)
    ]
    codes = [each.wait(PATIENCE) for each in started]
    assert not any(codes), codes
    return [json.loads((directory / f"figures-{rank}.json").read_text()) for rank in range(size)]


def run_worker(arguments: argparse.Namespace) -> None:
    """Do the work of one process, measure it, and leave its tensors for the comparison."""
    import torch
    import torch.distributed as dist

    rank, size, directory = arguments.rank, arguments.size, arguments.shared
    work, how = arguments.work.split("/")
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=size
    )
    group = None if how == "whole" else dist.group.WORLD
    spent = [0.0]
    with timed_waiting(spent, at_once=how == "waiting"):
        function: Callable[..., Any] = {"attention": attention, "model": model}[work]
        function(rank, size, 16 * PIECES, group)  # loads what will be called
        spent[0] = 0.0
        tensors, figures = function(rank, size, arguments.tokens, group)
    figures["bytes"] = resident("VmHWM") - figures.pop("bytes_before")
    figures["waiting"] = spent[0]
    name = "whole" if how == "whole" else f"share-{rank}"
    torch.save(tensors, directory / f"{name}.pt")
    (directory / f"figures-{rank}.json").write_text(json.dumps(figures), "utf-8")
    dist.barrier()
    dist.destroy_process_group()


def attention(rank: int, size: int, tokens: int, group: Any) -> tuple[dict[str, Any], Any]:
    """Run attention forward and backward; PyTorch's own where there is no group."""
    import torch
    import torch.nn.functional as F

    from heedful.nn.attention.attend import attend
    from heedful.nn.attention.masks import Causal
    from heedful.nn.positions import Positions, context_parallel

    before = reset_peak()
    heads = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS, "gradient": HEADS}
    made = {
        name: torch.cat(list(pieces(rank, size, tokens, count * WIDTH, number)), 1)
        .unflatten(-1, (count, WIDTH))
        .transpose(1, 2)
        .contiguous()
        for number, (name, count) in enumerate(heads.items())
    }
    q, k, v = (made[name].requires_grad_() for name in ("q", "k", "v"))
    at = torch.cat([torch.arange(*bounds) for bounds in places(rank, size, tokens)])[None]
    start = time.perf_counter()
    if group is None:
        output = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        output.backward(made["gradient"])
    else:
        with context_parallel(group):
            output = attend(q, k, v, Positions.of_self(at), Causal())
            output.backward(made["gradient"])
    seconds = time.perf_counter() - start
    tensors = {"output": output.detach(), "q": q.grad, "k": k.grad, "v": v.grad}
    return tensors, {
        "seconds": seconds,
        "bytes_before": before,
        "pairs": scores_computed(at, tokens, Causal()),
    }


def model(rank: int, size: int, tokens: int, group: Any) -> tuple[dict[str, Any], Any]:
    """Run a language model's loss and gradients; without a group by the kernels of one process."""
    import contextlib

    import torch

    from heedful.data.batches import WindowBatch
    from heedful.models.causal_lm import CausalLM
    from heedful.models.shape import TranslatorShape
    from heedful.models.shape_to_spec import causal_lm_spec
    from heedful.nn.attention.masks import Causal, Window
    from heedful.nn.positions import context_parallel
    from heedful.train.objective import CausalLMObjective, LossContext

    shape = TranslatorShape(
        width=256,
        decoder_layers=LAYERS,
        num_heads=4,
        feedforward=1024,
        activation="gelu",  # a ReLU near 0 turns the last bit of a sum into a gradient or none
        positions="rotary",
        norm="rms",
        norm_placement="pre",
        window=WINDOW,
        dropout=0.0,
    )
    torch.manual_seed(1)
    made = CausalLM(causal_lm_spec(shape, VOCABULARY, tokens)).train()
    before = reset_peak()
    ids = torch.cat(
        [(each.abs() * 1e6).long() % VOCABULARY for each in pieces(rank, size, tokens, 2, 9)], 1
    )
    at = torch.cat([torch.arange(*bounds) for bounds in places(rank, size, tokens)])[None]
    batch = WindowBatch(
        ids[..., 0], at, torch.zeros_like(at), ids[..., 1], torch.zeros(1).long(), at.numel()
    )
    start = time.perf_counter()
    with contextlib.nullcontext() if group is None else context_parallel(group):
        loss = CausalLMObjective(0.1).loss(made, batch, LossContext(1)).loss_sum
        loss.backward()
    seconds = time.perf_counter() - start
    tensors = {name: each.grad for name, each in made.named_parameters()}
    return {"loss": loss.detach(), **tensors}, {
        "seconds": seconds,
        "bytes_before": before,
        "pairs": scores_computed(at, tokens, Causal() & Window(WINDOW)),
    }


def places(rank: int, size: int, tokens: int) -> list[tuple[int, int]]:
    """Return the first position of each of a process's chunks, and the one after its last."""
    chunk = tokens // (2 * size)
    return [(number * chunk, (number + 1) * chunk) for number in (rank, 2 * size - 1 - rank)]


def pieces(rank: int, size: int, tokens: int, width: int, seed: int) -> Iterator[Any]:
    """Yield random numbers [1, tokens of a piece, width] of a process's share, in order."""
    import torch

    length = tokens // PIECES
    for first, last in places(rank, size, tokens):
        for number in range(first // length, last // length):
            generator = torch.Generator().manual_seed(1000 * seed + number)
            yield torch.randn(1, length, width, generator=generator)


def scores_computed(at: Any, tokens: int, mask: Any) -> int:
    """Return the number of pairs in the blocks that a process computes, of each head."""
    import torch

    from heedful.nn.attention.kernels.chunked import computed_pairs
    from heedful.nn.positions import Positions

    return computed_pairs(Positions(at, torch.arange(tokens)[None]), mask)


def largest_error(directory: Path, size: int) -> float:
    """Return the largest difference from one process, relative to a tensor's largest number.

    Outputs and gradients of tokens are put together from the shares; gradients of parameters and
    the loss are summed.
    """
    import torch

    whole = torch.load(directory / "whole.pt", weights_only=True)
    shares = [torch.load(directory / f"share-{rank}.pt", weights_only=True) for rank in range(size)]
    worst = 0.0
    for name, expected in whole.items():
        found = [share[name] for share in shares]
        if "output" in whole:  # of tokens: two chunks of each process
            halves = [each.chunk(2, 2) for each in found]
            front, back = ([half[side] for half in halves] for side in (0, 1))
            total = torch.cat([*front, *reversed(back)], 2)
        else:
            total = torch.stack(found).sum(0)
        error = float((total - expected).abs().max() / expected.abs().max())
        worst = max(worst, error)
    return worst


@contextmanager
def timed_waiting(spent: list[float], *, at_once: bool) -> Iterator[None]:
    """Add up the seconds in which a process waits for tensors; wait `at_once` for no overlap."""
    from heedful.nn.attention.kernels import ring

    wait, pass_on = ring.Arriving.wait, ring.Ring.pass_on

    def timed(arriving: Any) -> Any:
        start = time.perf_counter()
        result = wait(arriving)
        spent[0] += time.perf_counter() - start
        return result

    def at_once_pass_on(self: Any, tensors: Any, channel: int) -> Any:
        arriving = pass_on(self, tensors, channel)
        timed(arriving)
        return ring.Arriving(arriving.tensors, [], [])

    ring.Arriving.wait = timed  # type: ignore[method-assign]
    if at_once:
        ring.Ring.pass_on = at_once_pass_on  # type: ignore[method-assign]
    try:
        yield
    finally:
        ring.Arriving.wait, ring.Ring.pass_on = wait, pass_on  # type: ignore[method-assign]


def reset_peak() -> int:
    """Return the resident size of this process in bytes, from which its peak now begins."""
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    return resident("VmRSS")


def resident(name: str) -> int:
    """Return a size of /proc/self/status in bytes; getrusage's peak is the parent's at first."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    line = next(each for each in lines if each.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Return the figures for people."""
    names = {"attention": "attention, causal", "model": "language model, windows"}
    lines = [
        "| | processes | largest error | memory of each, MB | scores computed by each, millions | "
        "seconds | of them waiting | without overlap |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for work, rows in runs.items():
        for row in rows:
            scores = [pairs / 1e6 for pairs in row["computed_scores"]]
            without = "–"
            if row["processes"] == max(SIZES):
                without = f"{mean(row['waiting_without_overlap']):.1f}"
            lines.append(
                f"| {names[work]} | {row['processes']} | {row['largest_error']:.1e} | "
                f"{max(row['memory_mb']):,.0f} | {min(scores):,.1f} to {max(scores):,.1f} | "
                f"{max(row['seconds']):.1f} | {mean(row['waiting']):.1f} | {without} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
