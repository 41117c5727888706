"""How fast the parts are that training and translating are made of, so that a regression shows.

    python benchmarks/speed/kernels.py                   about 3 minutes
    python benchmarks/speed/kernels.py --only attention  names that contain a word

Products of matrices in every precision, a layer of training, attention by kernel and length, the
loss, dropout, norms and the choice of the best tokens. Rounds go through all of them in turn. A
work's figure is in milliseconds, or GFLOP/s for products; `--against FILE` names a result of
before, and the table then says how often faster each work has become.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import Row, finish, new_parser, parse, say
from torch import Tensor
from torch.nn.functional import linear
from turns import alternate, summary

from heedful.device import Precision
from heedful.engines.host_parts import PROCESSOR_KERNELS
from heedful.engines.training.chunked_loss import ProcessorLosses
from heedful.engines.training.products import linear as trained
from heedful.engines.training.residual_norm import ResidualNorm, cheap_dropout, residual_norm
from heedful.nn.attention.attend import attend, make_request
from heedful.nn.attention.masks import Causal
from heedful.nn.positions import Positions
from heedful.search.step_model import best_candidates, row_logsumexp

ROWS, WIDTH, INNER, PIECES = 4096, 512, 2048, 10_000
PRECISIONS = {
    "fp32": Precision("fp32", "cpu", own=False),
    "fp32 oneDNN": Precision("fp32", "cpu", onednn=True, own=False),
    "bf16": Precision("bf16", "cpu", own=False),
}
OF_TRAINING = PRECISIONS | {
    f"{name}, own kernels": Precision(name, "cpu") for name in ("fp32", "bf16")
}


@dataclass(frozen=True)
class Work:
    """Something to do again and again.

    Args:
        name: of it.
        run: does it once.
        within: a context it runs in.
        operations: of it, for a rate; 0 where seconds are what counts.
    """

    name: str
    run: Callable[[], Any]
    within: Callable[[], AbstractContextManager[Any]] = nullcontext
    operations: float = 0.0

    def measure(self, seconds: float) -> float:
        """Milliseconds of one time, or GFLOP/s, from as many times as take so many seconds."""
        with self.within():
            self.run()
            done, began = 0, time.perf_counter()
            while (spent := time.perf_counter() - began) < seconds or done < 2:
                self.run()
                done += 1
        once = spent / done
        return 1e-9 * self.operations / once if self.operations else 1e3 * once


def works(shrink: int) -> Iterator[Work]:
    """All of them; with fewer rows, which mean less, to see that they work."""
    yield from _products(ROWS // shrink)
    yield from _layers(ROWS // shrink)
    yield from _attentions(shrink)
    yield from _of_training(ROWS // shrink)
    yield from _of_decoding(max(1, 160 // shrink))


def _products(rows: int) -> Iterator[Work]:
    for inner, outer in ((WIDTH, INNER), (INNER, WIDTH), (WIDTH, PIECES), (128, 256)):
        x, weight = torch.randn(rows, inner), torch.randn(outer, inner)
        for name, precision in PRECISIONS.items():
            half = precision.name == "bf16"
            a, b = (x.bfloat16(), weight.bfloat16()) if half else (x, weight)

            def product(a: Tensor = a, b: Tensor = b) -> Tensor:
                with torch.no_grad():
                    return linear(a, b)

            title = f"matmul {name}, {rows} x {inner} x {outer}"
            yield Work(title, product, precision.matmul, 2.0 * rows * inner * outer)


def _layers(rows: int) -> Iterator[Work]:
    for inner, outer in ((WIDTH, WIDTH), (WIDTH, INNER), (INNER, WIDTH)):
        x = torch.randn(rows, inner, requires_grad=True)
        weight = torch.randn(outer, inner, requires_grad=True)
        for name, precision in OF_TRAINING.items():
            change = torch.randn(rows, outer).to(
                torch.bfloat16 if precision.name == "bf16" else torch.float32
            )

            def both(
                precision: Precision = precision,
                mine: tuple[Tensor, Tensor] = (x, weight),
                change: Tensor = change,
            ) -> Any:
                with precision.autocast():
                    y = trained(*mine, None)
                return torch.autograd.grad(y, mine, change)

            title = f"linear {name}, {rows} x {inner} x {outer}, forward and backward"
            yield Work(title, both, precision.matmul, 6.0 * rows * inner * outer)


def _attentions(shrink: int) -> Iterator[Work]:
    for length in (16, 32, 64, 256, 1024):
        batch = ROWS // shrink // length
        if not batch:
            continue
        positions = Positions.of_self(torch.arange(length).expand(batch, length))
        for dtype in (torch.float32, torch.bfloat16):
            q, k, v = (
                torch.randn(batch, 8, length, 64, dtype=dtype, requires_grad=True) for _ in range(3)
            )
            request = make_request(q, k, v, positions, Causal(), kernels=PROCESSOR_KERNELS)
            for kernel in ("native", "matmul", "sdpa", "chunked"):
                if PROCESSOR_KERNELS.by_name[kernel].unsupported(request) is not None:
                    continue

                def mixed(
                    kernel: str = kernel, qkv: Any = (q, k, v), at: Any = positions
                ) -> Tensor:
                    return attend(*qkv, at, Causal(), kernel=kernel, kernels=PROCESSOR_KERNELS)

                def forward(mixed: Callable[[], Tensor] = mixed) -> Tensor:
                    with torch.no_grad():
                        return mixed()

                def both(mixed: Callable[[], Tensor] = mixed, qkv: Any = (q, k, v)) -> Any:
                    return torch.autograd.grad(mixed().sum(), qkv)

                name = f"attention {kernel} {str(dtype).removeprefix('torch.')}, {batch} x {length}"
                yield Work(f"{name}, forward", forward)
                yield Work(f"{name}, forward and backward", both)


def _of_training(rows: int) -> Iterator[Work]:
    hidden = torch.randn(rows, WIDTH, requires_grad=True)
    # Logits as a model has them: wider ones make gradients that are too small for normal numbers.
    weight = (torch.randn(PIECES, WIDTH) * WIDTH**-0.5).requires_grad_()
    targets = torch.randint(PIECES, (rows,))
    for name, precision in OF_TRAINING.items():

        def loss(precision: Precision = precision) -> Any:
            with precision.autocast():
                found = ProcessorLosses().smoothed_cross_entropy(hidden, weight, targets, 0.1)[0]
            return torch.autograd.grad(found, (hidden, weight))

        yield Work(f"loss {name}, {rows} x {PIECES}, forward and backward", loss, precision.matmul)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(rows, INNER, dtype=dtype, requires_grad=True)

        def drop(x: Tensor = x) -> Any:
            return torch.autograd.grad(cheap_dropout(x, 0.1).sum(), x)

        kind = str(dtype).removeprefix("torch.")
        yield Work(f"dropout {kind}, {rows} x {INNER}, forward and backward", drop)
    norm = torch.nn.LayerNorm(WIDTH)
    y = torch.randn(rows, WIDTH, requires_grad=True)
    yield Work(
        f"layer norm, {rows} x {WIDTH}, forward and backward",
        lambda: torch.autograd.grad(norm(y).sum(), y),
    )
    change = torch.randn(rows, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    after = ResidualNorm(norm, dropout=0.1)
    yield Work(
        f"dropout, sum and norm, {rows} x {WIDTH}, forward and backward",
        lambda: torch.autograd.grad(residual_norm(y, change, after)[0].sum(), (y, change)),
    )


def _of_decoding(hypotheses: int) -> Iterator[Work]:
    logits = torch.randn(hypotheses, PIECES)
    sentences, beam = max(1, hypotheses // 5), min(5, hypotheses)
    totals = torch.zeros(sentences, beam, dtype=torch.float64)
    yield Work(f"totals, {hypotheses} x {PIECES}", lambda: row_logsumexp(logits))
    scores = logits.view(sentences, beam, PIECES)
    logsumexp = row_logsumexp(scores)
    yield Work(
        f"best tokens, {sentences} x {beam} x {PIECES}",
        lambda: best_candidates(scores, logsumexp, totals, 2 * beam),
    )


def main() -> None:
    """Go through all, some times; write what came out."""
    parser = new_parser(__doc__)
    parser.add_argument("--only", default="", help="a word in the names of works")
    parser.add_argument("--seconds", type=float, help="a work's time in a round (0.1)")
    parser.add_argument("--against", type=Path, help="result.json of an earlier time")
    arguments = parse(parser)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    seconds = arguments.seconds or (0.001 if arguments.quick else 0.1)
    chosen = {
        work.name: work
        for work in works(64 if arguments.quick else 1)
        if arguments.only in work.name
    }
    figures = alternate(
        {name: lambda _, work=work: work.measure(seconds) for name, work in chosen.items()},
        arguments.rounds,
        lambda text: say(text.partition(":")[0]),
        settle=0.0,
    )
    before = _before(arguments.against)
    rows = [_row(chosen[name], runs, before) for name, runs in figures.items()]
    finish(arguments, "speed-kernels", rows, {"seconds_a_round": seconds})


def _row(work: Work, runs: list[float], before: dict[str, list[float]]) -> Row:
    """A line of the table, with what an earlier time found."""
    row: dict[str, Any] = {"work": work.name, "ours": summary(runs)}
    row["unit"] = "GFLOP/s" if work.operations else "ms"
    if work.name in before:
        row["theirs"] = summary(before[work.name])
        now, then = row["ours"]["median"], row["theirs"]["median"]
        row["ratio"] = summary([now / then if work.operations else then / now])
    return row


def _before(path: Path | None) -> dict[str, list[float]]:
    if path is None:
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return {row["work"]: row["ours"]["runs"] for row in content["rows"]}


if __name__ == "__main__":
    main()
