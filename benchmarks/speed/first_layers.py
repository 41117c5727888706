"""Save the first layers of a language model as a smaller one, which drafts for it once trained.

    python benchmarks/speed/first_layers.py MODEL OUT [--layers 1]
    heedful train RUN --task causal_lm --init OUT --train TEXT --valid TEXT --max-steps 300

Embeddings, tokenizer and norm are those of MODEL: a model that drafts has to have its vocabulary.
Without training the first layers say little, as the others were meant to follow.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import heedful
from heedful.models.build import build_model
from heedful.models.checkpoint import save_model
from heedful.text.tokenizer_pair import TokenizerPair


def main() -> None:
    """Load a model, and save its first layers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=1, help="layers that are kept")
    arguments = parser.parse_args()
    whole: Any = heedful.load(arguments.model)
    spec = whole.model.spec
    decoder = spec.decoder.model_copy(update={"num_layers": arguments.layers})
    small = build_model(spec.model_copy(update={"decoder": decoder}))
    weights = whole.model.state_dict()
    small.load_state_dict({name: weights[name] for name in small.state_dict()})
    tokenizers = TokenizerPair(whole.tokenizer, whole.tokenizer, chat=whole.chat)
    save_model(small, tokenizers, arguments.out)


if __name__ == "__main__":
    main()
