"""The settings of a training run: `config.toml` in its directory, the flags of `heedful train`.

Defaults are the paper's recipe for translation (Vaswani 2017, section 5).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, Probability
from heedful.data.corpus_spec import AugmentSpec, DataSpec, ImageSpec
from heedful.errors import ConfigError
from heedful.models.preset_files import has_spec, preset_tasks
from heedful.models.shape import TranslatorShape
from heedful.nn.work import Checkpointing
from heedful.text.protected_spans import SPAN_KINDS, SpanKind, span_kinds
from heedful.text.tokenizer_spec import TokenizerSpec

NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class ObjectiveSettings(Config):
    """The loss and its regularisers."""

    label_smoothing: Probability = 0.1
    scheduled_sampling: Share = Field(
        0.0, description="final share of target inputs replaced by the model's own predictions"
    )
    scheduled_sampling_steps: PositiveInt = Field(
        10_000, description="steps over which that share grows linearly from 0"
    )
    r_drop: NonNegative = Field(
        0.0, description="weight of the symmetric KL between two dropout passes (Liang 2021)"
    )
    bpe_dropout: Probability = Field(
        0.0, description="probability of leaving out a BPE merge in training (Provilkov 2020)"
    )
    mask_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.15,
        description="masked language models, span corruption, denoising: share of the tokens that "
        "are hidden",
    )
    whole_words: bool = Field(
        False, description="masked language models: hide all pieces of a word or none"
    )
    mean_span: Annotated[float, Field(ge=1, le=100)] = Field(
        3.0, description="span corruption, denoising: mean length in tokens of a hidden span"
    )
    sentinels: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="span corruption: sentinels of a new tokenizer; as many as its longest text "
        "needs if unset",
    )
    permute_sentences: bool = Field(
        False, description="denoising: also put the sentences of a text in a random order"
    )


class OptimizerSettings(Config):
    """Adam or AdamW."""

    kind: Literal["adam", "adamw"] = "adam"
    beta1: Probability = 0.9
    beta2: Probability = 0.98
    epsilon: Annotated[float, Field(gt=0)] = 1e-9
    weight_decay: NonNegative = 0.0
    clip_norm: NonNegative = Field(0.0, description="largest gradient norm; 0 clips nothing")
    accumulate: PositiveInt = Field(1, description="batches per update; the result is exact")


class ScheduleSettings(Config):
    """Learning rate over steps."""

    kind: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    warmup_steps: Count = 4000
    peak_learning_rate: Annotated[float, Field(gt=0)] | None = Field(
        None, description="the paper's width^-0.5 * warmup^-0.5 if unset"
    )
    final_learning_rate: NonNegative = Field(
        0.0, description="where cosine and linear schedules end, at max_steps"
    )


CompileChoice = Literal["auto", "on", "off"]

Metric = Literal["bleu", "chrf", "ter", "accuracy", "macro_f1", "span_f1", "exact_match", "f1"]
Choice = Literal["loss", "bleu", "chrf", "accuracy", "macro_f1", "span_f1", "exact_match", "f1"]


class ValidationSettings(Config):
    """Validation while training, through the same decoder as `translate`."""

    every_steps: PositiveInt = 1000
    metrics: tuple[Metric, ...] = ("bleu", "chrf")
    choose_by: Choice = Field(
        "bleu", description="score that selects the best model and stops training early"
    )
    beam: PositiveInt = 4
    length_penalty: NonNegative = 0.6
    tokenize: str = Field("13a", description="sacreBLEU tokenizer; none for tokenised text")
    lowercase: bool = False
    max_sentences: PositiveInt | None = Field(
        None, description="validate on only the first examples while training; on all at the end"
    )
    patience: PositiveInt | None = Field(
        None, description="validations without improvement after which training stops"
    )


class LoraSettings(Config):
    """Training small changes of some matrices of a model to begin with (LoRA, Hu 2021)."""

    rank: Count = Field(0, description="rank of the changes; 0 trains all weights")
    alpha: Annotated[float, Field(gt=0)] = Field(
        16.0, description="the changes are scaled by alpha / rank"
    )
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("query", "value"),
        description="which matrices change: ends of their addresses (query, feedforward.up), or "
        "patterns with * (decoder.*.value)",
    )


class CheckpointSettings(Config):
    """Checkpoints of the whole state, and their average at the end."""

    every_steps: PositiveInt = 1000
    every_minutes: Annotated[float, Field(gt=0)] | None = None
    keep: Annotated[int, Field(ge=2)] = Field(2, description="checkpoints one can resume from")
    background: bool = Field(
        False, description="write checkpoints while training goes on, which takes a copy of all"
    )
    sharded: bool = Field(
        False,
        description="every process writes its own part, into a folder that all machines share; "
        "needs parallel.shard or parallel.tensor",
    )
    average: Literal["last", "best", "none"] = "last"
    average_count: PositiveInt = 5
    ema_decay: Probability = Field(0.0, description="exponential moving average; 0 keeps none")


class ParallelSettings(Config):
    """Numbers of processes that share the work in each way; their product is that of all."""

    data: PositiveInt | None = Field(
        None,
        description="copies of the model that learn from different examples; what the other "
        "numbers leave if unset",
    )
    shard: PositiveInt = Field(
        1, description="processes over which the parameters of a copy are spread (FSDP, ZeRO)"
    )
    tensor: PositiveInt = Field(
        1, description="processes that share each block's matrices: its heads and inner units"
    )
    context: PositiveInt = Field(1, description="processes that have a part of each text")
    parts: PositiveInt | None = Field(
        None,
        description="parts of each batch that draw dropout apart, and whose gradients one process "
        "sums in the order of 2 or 4; as many as processes need if unset, so that none is idle",
    )
    timeout: Annotated[float, Field(gt=0)] = Field(
        300.0, description="seconds without an answer after which a process counts as lost"
    )


# As RoBERTa is trained, but for the norm: before a sub-layer it needs less care with the rate.
_ENCODER_DEFAULTS: dict[str, Any] = {
    "model": {"norm_placement": "pre", "activation": "gelu"},
    "objective": {"label_smoothing": 0.0},
    "optimizer": {"kind": "adamw", "weight_decay": 0.01, "clip_norm": 1.0},
}

_DENOISING_DEFAULTS = {**_ENCODER_DEFAULTS, "validation": {"metrics": [], "choose_by": "loss"}}

TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    # As GPT-2's successors are trained: no smoothing, as the loss itself is what is wanted.
    "causal_lm": {
        "model": {"norm_placement": "pre", "activation": "gelu"},
        "objective": {"label_smoothing": 0.0},
        "optimizer": {"kind": "adamw", "beta2": 0.99, "weight_decay": 0.1, "clip_norm": 1.0},
        "validation": {"metrics": [], "choose_by": "loss"},
    },
    "masked_lm": {**_ENCODER_DEFAULTS, "validation": {"metrics": [], "choose_by": "loss"}},
    "span_corruption": _DENOISING_DEFAULTS,
    # The share of BART.
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
        "model": {**_ENCODER_DEFAULTS["model"], "positions": "learned"},
        "validation": {"metrics": ["accuracy", "macro_f1"], "choose_by": "accuracy"},
    },
    "tag": {
        **_ENCODER_DEFAULTS,
        "validation": {"metrics": ["accuracy"], "choose_by": "accuracy"},
    },
    "answer": {
        **_ENCODER_DEFAULTS,
        "validation": {"metrics": ["exact_match", "f1"], "choose_by": "f1"},
    },
}
"""Defaults of tasks other than translation, in the place of those below."""

Task = Literal[
    "translation",
    "causal_lm",
    "masked_lm",
    "span_corruption",
    "denoising",
    "classify",
    "images",
    "tag",
    "answer",
]


class RunSettings(Config):
    """Everything a run depends on."""

    task: Task = Field(
        "translation",
        description="sentence pairs train a translator; text a language model (causal_lm), an "
        "encoder (masked_lm) or an encoder-decoder (span_corruption, denoising); labelled texts or "
        "images a classifier; words with tags a tagger (tag), questions a question answerer "
        "(answer)",
    )
    init: str | None = Field(
        None,
        description="model to start from, its weights, architecture and tokenizer: a directory of "
        "a model, a run or Hugging Face, or a name: of a model at hand, or OWNER/NAME of the hub",
    )
    preset: str | None = None
    model: TranslatorShape = Field(default_factory=TranslatorShape)
    tokenizer: TokenizerSpec = Field(default_factory=TokenizerSpec)
    protect: tuple[str, ...] = Field(
        (),
        description="parts of texts that a translator learns to keep as they are: all, or some of "
        f"{', '.join(SPAN_KINDS)}",
    )
    soft_terms: str | None = Field(
        None,
        description="glossary whose translations a translator learns to use where they are written "
        "into a source, for terms it has never seen, too",
    )
    soft_terms_share: Share = Field(
        0.3,
        description="share of the pairs with such terms whose sources have them written in; "
        "others are chosen every epoch",
    )
    data: DataSpec
    images: ImageSpec = Field(default_factory=ImageSpec)
    augment: AugmentSpec = Field(default_factory=AugmentSpec)
    objective: ObjectiveSettings = Field(default_factory=ObjectiveSettings)
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    lora: LoraSettings = Field(default_factory=LoraSettings)
    schedule: ScheduleSettings = Field(default_factory=ScheduleSettings)
    validation: ValidationSettings = Field(default_factory=ValidationSettings)
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)
    parallel: ParallelSettings = Field(default_factory=ParallelSettings)
    max_steps: PositiveInt = 100_000
    max_minutes: Annotated[float, Field(gt=0)] | None = None
    max_epochs: PositiveInt | None = None
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: CompileChoice = Field(
        "auto", description="compile the model's pass with torch.compile; auto: where it pays"
    )
    checkpointing: Checkpointing = Field(
        "none",
        description="tensors that blocks compute again for their gradients, which takes time and "
        "saves memory: none, all but products of matrices (selective), all (full)",
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    on_nonfinite: Literal["skip", "rollback", "stop"] = Field(
        "skip", description="action on a non-finite loss, after its layer and lines are reported"
    )
    tensorboard: bool = Field(False, description="also write TensorBoard events (an extra)")

    @property
    def protected_kinds(self) -> tuple[SpanKind, ...]:
        """The kinds of parts that are protected, in their own order.

        Raises:
            ConfigError: when there is no such kind.
        """
        return span_kinds(self.protect)

    @property
    def has_text(self) -> bool:
        """True if the examples are text, for which there are tokenizers."""
        return self.task != "images"

    @property
    def published_preset(self) -> bool:
        """True if the preset is a published model, whose shape the run's model has."""
        return self.preset is not None and has_spec(self.preset)

    def with_batch_tokens(self, picked: int) -> Self:
        """The settings with another number of positions in a batch."""
        data = self.data.model_copy(update={"batch_tokens": picked})
        return self.model_copy(update={"data": data})

    def with_parts(self, parts: int) -> Self:
        """The settings with the number of parts that batches are cut into."""
        parallel = self.parallel.model_copy(update={"parts": parts})
        return self.model_copy(update={"parallel": parallel})

    def plain(self) -> dict[str, Any]:
        """The settings as nested plain data, without options that an initial model decides."""
        values = super().plain()
        if self.published_preset or self.init is not None:
            options = self.model.model_dump(mode="json", exclude_unset=True, exclude_none=True)
            values["model"] = options
        return values

    @model_validator(mode="after")
    def _choice_is_measured(self) -> Self:
        chosen = self.validation.choose_by
        if chosen != "loss" and chosen not in self.validation.metrics:
            raise ValueError(f"validation.choose_by = {chosen!r} is not among validation.metrics")
        return self

    @model_validator(mode="after")
    def _there_is_something_to_choose_by(self) -> Self:
        best = self.checkpoint.average == "best"
        if not self.data.valid and (best or self.validation.patience is not None):
            name = "checkpoint.average = 'best'" if best else "validation.patience"
            raise ValueError(f"{name} needs validation data (data.valid)")
        together = math.lcm(self.validation.every_steps, self.checkpoint.every_steps)
        if best and together > self.max_steps:
            raise ValueError(
                "checkpoint.average = 'best' needs checkpoints at the steps of validations, but "
                f"checkpoint.every_steps and validation.every_steps first meet at step {together}"
            )
        return self

    def check_for_task(self) -> None:
        """Refuse settings that belong to other tasks, and batches without room for a text.

        Raises:
            ConfigError: naming the setting.
        """
        self.check_preset()
        is_new = self.init is None and not self.published_preset
        if is_new and self.model.rotary_scaling != "none" and self.model.positions != "rotary":
            raise ConfigError(
                f"Positions that are {self.model.positions} cannot be stretched by rotary_scaling",
                where="model.rotary_scaling",
                remedy="Set model.positions = rotary, or leave it out",
            )
        for name, is_set in (("protect", self.protected_kinds), ("soft_terms", self.soft_terms)):
            if is_set and self.task != "translation":
                raise ConfigError(
                    f"{name} is for translation; this task is {self.task}",
                    where=name,
                    remedy="Leave it out",
                )
        if not self.has_text:
            self._refuse_text_settings()
        for section, owners in _OWNERS.items():
            values = getattr(self, section)
            for name, tasks in owners.items():
                default = type(values).model_fields[name].default
                if self.task not in tasks and getattr(values, name) != default:
                    raise ConfigError(
                        f"{section}.{name} is for {' and '.join(tasks)}; this task is {self.task}",
                        where=f"{section}.{name}",
                        remedy="Leave it out",
                    )
        self._check_metrics()
        if self.task not in ("translation", "images") and self.data.budget < self.data.max_length:
            raise ConfigError(
                f"A batch of {self.data.budget} tokens has no room for a text of "
                f"{self.data.max_length} (data.max_length)",
                where="data.batch_tokens",
                remedy="Raise it, or lower data.max_length",
            )

    def check_preset(self) -> None:
        """Refuse a preset of another kind of model than the task trains.

        Raises:
            ConfigError: naming the tasks that the preset fits.
        """
        if self.preset is not None and self.task not in preset_tasks(self.preset):
            tasks = preset_tasks(self.preset)
            raise ConfigError(
                f"The preset {self.preset} is for {', '.join(tasks)}; this task is {self.task}",
                where="preset",
                remedy=f"Set task = {tasks[0]!r} (--task {tasks[0]}), or choose another preset",
            )

    def _check_metrics(self) -> None:
        known = _METRICS[self.task]
        unknown = [name for name in self.validation.metrics if name not in known]
        if unknown and not known:
            raise ConfigError(
                "A language model is judged by its loss; there are no translations or labels to "
                "score",
                where="validation.metrics",
                remedy='Set validation.metrics = [] and validation.choose_by = "loss"',
            )
        if unknown:
            raise ConfigError(
                f"{', '.join(unknown)} cannot be measured in the task {self.task}",
                where="validation.metrics",
                remedy=f"Choose among {', '.join(known)}",
            )

    def _refuse_text_settings(self) -> None:
        for section in _TEXT_SECTIONS:
            values = getattr(self, section)
            for name, default in type(values)():
                if getattr(values, name) != default:
                    raise ConfigError(
                        f"The settings of [{section}] are for text; this task is {self.task}",
                        where=f"{section}.{name}",
                        remedy="Leave it out",
                    )


_OWNERS: dict[str, dict[str, tuple[Task, ...]]] = {
    "objective": {
        "scheduled_sampling": ("translation",),
        "r_drop": ("translation",),
        "bpe_dropout": ("translation",),
        "mask_share": ("masked_lm", "span_corruption", "denoising"),
        "whole_words": ("masked_lm",),
        "mean_span": ("span_corruption", "denoising"),
        "sentinels": ("span_corruption",),
        "permute_sentences": ("denoising",),
    },
    "data": {
        "packed_length": ("translation",),
        "stride": ("tag", "answer"),
        "word_column": ("tag",),
        "tag_column": ("tag",),
    },
    "images": dict.fromkeys(ImageSpec.model_fields, ("images",)),
    "augment": dict.fromkeys(AugmentSpec.model_fields, ("images",)),
}
"""The tasks that a setting belongs to; the others leave it at its default."""

_TEXT_SECTIONS = ("tokenizer", "lora")
"""Sections that a task without text does not have."""

_METRICS: dict[str, tuple[Metric, ...]] = {
    "translation": ("bleu", "chrf", "ter"),
    "causal_lm": (),
    "masked_lm": (),
    "span_corruption": (),
    "denoising": (),
    "classify": ("accuracy", "macro_f1"),
    "tag": ("accuracy", "span_f1"),
    "answer": ("exact_match", "f1"),
    "images": ("accuracy", "macro_f1"),
}
"""The metrics of each task beside its loss."""
