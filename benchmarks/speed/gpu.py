"""Training and translating with transformer-big on one CUDA GPU, beside the peers on the same one.

    python benchmarks/speed/gpu.py --data DIR                  about 20 minutes
    python benchmarks/speed/gpu.py --data DIR --plans compiled
    python benchmarks/speed/gpu.py --data DIR --device cpu --small

Training in bfloat16 with batches of at most 25,000 padded positions on the longer side, in target
tokens a second and as a share of the GPU's own rate in a large product of matrices, by plan:
Heedful and Hugging Face's model uncompiled, both compiled (Heedful's blocks one by one), and
Heedful with activation checkpointing; Heedful with pairs packed into rows of one length, compiled
for the one shape that all batches then have, or by the kernel `varlen`, which computes no pair of
tokens that a mask hides and cannot be compiled. The seconds that each takes to begin stand in the
results.
Then translating beside Hugging Face and CTranslate2, as translating.py does, and a language model
of 124 million parameters, as gpt2.py does; these say how. Figures of Hugging Face: training in
bfloat16 under autocast, `generate` with bfloat16 weights.

With `--small` little is done, by small models: it shows that all of it runs, also on a processor.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import new_parser, parse, say

HERE = Path(__file__).resolve().parent
PLANS: dict[str, list[str]] = {
    "eager": ["--set", "compile=off"],
    "compiled": ["--set", "compile=on", "--compile-peer"],
    "selective": ["--set", "compile=off", "--set", "checkpointing=selective", "--no-peers"],
    "full": ["--set", "compile=off", "--set", "checkpointing=full", "--no-peers"],
    "compiled-full": ["--set", "compile=on", "--set", "checkpointing=full", "--no-peers"],
    "packed": ["--set", "compile=on", "--no-peers"],
    "packed-varlen": ["--set", "compile=off", "--kernel", "varlen", "--no-peers"],
}
"""How training is computed, as flags of training.py."""

ROW = {True: 128, False: 512}
"""Positions of a row of packed pairs, with and without --small."""


def main() -> None:
    """Run the programs; each writes its own results."""
    parser = new_parser(__doc__, data=True)
    parser.add_argument("--plans", nargs="*", default=list(PLANS), choices=PLANS)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--small", action="store_true", help="small models, and little of all")
    parser.add_argument("--batch-tokens", type=int, default=25_000)
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT, for gpt2.py")
    arguments = parse(parser)
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("skipped: there is no CUDA GPU here", file=sys.stderr)
        return
    if arguments.device == "cuda":
        say(f"on {torch.cuda.get_device_name()}")
    rounds = 1 if arguments.small else arguments.rounds
    common = ["--device", arguments.device, "--rounds", str(rounds)]
    common += ["--envs", str(arguments.envs), "--work", str(arguments.work)]
    common += ["--results", str(arguments.results), "--threads", str(arguments.threads)]
    common += ["--quick"] if arguments.quick or arguments.small else []
    common += ["--no-peers"] if arguments.no_peers else []
    data = ["--data", str(arguments.data)]
    size = "tiny" if arguments.small else "big"
    training = ["training.py", size, "--precisions", "bf16", "--peer-precisions", "bf16"]
    training += ["--batch-tokens", str(arguments.batch_tokens), *data]
    label = f"-{arguments.device}"
    row = ROW[arguments.small]
    rows = ["--set", f"data.packed_length={row}", "--set", f"data.max_length={row // 2}"]
    commands = [
        [*training, f"--label={label}-{plan}", *PLANS[plan], *rows * plan.startswith("packed")]
        for plan in arguments.plans
    ]
    commands.append(["translating.py", size, *data])
    clone = [] if arguments.nanogpt is None else ["--nanogpt", str(arguments.nanogpt.resolve())]
    commands.append(["gpt2.py", *clone])
    failed = False
    for program, *words in commands:
        say(f"\n== {program} {' '.join(words)}")
        command = [sys.executable, str(HERE / program), *words, *common]
        failed |= bool(subprocess.run(command, check=False).returncode)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
