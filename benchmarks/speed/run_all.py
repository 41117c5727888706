"""Run all speed benchmarks, one after the other: `make bench`, about two hours on two cores.

    python benchmarks/speed/run_all.py --data DIR [--nanogpt CLONE] [--model MODEL]

Nothing else should run on the machine. Each writes its own results, also when another one fails.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import new_parser, parse, say

HERE = Path(__file__).resolve().parent
PROGRAMS = (
    "startup.py",
    "kernels.py",
    "training.py tiny",
    "training.py base",
    "translating.py tiny",
    "translating.py base",
    "characters.py",
    "long_attention.py",
    "mixers.py",
    "sparse_attention.py",
    "checkpointing.py",
    "peers_cli.py",
    "gpu.py",
)
READ_DATA = ("training.py", "translating.py", "characters.py", "peers_cli.py", "gpu.py")


def main() -> None:
    """Run them; the exit status is 1 if one failed."""
    parser = new_parser(__doc__, data=True)
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT")
    parser.add_argument("--model", type=Path, help="a trained translator of preset tiny, besides")
    parser.add_argument("--only", default="", help="a word in the names of programs")
    arguments = parse(parser)
    common = ["--rounds", str(arguments.rounds), "--threads", str(arguments.threads)]
    common += ["--envs", str(arguments.envs), "--work", str(arguments.work)]
    common += ["--results", str(arguments.results)]
    common += ["--quick"] if arguments.quick else []
    common += ["--no-peers"] if arguments.no_peers else []
    commands = [program.split() for program in PROGRAMS]
    if arguments.model is not None:
        model = str(arguments.model.resolve())
        commands.insert(6, ["translating.py", "tiny", "--model", model])
    if arguments.nanogpt is not None:
        clone = str(arguments.nanogpt.resolve())
        commands = [[*c, "--nanogpt", clone] if c[0] == "characters.py" else c for c in commands]
    failed = []
    for program, *words in commands:
        if arguments.only not in program:
            continue
        data = ["--data", str(arguments.data)] if program in READ_DATA else []
        say(f"\n== {program} {' '.join(words)}")
        command = [sys.executable, str(HERE / program), *words, *data, *common]
        if subprocess.run(command, check=False).returncode:
            failed.append(program)
    if failed:
        say(f"failed: {', '.join(failed)}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
