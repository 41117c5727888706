"""Write the model directories of version 0.1 that `test_stored_models.py` loads.

They are stored in `tests/compat/stored`: NAME/, and NAME.json with its outputs. This ran once, with
the code of version 0.1 (commit ecc59e1), whose module names it uses:

    PYTHONPATH=CHECKOUT_OF_0.1:. python tests/compat/make_stored_models.py
"""

# mypy: ignore-errors

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # not as `tests.compat`: 0.1 has tests of its own

STORED = Path(__file__).parent / "stored"
LINES = ["ab ba cab dab", "bad cad dad abc", "a b c d", "cab bad ab"]


def main() -> None:
    """Write every directory with its outputs."""
    outputs = import_module("stored_outputs").outputs
    build_model = import_module("heedful.models.build").build_model
    save_model = import_module("heedful.models.checkpoint").save_model
    TokenizerSpec = import_module("heedful.text.spec").TokenizerSpec
    train_pair = import_module("heedful.text.pair").train_pair
    without_heads = import_module("heedful.models.cut").without_heads
    torch.set_num_threads(1)
    tokenizers = train_pair(TokenizerSpec(vocabulary_size=24), LINES, LINES)
    shutil.rmtree(STORED, ignore_errors=True)
    STORED.mkdir()
    for seed, (name, spec) in enumerate(specs(tokenizers.source.size).items()):
        torch.manual_seed(seed)
        model = build_model(spec).eval()
        with torch.no_grad():  # so that the model is sure of its outputs
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        if name == "translator-pruned":
            removed = {
                ("encoder", 0, "self_attention"): {1},
                ("decoder", 0, "cross_attention"): {0, 2},
                ("decoder", 1, "self_attention"): {0, 1, 2},
            }
            model = without_heads(model, removed)
        directory = STORED / name
        save_model(model, None if name == "vision" else tokenizers, directory)
        text = json.dumps(outputs(directory))
        (STORED / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(name, len(text))


def specs(pieces):
    """Return the spec of each stored model."""
    TranslatorShape = import_module("heedful.models.shape").TranslatorShape
    family = import_module("heedful.models.model_spec")
    shapes = import_module("heedful.models.shapes")
    PixelSpec = import_module("heedful.nn.spec").PixelSpec
    shape = TranslatorShape(
        width=12,
        encoder_layers=2,
        decoder_layers=2,
        num_heads=3,
        feedforward=16,
        dropout=0.1,
        max_length=24,
    )

    def changed(**changes):
        return shape.model_copy(update=changes)

    small = {"encoder_layers": 1, "decoder_layers": 1}
    modern = changed(
        positions="rotary",
        norm="rms",
        norm_placement="pre",
        activation="swiglu",
        bias=False,
        num_heads=2,
        num_kv_heads=1,
    )
    learned = changed(positions="learned", activation="gelu")
    heads = (
        family.MaskedLMHeadSpec(),
        family.SequenceHeadSpec(labels=("no", "yes")),
        family.TokenHeadSpec(labels=("X", "Y", "Z")),
        family.SpanHeadSpec(),
    )
    encoder = shapes.encoder_spec(learned, pieces, 24, ())
    vision = shapes.vision_spec(
        changed(positions="learned", norm_placement="pre"),
        image_size=8,
        channels=3,
        patch_size=4,
        pooling="first",
        labels=("cat", "dog"),
        pixels=PixelSpec(mean=(0.5,) * 3, std=(0.5,) * 3),
    )
    return {
        "translator": shape.expand(pieces, pieces),
        "translator-pre-norm": changed(
            norm_placement="pre", positions="learned", share_embeddings="none", window=3
        ).expand(pieces, pieces),
        "translator-t5-bias": changed(positions="t5", norm="rms", bias=False).expand(
            pieces, pieces
        ),
        "translator-relative-keys": changed(positions="relative_keys", **small).expand(
            pieces, pieces
        ),
        "translator-experts": changed(num_experts=3, **small).expand(pieces, pieces),
        "translator-pruned": shape.expand(pieces, pieces),
        "causal-lm": shapes.causal_lm_spec(modern, pieces, 24),
        "encoder": encoder.model_copy(update={"heads": heads, "pooler": True}),
        "vision": vision,
    }


if __name__ == "__main__":
    main()
