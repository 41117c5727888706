"""Handwritten digits as sequences of pixels: bits a pixel by what a pixel sees.

    python benchmarks/pixels.py --data DIR [--side 14] [--levels 8] [--seeds 1 2 3]

DIR holds mnist/train-images-idx3-ubyte.gz and the other three files (or set HEEDFUL_DATA). The last
5,000 training images are validated on and not trained on. A pixel sees all before it, a window of
them in one dimension, a window in two (Image Transformer; Parmar 2018), or a stack of convolutions
of the same size. Windows in one and two dimensions hold equally many pixels.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from driver import HERE, heedful, hide_paths, new_parser, parse, train, write_result
from mnist import split

NAME = "pixels"
SETTINGS = HERE / "pixels" / "decoder.toml"


def main() -> None:
    """Train each variant with each seed, measure, write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--side", type=int, default=14)
    parser.add_argument("--levels", type=int, default=8)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--variants", nargs="+", default=["full", "line", "square", "convolution"])
    arguments = parse(parser)
    started = datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    runs = arguments.run or Path("runs") / NAME
    runs.mkdir(parents=True, exist_ok=True)
    (digits, _), (valid, _) = split(arguments.data / "mnist", runs / "digits")
    test = arguments.data / "mnist" / "t10k-images-idx3-ubyte.gz"
    side, levels = arguments.side, arguments.levels
    names = {runs: "RUNS", arguments.data: "DIR"}
    rows = []
    for variant in arguments.variants:
        for seed in arguments.seeds:
            run, log = runs / f"{variant}-{seed}", out / f"{variant}-{seed}.log"
            parts = {"train": [str(digits)], "valid": [str(valid)]}
            settings = {
                "task": "tokens",
                "tokens.reader": "images",
                "tokens.levels": levels,
                "tokens.size": side,
                "tokens.fields": f"pixels:{levels}:{side}x{side}",
                "seed": seed,
                **shape(variant, side),
            }
            began = time.monotonic()
            train(run, SETTINGS, parts, settings, arguments.extra, log)
            minutes = (time.monotonic() - began) / 60
            hide_paths(log, names)
            said = heedful(["evaluate", str(run), "--data", str(test), "--json"])
            bits = json.loads(said)["scores"]["bits_per_value"]
            row = {"variant": variant, "seed": seed, "bits": bits, "minutes": round(minutes, 1)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    command = "python benchmarks/pixels.py --data DIR"
    write_result(out, command, arguments.extra, started, side=side, levels=levels, runs=rows)


def shape(variant: str, side: int) -> dict[str, Any]:
    """The settings of a variant's model.

    Args:
        variant: what a pixel sees.
        side: rows and columns of an image.
    """
    # Three rows above and three columns to both sides hold 3 · 7 + 3 pixels, and the pixel itself.
    near = 4
    seen = (near - 1) * (2 * near - 1) + near
    blocks = {"model.num-heads": 6, "model.feedforward": 384, "model.positions": "axes"}
    return {
        "full": blocks,
        "line": {**blocks, "model.window": seen},
        "square": {**blocks, "model.mask": f"window_2d({side},{near},{near},1)"},
        # The same width and depth: a kernel of so many tokens reaches a row up with every layer.
        "convolution": {"model.convolution.kernel-width": side // 2},
    }[variant]


if __name__ == "__main__":
    main()
