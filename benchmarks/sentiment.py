"""Train a classifier of film reviews on SST-2: one command, one JSON line at the end.

    python benchmarks/sentiment.py --data DIR                  from nothing
    python benchmarks/sentiment.py --data DIR --init MODEL     from a model of benchmarks/masked.py

DIR holds sst2/train.tsv.gz and sst2/dev.tsv.gz (or set HEEDFUL_DATA). The last 2,000 texts of the
training file are validated on and not trained on; as they are often parts of the same sentences,
their scores are higher than those of the dev file, which is the test set and is labelled once, at
the end. The settings stand in benchmarks/sentiment/sst2.toml. Everything goes through the `heedful`
command.
"""

from __future__ import annotations

from pathlib import Path

from encoders import Corpora, parse_arguments, read_lines, run, write

VALID = 2_000


def main() -> None:
    """Split, train, label the test set, write the results."""
    arguments = parse_arguments("sentiment-sst2", __doc__)
    folder = arguments.data / "sst2"
    train, test = (read_lines(folder / f"{part}.tsv.gz")[1:] for part in ("train", "dev"))
    corpora = Corpora(
        write(arguments.run, "train.tsv", train[:-VALID]),
        write(arguments.run, "valid.tsv", train[-VALID:]),
        write(arguments.run, "test.tsv", test),
    )
    config = Path("sentiment") / "sst2.toml"
    run(arguments, "sentiment.py", config, corpora, ("accuracy", "macro_f1"))


if __name__ == "__main__":
    main()
