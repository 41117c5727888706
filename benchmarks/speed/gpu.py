"""Training and translating with transformer-big on one CUDA GPU, beside the peers on the same one.

    python benchmarks/speed/gpu.py --data DIR        about 10 minutes
    python benchmarks/speed/gpu.py --data DIR --set compile=on

Training in bfloat16 with batches of at most 25,000 padded positions on the longer side, in target
tokens a second and as a share of the GPU's own rate in a large product of matrices; then
translating, as training.py and translating.py do, which say how. What is compiled of ours, `--set`
says as the settings of a run do. `--compile-peer` compiles Hugging Face's model. Figures of theirs:
training in bfloat16 under autocast, `generate` with bfloat16 weights.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import new_parser, parse, say

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run both programs; each writes its own results."""
    parser = new_parser(__doc__, data=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--compile-peer", action="store_true")
    parser.add_argument("--batch-tokens", type=int, default=25_000)
    arguments = parse(parser)
    import torch

    if not torch.cuda.is_available():
        print("skipped: there is no CUDA GPU here", file=sys.stderr)
        return
    say(f"on {torch.cuda.get_device_name()}")
    common = ["--data", str(arguments.data), "--device", "cuda", "--rounds", str(arguments.rounds)]
    common += ["--envs", str(arguments.envs), "--work", str(arguments.work)]
    common += ["--results", str(arguments.results), "--threads", str(arguments.threads)]
    common += ["--quick"] if arguments.quick else []
    common += ["--no-peers"] if arguments.no_peers else []
    training = ["--precisions", "bf16", "--peer-precisions", "bf16"]
    training += ["--batch-tokens", str(arguments.batch_tokens)]
    training += [word for setting in arguments.set for word in ("--set", setting)]
    training += ["--compile-peer"] if arguments.compile_peer else []
    failed = 0
    for program, words in (("training.py", training), ("translating.py", [])):
        command = [sys.executable, str(HERE / program), "big", *words, *common]
        failed += bool(subprocess.run(command, check=False).returncode)
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
