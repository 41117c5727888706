"""Train a part-of-speech tagger on the leaves of GUM's trees.

    python benchmarks/tagging.py --data DIR                  from nothing
    python benchmarks/tagging.py --data DIR --init MODEL     from a model of benchmarks/masked.py

DIR holds gum/train.ptb.gz and gum/dev.ptb.gz, a bracketed tree a line (or set HEEDFUL_DATA). The
last 500 sentences of the training file are validated on and not trained on; the dev file is the
test set and is tagged once, at the end. The settings stand in benchmarks/tagging/gum.toml.
Everything goes through the `heedful` command, and one JSON line comes out at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from encoders import Corpora, parse_arguments, read_lines, run, write

from heedful.evaluate.brackets import read_tree

VALID = 500
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
"""Words that stand for brackets in trees."""


def main() -> None:
    """Make columns of the trees, train, tag the test set, write the results."""
    arguments = parse_arguments("tagging-gum", __doc__)
    train = read_lines(arguments.data / "gum" / "train.ptb.gz")
    test = read_lines(arguments.data / "gum" / "dev.ptb.gz")
    corpora = Corpora(
        write(arguments.run, "train.conll", _columns(train[:-VALID])),
        write(arguments.run, "valid.conll", _columns(train[-VALID:])),
        write(arguments.run, "test.conll", _columns(test)),
    )
    run(arguments, "tagging.py", Path("tagging") / "gum.toml", corpora, ("accuracy",))


def _columns(trees: Sequence[str]) -> list[str]:
    """A word and its tag a line, and an empty line after each sentence."""
    leaves = [read_tree(tree).leaves() for tree in trees]
    return [
        "".join(f"{BRACKETS.get(leaf.word or '', leaf.word)}\t{leaf.label}\n" for leaf in each)
        for each in leaves
    ]


if __name__ == "__main__":
    main()
