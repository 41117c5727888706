"""The plan of a comparison: its configurations, checked against each other, seeds and budget."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heedful.config import flat, merge, read_toml_text
from heedful.durable import replace_synced
from heedful.errors import ConfigError, UserError, suggest
from heedful.train.run_config import resolve_settings
from heedful.train.run_settings import RunSettings

PLAN_FILE = "comparison.json"
SCHEMA_VERSION = 1

_POINTS = 20
"""Number of validations, the points of a curve, if a configuration sets no interval."""

_MINUTES = 2.0
"""Minutes between checkpoints: the most work that a killed comparison loses."""

_FREE_DATA = ("batch_tokens", "pool_batches", "packed_length", "cache")
"""Settings of data that change the order of examples, not the examples of training and
validation."""

_BUDGETS = ("max_steps", "max_minutes", "max_epochs")


@dataclass(frozen=True)
class Variant:
    """One of the compared configurations.

    Args:
        name: name of the variant and of the folder of its runs.
        settings: settings of its runs; each run has its own seed.
        parameters: parameters of the model; 0 until the variant is prepared.
        flops_per_update: operations of forward and backward pass, padding included; 0 until the
            variant is prepared.
    """

    name: str
    settings: RunSettings
    parameters: int = 0
    flops_per_update: float = 0.0

    def plain(self) -> dict[str, Any]:
        """The variant as JSON data."""
        return {
            "name": self.name,
            "parameters": self.parameters,
            "flops_per_update": self.flops_per_update,
            "settings": self.settings.plain(),
        }


@dataclass(frozen=True)
class Run:
    """One training: a variant and a seed.

    Args:
        variant: configuration to train.
        seed: random seed of the run.
        directory: run directory.
    """

    variant: Variant
    seed: int
    directory: Path

    @property
    def label(self) -> str:
        """The run's name in messages."""
        return f"{self.variant.name}, seed {self.seed}"

    @property
    def settings(self) -> RunSettings:
        """The settings with the run's seed."""
        return self.variant.settings.model_copy(update={"seed": self.seed})


@dataclass(frozen=True)
class ComparisonPlan:
    """Variants, seeds and budget of a comparison.

    Args:
        variants: configurations, at least one, with different names.
        seeds: number of runs of each variant.
        max_flops: budget of each run in operations; None if steps or minutes are the budget.
        fingerprint: hash of the training data and tokenizers, the same for all variants; empty
            until they are prepared.
    """

    variants: tuple[Variant, ...]
    seeds: int
    max_flops: float | None = None
    fingerprint: str = ""

    @property
    def first(self) -> RunSettings:
        """The settings of the first variant, read for values that all variants share."""
        return self.variants[0].settings

    @property
    def scores(self) -> tuple[str, ...]:
        """The scores that all variants have; the first one ranks the variants."""
        common: set[str] = {"loss"}.union(self.first.validation.metrics)
        for variant in self.variants:
            common &= {"loss", *variant.settings.validation.metrics}
        chosen = self.first.validation.choose_by
        names = [chosen, *self.first.validation.metrics, "loss"]
        return tuple(dict.fromkeys(name for name in names if name in common))

    def runs(self, out: Path) -> list[Run]:
        """Return all runs: every variant with the first seed, then with the second, and so on."""
        return [
            Run(variant, seed, out / "runs" / variant.name / f"seed-{seed}")
            for number in range(self.seeds)
            for variant in self.variants
            for seed in (variant.settings.seed + number,)
        ]

    def budget(self) -> str:
        """The budget as text."""
        if self.max_flops is not None:
            return f"{self.max_flops:.3g} floating-point operations a run"
        settings = self.first
        limits = [f"{settings.max_steps:,} updates"]
        if settings.max_minutes is not None:
            limits.insert(0, f"{settings.max_minutes:g} minutes")
        if settings.max_epochs is not None:
            limits.append(f"{settings.max_epochs} epochs")
        return " or ".join(limits) + " a run"

    def save(self, out: Path) -> None:
        """Write the plan into the folder of the comparison."""
        plain = {
            "schema_version": SCHEMA_VERSION,
            "seeds": self.seeds,
            "max_flops": self.max_flops,
            "fingerprint": self.fingerprint,
            "variants": [variant.plain() for variant in self.variants],
        }
        replace_synced(out / PLAN_FILE, json.dumps(plain, indent=2, ensure_ascii=False).encode())


def load_plan(out: Path) -> ComparisonPlan | None:
    """Read the plan of an earlier comparison; None where there is none.

    Raises:
        ConfigError: when the file cannot be read.
    """
    path = out / PLAN_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        plain = json.loads(text)
        variants = tuple(
            Variant(
                each["name"],
                RunSettings.parse(each["settings"], where=f"{path}: {each['name']}"),
                each["parameters"],
                each["flops_per_update"],
            )
            for each in plain["variants"]
        )
        return ComparisonPlan(variants, plain["seeds"], plain["max_flops"], plain["fingerprint"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"The plan of the comparison cannot be read: {error!r}",
            where=str(path),
            remedy="Name another directory",
        ) from None


Configuration = str | Path | Mapping[str, Any]
"""A TOML file, the name of a preset, or settings as nested plain data."""


def variants_of(
    configurations: Sequence[Configuration] | Mapping[str, Configuration],
    overrides: Mapping[str, Any],
) -> list[Variant]:
    """Resolve configurations to settings, with the same overrides for all of them.

    Args:
        configurations: mapping of names to configurations, or a list of files and presets, which
            are named by their file or preset.
        overrides: settings as nested plain data.

    Raises:
        ConfigError: when a file is wrong, a preset unknown, or two variants have one name.
    """
    if isinstance(configurations, Mapping):
        named = list(configurations.items())
    else:
        named = [(_name_of(each), each) for each in configurations]
    variants = [Variant(_folder(name), _resolve(each, overrides)) for name, each in named]
    names = [variant.name for variant in variants]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"Two configurations are called {twice[0]!r}",
            where=twice[0],
            remedy="Rename a file: its name is that of the variant in the table",
        )
    return variants


def sweep_variants(
    configuration: Configuration,
    setting: str,
    values: Sequence[Any],
    overrides: Mapping[str, Any],
) -> list[Variant]:
    """Resolve a configuration with each of several values of one setting.

    Args:
        configuration: TOML file, preset, or settings as nested plain data.
        setting: dotted name of the setting, such as `model.width`.
        values: values of the setting, at least one.
        overrides: settings as nested plain data.

    Raises:
        ConfigError: when the setting does not exist, or refuses one of the values.
    """
    if setting == "seed":
        raise ConfigError(
            "Seeds are no variants: every variant is trained with several seeds",
            where="seed",
            remedy="Set the number of seeds: --seeds",
        )
    results = {}
    for value in values:
        nested: Any = value
        for key in reversed(setting.split(".")):
            nested = {key: nested}
        text = str(value).lower() if isinstance(value, bool) else str(value)
        name = _folder(f"{setting}={text}")
        if name in results:
            raise ConfigError(f"The value {text} is given twice", where=setting)
        results[name] = Variant(name, _resolve(configuration, merge(overrides, nested)))
    return list(results.values())


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """Split `model.width=128,256` into the setting and its values, read as TOML.

    Raises:
        ConfigError: when there is no name, or no value.
    """
    name, _, listed = text.partition("=")
    words = [word.strip() for word in listed.split(",")]
    if not name or not all(words):
        raise ConfigError(
            "A sweep needs a setting and its values",
            where=text,
            remedy="Write it like model.width=128,256,512",
        )
    return name.strip().replace("-", "_"), [_value(word) for word in words]


def _value(word: str) -> Any:
    try:
        return read_toml_text(f"value = {word}", where=word)["value"]
    except ConfigError:
        return word  # a text without quotes


def _name_of(configuration: Configuration) -> str:
    if isinstance(configuration, Mapping):
        raise ConfigError(
            "Settings without a file need a name", remedy="Give a mapping of names to settings"
        )
    return Path(configuration).stem


def _folder(name: str) -> str:
    """Return a name without the characters that a folder's name cannot have."""
    return re.sub(r"[^\w.=+-]", "_", name).lstrip(".") or "_"


def _resolve(configuration: Configuration, overrides: Mapping[str, Any]) -> RunSettings:
    if isinstance(configuration, Mapping):
        return resolve_settings(overrides=merge(configuration, overrides))
    path = Path(configuration)
    if path.suffix == ".toml" or path.exists():
        return resolve_settings(config_file=path, overrides=overrides)
    from heedful.models.preset_files import preset_names

    known = preset_names()
    if str(configuration) not in known:
        raise ConfigError(
            "There is no such file and no such preset",
            where=str(configuration),
            remedy=suggest(str(configuration), known),
        )
    return resolve_settings(str(configuration), overrides=overrides)


def make_plan(variants: Sequence[Variant], seeds: int, max_flops: float | None) -> ComparisonPlan:
    """Check that variants can be compared, and make a plan of them.

    Args:
        variants: configurations, at least one.
        seeds: number of runs of each variant.
        max_flops: budget of each run in operations, in place of steps or minutes.

    Raises:
        UserError: when there is nothing to compare.
        ConfigError: naming the settings that must not differ.
    """
    if not variants:
        raise UserError("There is nothing to compare", remedy="Name configurations or presets")
    if seeds < 1:
        raise ConfigError("At least one run of each is needed", where=f"seeds = {seeds}")
    if max_flops is not None and max_flops <= 0:
        raise ConfigError("The budget must be above 0", where=f"max_flops = {max_flops:g}")
    settings = {variant.name: variant.settings for variant in variants}
    _check_same(
        {name: {"task": each.task} for name, each in settings.items()},
        "The scores of different tasks cannot be compared",
        "Compare configurations of one task (--task)",
    )
    _check_same(
        {name: _data(each) for name, each in settings.items()},
        "The data differ, so the scores would not be comparable",
        "Give --train and --valid, or the setting as a flag; they replace those of all",
    )
    _check_same(
        {name: {"tokenizer": each.tokenizer.plain()} for name, each in settings.items()},
        "The tokenizers differ, so losses per token would not be comparable",
        "Give the setting as a flag, such as --tokenizer.kind; it replaces that of all",
    )
    _check_same(
        {name: {"validation": _judging(each)} for name, each in settings.items()},
        "There is no common score",
        "Give the setting as a flag, such as --validation.choose-by; it replaces that of all",
    )
    if not variants[0].settings.data.valid:
        raise ConfigError(
            "There is no common score without validation data",
            where="data.valid",
            remedy="Give --valid",
        )
    if max_flops is None:
        _check_same(
            {n: {key: getattr(each, key) for key in _BUDGETS} for n, each in settings.items()},
            "The budgets differ",
            "Give --max-steps, --max-minutes or --max-flops for all",
        )
    if variants[0].settings.data.batch_tokens == "auto":
        raise ConfigError(
            "With auto the batches would depend on the memory that is free",
            where="data.batch_tokens",
            remedy="Give a number",
        )
    return ComparisonPlan(tuple(variants), seeds, max_flops)


def _data(settings: RunSettings) -> dict[str, Any]:
    """Return the settings that decide which examples a run is trained and validated on."""
    data = {k: v for k, v in settings.data.plain().items() if k not in _FREE_DATA}
    if settings.cuts_windows:
        del data["max_length"]  # for text it is a context length, which leaves out no text
    return {"data": data, "images": settings.images.plain()}


def _judging(settings: RunSettings) -> dict[str, Any]:
    chosen = settings.validation.plain()
    return {key: chosen[key] for key in ("choose_by", "tokenize", "lowercase")}


def _check_same(values: Mapping[str, Mapping[str, Any]], what: str, remedy: str) -> None:
    """Refuse settings that differ between variants.

    Raises:
        ConfigError: naming the first such setting, two variants and their values.
    """
    (first, expected), *others = ((name, flat(each)) for name, each in values.items())
    for name, other in others:
        for key in sorted(expected.keys() | other.keys()):
            mine, theirs = expected.get(key), other.get(key)
            if mine != theirs:
                raise ConfigError(
                    f"{what}: {first} has {_short(mine)}, {name} has {_short(theirs)}",
                    where=key,
                    remedy=remedy,
                )


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def extend_plan(before: ComparisonPlan, now: ComparisonPlan, out: Path) -> ComparisonPlan:
    """Add variants and seeds to an earlier plan.

    Args:
        before: earlier plan, whose runs may be finished.
        now: requested plan, not prepared yet.
        out: folder of the comparison.

    Raises:
        ConfigError: when the budget or the settings of a variant have changed.
    """
    if before.max_flops != now.max_flops:
        raise ConfigError(
            f"The budget was {before.budget()}",
            where=str(out),
            remedy="Use the same budget, or name another --out",
        )
    known = {variant.name: variant for variant in before.variants}
    for variant in now.variants:
        if variant.name in known:
            begun = known[variant.name].settings
            if now.max_flops is not None:  # max_flops determines the steps
                variant = with_steps(variant, begun.max_steps)
            old, new = flat(begun.plain()), flat(with_usual(variant, out).settings.plain())
            changed = [k for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)]
            if changed:
                raise ConfigError(
                    f"{variant.name} was begun with another {', '.join(changed)}",
                    where=str(out),
                    remedy="Use the same settings, or name another --out",
                )
    added = tuple(variant for variant in now.variants if variant.name not in known)
    make_plan([*before.variants, *added], max(before.seeds, now.seeds), now.max_flops)
    return replace(before, variants=(*before.variants, *added), seeds=max(before.seeds, now.seeds))


def with_steps(variant: Variant, steps: int) -> Variant:
    """Set the number of updates."""
    return replace(variant, settings=variant.settings.model_copy(update={"max_steps": steps}))


def with_usual(variant: Variant, out: Path) -> Variant:
    """Fill in unset settings that a comparison needs.

    A curve gets about twenty points, a checkpoint is saved every two minutes, and all runs share
    one folder of encoded data.
    """
    settings = variant.settings
    validation, checkpoint, data = settings.validation, settings.checkpoint, settings.data
    if "every_steps" not in validation.model_fields_set:
        every = max(1, settings.max_steps // _POINTS)
        validation = validation.model_copy(
            update={"every_steps": min(every, validation.every_steps)}
        )
    if checkpoint.every_minutes is None:
        checkpoint = checkpoint.model_copy(update={"every_minutes": _MINUTES})
    if data.cache is None:
        data = data.model_copy(update={"cache": str(out / "data")})
    changes = {"validation": validation, "checkpoint": checkpoint, "data": data}
    return replace(variant, settings=settings.model_copy(update=changes))
