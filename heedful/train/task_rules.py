"""The tasks that a run can have: the defaults, settings and metrics of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from heedful.config import open_names
from heedful.data.corpus_spec import AugmentSpec, RecordSpec
from heedful.errors import ConfigError
from heedful.train.objective_settings import GrpoSettings

Metric = Literal[
    "bleu",
    "chrf",
    "ter",
    "accuracy",
    "macro_f1",
    "span_f1",
    "exact_match",
    "f1",
    "recall",
    "codes_used",
    "code_perplexity",
    "margin",
    "kl",
    "reward",
]
Choice = Literal[
    "loss",
    "bleu",
    "chrf",
    "accuracy",
    "macro_f1",
    "span_f1",
    "exact_match",
    "f1",
    "recall",
    "reward",
]

METRICS = get_args(Metric)
AnyMetric = Annotated[Metric | str, open_names("metric", Metric)]
AnyChoice = Annotated[Choice | str, open_names("metric", Choice)]
"""A metric of the package, or the name of a registered one."""

# RoBERTa's recipe, except that norms stand before sub-layers: pre-norm tolerates more learning
# rates.
_ENCODER_DEFAULTS: dict[str, Any] = {
    "model": {"norm_placement": "pre", "activation": "gelu"},
    "objective": {"label_smoothing": 0.0},
    "optimizer": {"kind": "adamw", "weight_decay": 0.01, "clip_norm": 1.0},
}

_DENOISING_DEFAULTS = {**_ENCODER_DEFAULTS, "validation": {"metrics": [], "choose_by": "loss"}}

# The usual recipe of GPT models: no label smoothing, since it worsens the perplexity.
_CAUSAL_DEFAULTS: dict[str, Any] = {
    "model": {"norm_placement": "pre", "activation": "gelu"},
    "objective": {"label_smoothing": 0.0},
    "optimizer": {"kind": "adamw", "beta2": 0.99, "weight_decay": 0.1, "clip_norm": 1.0},
    "validation": {"metrics": [], "choose_by": "loss"},
}

TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "causal_lm": _CAUSAL_DEFAULTS,
    "tokens": _CAUSAL_DEFAULTS,
    "dpo": {
        **_CAUSAL_DEFAULTS,
        "validation": {"metrics": ["accuracy", "margin", "kl"], "choose_by": "loss"},
    },
    "reward": {
        **_CAUSAL_DEFAULTS,
        "validation": {"metrics": ["accuracy", "margin"], "choose_by": "loss"},
    },
    "grpo": {
        **_CAUSAL_DEFAULTS,
        # The weight of the divergence of Shao 2024, section 4.2.
        "objective": {**_CAUSAL_DEFAULTS["objective"], "beta": 0.04},
        "validation": {"metrics": ["reward", "kl"], "choose_by": "reward"},
    },
    "masked_lm": {**_ENCODER_DEFAULTS, "validation": {"metrics": [], "choose_by": "loss"}},
    "span_corruption": _DENOISING_DEFAULTS,
    # BART masks 30 % of the tokens (Lewis 2020).
    "denoising": {
        **_DENOISING_DEFAULTS,
        "objective": {**_ENCODER_DEFAULTS["objective"], "mask_share": 0.3},
    },
    "classify": {
        **_ENCODER_DEFAULTS,
        "validation": {"metrics": ["accuracy", "macro_f1"], "choose_by": "accuracy"},
    },
    "images": {
        **_ENCODER_DEFAULTS,
        # As in ViT (Dosovitskiy 2021): the number of patches is fixed.
        "model": {**_ENCODER_DEFAULTS["model"], "positions": "learned"},
        "validation": {"metrics": ["accuracy", "macro_f1"], "choose_by": "accuracy"},
    },
    "contrast": {
        **_ENCODER_DEFAULTS,
        "model": {**_ENCODER_DEFAULTS["model"], "positions": "learned"},
        "validation": {"metrics": ["recall"], "choose_by": "recall"},
    },
    # A moving average of the weights draws far better than the weights themselves (Ho 2020).
    "diffusion": {
        **_DENOISING_DEFAULTS,
        "data": {"max_length": 32},
        "checkpoint": {"ema_decay": 0.999, "average": "none"},
    },
    "autoencode": {
        **_ENCODER_DEFAULTS,
        "model": {**_ENCODER_DEFAULTS["model"], "positions": "learned"},
        "validation": {"metrics": ["codes_used", "code_perplexity"], "choose_by": "loss"},
    },
    # `tag_metrics` adds span_f1 where the tags mark spans.
    "tag": {
        **_ENCODER_DEFAULTS,
        "validation": {"metrics": ["accuracy"], "choose_by": "accuracy"},
    },
    "answer": {
        **_ENCODER_DEFAULTS,
        "validation": {"metrics": ["exact_match", "f1"], "choose_by": "f1"},
    },
}
"""Defaults of tasks other than translation, which replace those of `RunSettings`."""

Task = Literal[
    "translation",
    "causal_lm",
    "masked_lm",
    "span_corruption",
    "denoising",
    "classify",
    "images",
    "contrast",
    "autoencode",
    "tag",
    "answer",
    "tokens",
    "diffusion",
    "dpo",
    "reward",
    "grpo",
]

TASKS = get_args(Task)
AnyTask = Annotated[Task | str, open_names("task", Task)]
"""A task of the package, or the name of a registered one."""

TOKEN_TASKS: tuple[Task, ...] = (
    *("translation", "causal_lm", "masked_lm", "span_corruption", "denoising", "tokens"),
)
"""Tasks whose loss is a mean over tokens, so that it has a perplexity."""

IMAGE_TASKS: tuple[Task, ...] = ("images", "contrast", "autoencode", "diffusion")
"""Tasks that read images."""

SETTING_OWNERS: dict[str, tuple[Task, ...]] = {
    "protect": ("translation",),
    "soft_terms": ("translation",),
    "objective.scheduled_sampling": ("translation",),
    "objective.r_drop": ("translation",),
    "objective.bpe_dropout": ("translation",),
    "objective.mask_share": ("masked_lm", "span_corruption", "denoising"),
    "objective.whole_words": ("masked_lm",),
    "objective.mean_span": ("span_corruption", "denoising"),
    "objective.sentinels": ("span_corruption",),
    "objective.permute_sentences": ("denoising",),
    "data.packed_length": ("translation",),
    "model.evoformer": ("tag",),
    "data.stride": ("tag", "answer"),
    "data.word_column": ("tag",),
    "data.tag_column": ("tag",),
    **dict.fromkeys(("images.size", "images.channels", "images.patch_size"), IMAGE_TASKS),
    # The encoder of images is a vision Transformer where there is one of texts beside it.
    "images.pooling": ("images", "contrast"),
    **dict.fromkeys(
        [f"images.{name}" for name in ("network", "blocks", "stage_width", "stem_stride")],
        ("images",),
    ),
    **dict.fromkeys([f"augment.{name}" for name in AugmentSpec.model_fields], IMAGE_TASKS[:3]),
    "images.codes": ("autoencode",),
    "images.code_width": ("autoencode",),
    "objective.commitment": ("autoencode",),
    "objective.beta": ("dpo", "grpo"),
    "objective.reference": ("dpo", "grpo"),
    "data.chat_template": ("causal_lm", "dpo", "reward", "grpo"),
    **dict.fromkeys([f"grpo.{name}" for name in GrpoSettings.model_fields], ("grpo",)),
    **dict.fromkeys([f"tokens.{name}" for name in RecordSpec.model_fields], ("tokens",)),
}
"""The tasks in which a setting may differ from its default."""

TEXT_SECTIONS = ("tokenizer", "lora")
"""Sections that tasks without text refuse."""

TASK_METRICS: dict[str, tuple[Metric, ...]] = {
    "translation": ("bleu", "chrf", "ter"),
    "causal_lm": (),
    "masked_lm": (),
    "span_corruption": (),
    "denoising": (),
    "classify": ("accuracy", "macro_f1"),
    "tag": ("accuracy", "span_f1"),
    "answer": ("exact_match", "f1"),
    "images": ("accuracy", "macro_f1"),
    "contrast": ("recall",),
    "autoencode": ("codes_used", "code_perplexity"),
    "tokens": (),
    "diffusion": (),
    "dpo": ("accuracy", "margin", "kl"),
    "reward": ("accuracy", "margin"),
    "grpo": ("reward", "kl"),
}
"""The metrics of each task, apart from its loss."""


def registered_task(name: str) -> Any:
    """Return a `RegisteredTask`; None for tasks of the package and names that no task has."""
    from heedful.registry import find  # few runs have a task from outside the package

    try:
        return None if name in TASKS else find("task", name, TASKS)
    except ValueError:
        return None


def base_task(name: str) -> str:
    """Return the task of the package whose rules a task has: itself, or that of a registered one.

    A name that no task has is returned as it is; `RunSettings` refuses it.
    """
    registered = registered_task(name)
    return name if registered is None else str(registered.like)


def takes_pairs(task: str) -> bool:
    """Return True if the files of a task's corpora are pairs; of images and labels if IDX."""
    return base_task(task) in ("translation", *IMAGE_TASKS)


def check_metrics(task: str, metrics: Iterable[str]) -> None:
    """Refuse metrics that cannot be measured in a task.

    Args:
        task: task of the run, or the one whose rules it has.
        metrics: metrics of its validation, which exist.

    Raises:
        ConfigError: for a metric of other tasks.
    """
    known = TASK_METRICS[task]
    unknown = [name for name in metrics if name not in known and not _measures(name, task)]
    if unknown and not known:
        raise ConfigError(
            "A language model is judged by its loss; there are no translations or labels to score",
            where="validation.metrics",
            remedy='Set validation.metrics = [] and validation.choose_by = "loss"',
        )
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} cannot be measured in the task {task}",
            where="validation.metrics",
            remedy=f"Choose among {', '.join(known)}",
        )


def _measures(metric: str, task: str) -> bool:
    """Return True for a registered metric that scores the outputs of a task."""
    from heedful.registry import find

    return metric not in METRICS and task in find("metric", metric, METRICS).tasks
