"""Ablation of parts of models, its effects, and pruning of attention heads.

For example:

    from heedful import inspect
    from heedful.apps import pruning

    model = inspect.load("RUN")
    examples = pruning.examples_of_text(model, sources, targets)
    with pruning.ablated(model.model, "decoder.1.cross.head.3"):
        pruning.answer(model, examples).loss
"""

from __future__ import annotations

from heedful.apps.pruning.ablation import (
    AblationMode,
    ablated,
    heads,
    mean_outputs,
    parts,
    usual_parts,
)
from heedful.apps.pruning.effects import Bleu, Effect, effects
from heedful.apps.pruning.examples import (
    AnsweredInput,
    Answers,
    answer,
    examples_of_images,
    examples_of_tags,
    examples_of_text,
)
from heedful.apps.pruning.head_pruning import (
    Bound,
    Point,
    Pruning,
    by_importance,
    importance,
    prune,
    pruned,
)

__all__ = [
    "AblationMode",
    "AnsweredInput",
    "Answers",
    "Bleu",
    "Bound",
    "Effect",
    "Point",
    "Pruning",
    "ablated",
    "answer",
    "by_importance",
    "effects",
    "examples_of_images",
    "examples_of_tags",
    "examples_of_text",
    "heads",
    "importance",
    "mean_outputs",
    "parts",
    "prune",
    "pruned",
    "usual_parts",
]  # fmt: skip
