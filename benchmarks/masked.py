"""Train a masked language model on WikiText-2: one command, one JSON line at the end.

    python benchmarks/masked.py --data DIR

DIR holds wikitext2/train.txt.gz and wikitext2/valid.txt.gz (or set HEEDFUL_DATA). The settings
stand in benchmarks/masked/wikitext2.toml; its encoder is that of benchmarks/tagging.py and
benchmarks/sentiment.py, which begin with it if they are given `--init runs/masked-wikitext2`.
Everything goes through the `heedful` command.
"""

from __future__ import annotations

from pathlib import Path

from encoders import Corpora, parse_arguments, run


def main() -> None:
    """Train, write the results."""
    arguments = parse_arguments("masked-wikitext2", __doc__, can_begin=False)
    folder = arguments.data / "wikitext2"
    corpora = Corpora(folder / "train.txt.gz", folder / "valid.txt.gz")
    config = Path("masked") / "wikitext2.toml"
    run(arguments, "masked.py", config, corpora, ("perplexity", "bits_per_token"))


if __name__ == "__main__":
    main()
