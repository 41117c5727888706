"""The settings of a training run: `config.toml` in its directory, the flags of `heedful train`.

Defaults are the paper's recipe for translation (Vaswani 2017, section 5).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt, Probability, open_names
from heedful.data.corpus_spec import AugmentSpec, DataSpec, ImageSpec, RecordSpec
from heedful.errors import ConfigError
from heedful.models.preset_files import TASKS_OF_KIND, has_spec, preset_tasks
from heedful.models.shape import TranslatorShape
from heedful.nn.work import Checkpointing
from heedful.text.protected_spans import SPAN_KINDS, SpanKind, span_kinds
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.train.objective_settings import GrpoSettings, NonNegative, ObjectiveSettings
from heedful.train.task_rules import (
    SETTING_OWNERS,
    TEXT_SECTIONS,
    AnyTask,
    base_task,
    check_metrics,
    registered_task,
)
from heedful.train.validation_settings import ValidationSettings

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class OptimizerSettings(Config):
    """Adam or AdamW."""

    kind: Literal["adam", "adamw"] = Field(
        "adam",
        description="optimizer: Adam (Kingma and Ba 2015), or AdamW with decoupled weight decay "
        "(Loshchilov and Hutter 2019)",
    )
    # Betas and epsilon are the paper's (section 5.3); PyTorch's are 0.9, 0.999 and 1e-8.
    beta1: Probability = Field(0.9, description="decay rate of the running mean of gradients")
    beta2: Probability = Field(
        0.98,
        description="decay rate of the running mean of squared gradients; lower values such as "
        "0.95 forget faster",
    )
    epsilon: Annotated[float, Field(gt=0)] = Field(
        1e-9, description="constant added to the denominator of an update, against division by 0"
    )
    weight_decay: NonNegative = Field(
        0.0,
        description="strength of weight decay; adamw spares norms, biases and embeddings; 0.01 to "
        "0.1 is usual",
    )
    clip_norm: NonNegative = Field(
        0.0,
        description="maximum norm of the gradient, which is scaled down above it; 1 is usual, 0 "
        "turns clipping off",
    )
    accumulate: PositiveInt = Field(
        1,
        description="number of batches whose gradients are summed for one update, for large "
        "batches in little memory",
    )


class ScheduleSettings(Config):
    """Learning rate over the updates."""

    kind: Literal["inverse_sqrt", "cosine", "linear", "constant"] = Field(
        "inverse_sqrt",
        description="course of the learning rate after warm-up: inverse_sqrt (Vaswani 2017), "
        "cosine or linear down to final_learning_rate, or constant",
    )
    warmup_steps: Count = Field(
        4000,
        description="number of updates over which the learning rate rises linearly from 0; fewer "
        "for short runs",
    )
    peak_learning_rate: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="learning rate at the end of warm-up; width^-0.5 * warmup_steps^-0.5 if unset "
        "(Vaswani 2017)",
    )
    final_learning_rate: NonNegative = Field(
        0.0, description="learning rate at max_steps of cosine and linear schedules"
    )

    @property
    def ends(self) -> bool:
        """True if the learning rate falls towards the last update, so depends on `max_steps`."""
        return self.kind in ("cosine", "linear")


CompileChoice = Literal["auto", "on", "off"]
AnyTracker = Annotated[str, open_names("tracker", Literal["tensorboard", "wandb", "mlflow"])]


class LoraSettings(Config):
    """Low-rank adaptation (LoRA, Hu 2021) of the model that `init` names."""

    rank: Count = Field(
        0,
        description="rank of the low-rank update of each matrix; 8 or 16 is usual, 0 trains all "
        "weights instead",
    )
    alpha: Annotated[float, Field(gt=0)] = Field(
        16.0,
        description="scale of the low-rank update, which is multiplied by alpha / rank; twice the "
        "rank is usual",
    )
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("query", "value"),
        description="matrices to adapt, by the end of their names (query, feedforward.up) or by "
        "patterns (decoder.*.value)",
    )


class CheckpointSettings(Config):
    """Checkpoints of the training state, and the average of their weights at the end."""

    every_steps: PositiveInt = Field(
        1000, description="number of updates from one checkpoint to the next"
    )
    every_minutes: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="minutes since the last checkpoint after which another one is written, in "
        "addition to every_steps; no time limit if unset",
    )
    # At least 2 are kept: if the newest checkpoint is damaged, a run resumes from the one before
    # it.
    keep: Annotated[int, Field(ge=2)] = Field(
        2,
        description="number of latest checkpoints to keep for --resume; checkpoints to average "
        "are kept as well",
    )
    background: bool = Field(
        False,
        description="write checkpoints while training continues, which needs memory for a copy of "
        "the state",
    )
    sharded: bool = Field(
        False,
        description="let every process write its own part of a checkpoint; needs a shared folder "
        "and parallel.shard or parallel.tensor",
    )
    average: Literal["last", "best", "none"] = Field(
        "last",
        description="checkpoints whose weights are averaged at the end: the last ones, those with "
        "the best validation scores, or none",
    )
    # The paper averages 5 checkpoints for its base model (section 6.1).
    average_count: PositiveInt = Field(5, description="number of checkpoints to average")
    ema_decay: Probability = Field(
        0.0,
        description="decay rate of an exponential moving average of the weights, which is "
        "validated and saved; 0.999 is usual, 0 turns it off",
    )


class ParallelSettings(Config):
    """Numbers of processes for each kind of parallelism; their product is the total."""

    data: PositiveInt | None = Field(
        None,
        description="number of model replicas, each with its own share of the batches (data "
        "parallelism); all remaining processes if unset",
    )
    shard: PositiveInt = Field(
        1,
        description="number of processes that share the parameters, gradients and optimizer state "
        "of a replica (FSDP, ZeRO)",
    )
    tensor: PositiveInt = Field(
        1,
        description="number of processes that split the heads and feed-forward units of each "
        "block (tensor parallelism)",
    )
    context: PositiveInt = Field(
        1, description="number of processes that split each sequence (context parallelism)"
    )
    parts: PositiveInt | None = Field(
        None,
        description="number of parts of each batch, each with dropout masks of its own; if set, "
        "gradients are summed in a fixed order, so results do not depend on the number of "
        "processes",
    )
    timeout: Annotated[float, Field(gt=0)] = Field(
        300.0, description="seconds without an answer after which a process counts as lost"
    )


class RunSettings(Config):
    """All settings of a training run."""

    task: AnyTask = Field(
        "translation",
        description="training task: translation; language models (causal_lm, masked_lm, "
        "span_corruption, denoising); classifiers of text (classify) or images (images); images "
        "and texts in one space (contrast); autoencoders of images (autoencode); taggers (tag); "
        "question answering (answer); sequences of tokens of any kind (tokens); pictures for "
        "captions (diffusion); preferences between answers (dpo, reward); rewarded answers (grpo)",
    )
    init: str | None = Field(
        None,
        description="pretrained model to start from, with its architecture and tokenizer: a "
        "model, run or Hugging Face directory, the name of a model that comes with Heedful, or "
        "OWNER/NAME of the Hugging Face hub",
    )
    preset: str | None = Field(
        None, description="named settings or model size to start from; `heedful presets` lists them"
    )
    model: TranslatorShape = Field(default_factory=TranslatorShape)
    tokenizer: TokenizerSpec = Field(default_factory=TokenizerSpec)
    protect: tuple[str, ...] = Field(
        (),
        description="kinds of text that a translator learns to copy unchanged: all, or some of "
        f"{', '.join(SPAN_KINDS)}",
    )
    soft_terms: str | None = Field(
        None,
        description="glossary for soft term constraints (Dinu 2019): its translations are written "
        "into training sources, and the model learns to use them, also for unseen terms",
    )
    soft_terms_share: Share = Field(
        0.3,
        description="share of the pairs with glossary terms whose source is annotated; drawn anew "
        "in every epoch",
    )
    data: DataSpec
    images: ImageSpec = Field(default_factory=ImageSpec)
    augment: AugmentSpec = Field(default_factory=AugmentSpec)
    tokens: RecordSpec = Field(default_factory=RecordSpec)
    objective: ObjectiveSettings = Field(default_factory=ObjectiveSettings)
    grpo: GrpoSettings = Field(default_factory=GrpoSettings)
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    lora: LoraSettings = Field(default_factory=LoraSettings)
    schedule: ScheduleSettings = Field(default_factory=ScheduleSettings)
    validation: ValidationSettings = Field(default_factory=ValidationSettings)
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)
    parallel: ParallelSettings = Field(default_factory=ParallelSettings)
    max_steps: PositiveInt = Field(
        100_000,
        description="number of updates after which training and the learning-rate schedule end",
    )
    max_minutes: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="minutes of training, over all resumes, after which it ends; unlimited if "
        "unset",
    )
    max_epochs: PositiveInt | None = Field(
        None,
        description="passes over the training data after which training ends; unlimited if unset",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="precision of matmuls, with float32 weights; auto takes bf16 if that is "
        "faster on this device, otherwise fp32",
    )
    compile: CompileChoice = Field(
        "auto",
        description="compile the model with torch.compile; auto compiles if that pays",
    )
    checkpointing: Checkpointing = Field(
        "none",
        description="activation checkpointing (Chen 2016): recompute nothing, everything but "
        "matmuls (selective) or whole blocks (full); saves memory, costs time",
    )
    device: str = Field("auto", description="device to train on: auto, cpu, cuda, cuda:1 or mps")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        1,
        description="seed of initial weights, data order and dropout; equal seeds give equal runs",
    )
    on_nonfinite: Literal["skip", "rollback", "stop"] = Field(
        "skip",
        description="action on an infinite or NaN loss or gradient: skip the update, return to "
        "the last checkpoint (rollback), or stop",
    )
    tensorboard: bool = Field(
        False, description="write TensorBoard event files into the run; needs heedful[tensorboard]"
    )
    trackers: tuple[AnyTracker, ...] = Field(
        (),
        description="services that get the metrics: wandb, mlflow or the name of a registered one",
    )

    @property
    def protected_kinds(self) -> tuple[SpanKind, ...]:
        """The protected kinds of text, in the order of `SPAN_KINDS`.

        Raises:
            ConfigError: when a kind is unknown.
        """
        return span_kinds(self.protect)

    @property
    def has_text(self) -> bool:
        """True if the examples are text and need tokenizers."""
        return self.base_task not in ("images", "autoencode")

    @property
    def cuts_windows(self) -> bool:
        """True if the examples are windows of a stream of tokens, so batches have one shape."""
        return self.base_task == "causal_lm"

    @property
    def registered_task(self) -> Any:
        """The `RegisteredTask` of a task from outside the package; None for the package's own."""
        return registered_task(self.task)

    @property
    def base_task(self) -> str:
        """The task of the package whose rules the task has, mostly itself."""
        return base_task(self.task)

    @property
    def model_kind(self) -> str:
        """The kind of model that the task trains."""
        if self.base_task == "tokens" and self.tokens.source:
            return "translator"
        if self.base_task == "images" and self.images.network == "resnet":
            return "resnet"
        return next(kind for kind, tasks in TASKS_OF_KIND.items() if self.base_task in tasks)

    @property
    def published_preset(self) -> bool:
        """True if the preset is a published model, whose architecture the run uses."""
        return self.preset is not None and has_spec(self.preset)

    def with_batch_tokens(self, picked: int) -> Self:
        """Return the settings with another number of positions in a batch."""
        data = self.data.model_copy(update={"batch_tokens": picked})
        return self.model_copy(update={"data": data})

    def with_parts(self, parts: int) -> Self:
        """Return the settings with another number of parts of each batch."""
        parallel = self.parallel.model_copy(update={"parts": parts})
        return self.model_copy(update={"parallel": parallel})

    def plain(self) -> dict[str, Any]:
        """Return the settings as nested plain data, without unset options of an existing model."""
        values = super().plain()
        if self.published_preset or self.init is not None:
            # Only options that were set are kept: a full dump would contradict the initial model on
            # resuming.
            options = self.model.model_dump(mode="json", exclude_unset=True, exclude_none=True)
            values["model"] = options
        return values

    @model_validator(mode="after")
    def _can_choose(self) -> Self:
        chosen = self.validation.choose_by
        if chosen != "loss" and chosen not in self.validation.metrics:
            raise ValueError(f"validation.choose_by = {chosen!r} is not among validation.metrics")
        best = self.checkpoint.average == "best"
        if not self.data.valid and (best or self.validation.patience is not None):
            name = "checkpoint.average = 'best'" if best else "validation.patience"
            raise ValueError(f"{name} needs validation data (data.valid)")
        # A checkpoint has a score only where both intervals meet.
        together = math.lcm(self.validation.every_steps, self.checkpoint.every_steps)
        if best and together > self.max_steps:
            raise ValueError(
                "checkpoint.average = 'best' needs checkpoints at the steps of validations, but "
                f"checkpoint.every_steps and validation.every_steps first meet at step {together}. "
                f"Set --max-steps {together} or smaller intervals; --checkpoint.average none for a "
                "trial"
            )
        return self

    def check_for_task(self) -> None:
        """Refuse settings that belong to other tasks, and batches without room for a text.

        Raises:
            ConfigError: when a setting is refused; it is named.
        """
        self.check_preset()
        is_new = self.init is None and not self.published_preset
        if is_new and self.model.rotary_scaling != "none" and self.model.positions != "rotary":
            raise ConfigError(
                f"Positions that are {self.model.positions} cannot be stretched by rotary_scaling",
                where="model.rotary_scaling",
                remedy="Set model.positions = rotary, or leave it out",
            )
        span_kinds(self.protect)  # refuses unknown kinds before any data is read
        if not self.has_text:
            self._refuse_text_settings()
        for key, tasks in SETTING_OWNERS.items():
            section, _, name = key.rpartition(".")
            values = getattr(self, section) if section else self
            # A default passes: a settings file may state it for any task.
            default = type(values).model_fields[name].default
            if self.base_task not in tasks and getattr(values, name) != default:
                *others, last = tasks
                named = f"{', '.join(others)} and {last}" if others else last
                raise ConfigError(
                    f"{key} is for {named}; this task is {self.task}",
                    where=key,
                    remedy="Leave it out",
                )
        corpora = (*self.data.train, *self.data.valid)
        if self.base_task != "translation" and any(corpus.task_prefix for corpus in corpora):
            raise ConfigError(
                f"task_prefix is for pairs of texts; this task is {self.task}",
                where="data.train",
                remedy="Leave it out, or set task = translation",
            )
        check_metrics(self.base_task, self.validation.metrics)
        # Translation leaves out pairs that are too long, and images have a check of their own.
        is_cut = self.has_text and self.base_task != "translation"
        if is_cut and self.data.budget < self.data.max_length:
            raise ConfigError(
                f"A batch of {self.data.budget} tokens has no room for a text of "
                f"{self.data.max_length} (data.max_length)",
                where="data.batch_tokens",
                remedy="Raise it, or lower data.max_length",
            )

    def check_preset(self) -> None:
        """Refuse a preset of another kind of model than the task trains.

        Raises:
            ConfigError: when the preset does not fit; the tasks that it fits are named.
        """
        if self.preset is not None and self.base_task not in preset_tasks(self.preset):
            tasks = preset_tasks(self.preset)
            raise ConfigError(
                f"The preset {self.preset} is for {', '.join(tasks)}; this task is {self.task}",
                where="preset",
                remedy=f"Set task = {tasks[0]!r} (--task {tasks[0]}), or choose another preset",
            )

    def _refuse_text_settings(self) -> None:
        for section in TEXT_SECTIONS:
            values = getattr(self, section)
            for name, default in type(values)():
                if getattr(values, name) != default:
                    raise ConfigError(
                        f"The settings of [{section}] are for text; this task is {self.task}",
                        where=f"{section}.{name}",
                        remedy="Leave it out",
                    )
