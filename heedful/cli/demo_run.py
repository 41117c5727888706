"""The demo step by step: folder, data, training, test."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.apps.demo_corpus import DemoCorpus, generate_demo, write_demo
from heedful.cli.text_io import writing
from heedful.errors import ConfigError, RunError, UserError
from heedful.evaluate.corpus_metrics import exact_match
from heedful.pipelines.text_splitting import Translation
from heedful.pipelines.translation import TranslationPipeline
from heedful.train.run import run_training
from heedful.train.run_settings import RunSettings

if TYPE_CHECKING:
    from heedful.apps.demo_corpus import DemoItem
    from heedful.events import Events

NOTE_FILE = "demo.json"
SHOWN_KINDS = ("date", "price", "duration")

# The best settings for one minute of training on two cores, chosen on English-French validation
# items.
SETTINGS: dict[str, Any] = {
    "model": {
        "width": 128,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "num_heads": 8,
        "feedforward": 256,
        "activation": "swiglu",
        "norm_placement": "pre",
        "positions": "rotary",
        "dropout": 0.0,
    },
    # Amounts of CLDR have no-break spaces, which other spellings of text replace by plain ones.
    "tokenizer": {"vocabulary_size": 600, "normalization": "none"},
    "data": {"batch_tokens": 1024},
    "objective": {"label_smoothing": 0.0},
    "schedule": {"kind": "cosine", "peak_learning_rate": 0.003, "warmup_steps": 100},
    "optimizer": {"clip_norm": 1.0},
    "validation": {"metrics": [], "choose_by": "loss", "every_steps": 300},
    "checkpoint": {"every_steps": 300, "average": "none"},
}


@dataclass(frozen=True)
class DemoPlan:
    """The flags of the demo, on which its result depends."""

    source: str
    target: str
    pairs: int
    held_out: int
    steps: int
    minutes: float
    seed: int

    def __post_init__(self) -> None:
        flags = self.plain()
        for name in ("pairs", "held-out", "steps", "minutes"):
            if not flags[name] > 0:
                where = "heedful demo"
                raise ConfigError(f"--{name} {flags[name]:g} is not above 0", where=where)

    def plain(self) -> dict[str, Any]:
        """Return the plan as JSON data; keys are names of flags."""
        names = {"source": "from", "target": "to", "held_out": "held-out"}
        return {names.get(name, name): value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Tested:
    """A held-out item and its translation."""

    item: DemoItem
    translation: Translation

    @property
    def exact(self) -> bool:
        """True if the translation equals the reference."""
        return self.translation == self.item.target

    def plain(self) -> dict[str, Any]:
        """Return JSON data; alignment links are source word, target word and weight."""
        alignment = self.translation.alignment
        return {
            "kind": self.item.kind,
            "source": self.item.source,
            "text": str(self.translation),
            "reference": self.item.target,
            "exact": self.exact,
            "alignment": [list(link) for link in alignment.links] if alignment else [],
        }


@dataclass(frozen=True)
class DemoResult:
    """The result of a demo.

    Attributes:
        tested: all held-out items with their translations.
        examples: some held-out items, with word alignments.
        kinds: number of training pairs of each kind.
        training: summary of the run.
        translation_seconds: seconds of translating all held-out items.
    """

    tested: Sequence[Tested]
    examples: Sequence[Tested]
    kinds: dict[str, int]
    training: dict[str, Any]
    translation_seconds: float

    @property
    def exact_match(self) -> float:
        """The share of exact translations of held-out items."""
        texts = [str(each.translation) for each in self.tested]
        return exact_match(texts, [each.item.target for each in self.tested])

    def wrong(self) -> list[Tested]:
        """The held-out items whose translation is not exact."""
        return [each for each in self.tested if not each.exact]

    def plain(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {
            "exact_match": self.exact_match,
            "held_out": len(self.tested),
            "kinds": self.kinds,
            "training": self.training,
            "translation_seconds": round(self.translation_seconds, 3),
            "sentences_per_second": round(len(self.tested) / self.translation_seconds, 1),
            "examples": [each.plain() for each in self.examples],
            "wrong": [each.plain() for each in self.wrong()],
        }


def run_demo(out: Path, plan: DemoPlan, events: Events) -> DemoResult:
    """Generate data, train and translate; a demo in the folder is continued or reused.

    Args:
        out: folder of the demo.
        plan: flags of the demo.
        events: receiver of progress.

    Raises:
        UserError: when the folder holds something else, or a locale is not supported.
        RunError: when training was stopped, or files cannot be written.
    """
    training = _finished_training(out, plan)
    corpus = generate_demo(
        plan.source,
        plan.target,
        pairs=plan.pairs,
        held_out=plan.held_out,
        seed=plan.seed,
        progress=lambda done, total: events.progress(done, total, "writing pairs"),
    )
    if training is None:
        training = _train(out, plan, corpus, events)
        _write_note(out, plan, training)
    else:
        events.note(f"Using the model trained before in {out}; delete the folder to train again")
    return _test(out / "run", corpus, training, events)


def _finished_training(out: Path, plan: DemoPlan) -> dict[str, Any] | None:
    """Return the training summary of the demo in the folder; None if training is unfinished.

    Raises:
        UserError: when the folder holds anything but this demo.
    """
    if out.exists() and not out.is_dir():
        raise UserError("This is a file", where=str(out), remedy="Name a folder with --out")
    if not out.exists() or not any(out.iterdir()):
        return None
    try:
        note = json.loads((out / NOTE_FILE).read_text(encoding="utf-8"))
        settings = dict(note["settings"])
        training = note["training"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            "The folder is not empty and holds no demo",
            where=str(out),
            remedy="Name another one with --out",
        ) from None
    if settings != plan.plain():
        flags = " ".join(f"--{name} {value}" for name, value in settings.items())
        raise UserError(
            f"The folder holds a demo made with {flags}",
            where=str(out),
            remedy="Give the same flags, name another folder with --out, or delete this one",
        )
    return dict(training) if training is not None else None


def _train(out: Path, plan: DemoPlan, corpus: DemoCorpus, events: Events) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    _write_note(out, plan, None)
    files = write_demo(corpus, out / "pairs")
    data = {
        part: [{"source": str(files[part][0]), "target": str(files[part][1])}]
        for part in ("train", "valid")
    }
    settings = RunSettings.parse(
        {
            **SETTINGS,
            "data": {**SETTINGS["data"], **data},
            "max_steps": plan.steps,
            "max_minutes": plan.minutes,
            "seed": plan.seed,
        }
    )
    run = out / "run"
    resume = (run / "config.toml").exists()
    summary = run_training(run, settings, resume=resume, events=events)
    if not summary.finished:
        raise RunError(
            f"The demo was stopped at step {summary.steps}",
            where=str(out),
            remedy="Give the same command again to continue",
        )
    return summary.plain()


def _write_note(out: Path, plan: DemoPlan, training: dict[str, Any] | None) -> None:
    with writing(out / NOTE_FILE) as stream:
        json.dump({"settings": plan.plain(), "training": training}, stream, ensure_ascii=False)


def _test(run: Path, corpus: DemoCorpus, training: dict[str, Any], events: Events) -> DemoResult:
    pipeline = TranslationPipeline.load(run)
    sources = [item.source for item in corpus.test]
    started = time.perf_counter()
    translations = pipeline.translate(
        sources,
        progress=lambda done, total: events.progress(done, total, "translating"),
    )
    seconds = time.perf_counter() - started
    examples = _examples(corpus.test)
    aligned = pipeline.translate([item.source for item in examples], alignment=True)
    return DemoResult(
        tested=[Tested(*each) for each in zip(corpus.test, translations, strict=True)],
        examples=[Tested(*each) for each in zip(examples, aligned, strict=True)],
        kinds=corpus.kinds(),
        training=training,
        translation_seconds=seconds,
    )


def _examples(items: Sequence[DemoItem]) -> list[DemoItem]:
    """Return the longest of the first ten items of each kind in `SHOWN_KINDS`."""
    result = []
    for kind in SHOWN_KINDS:
        first = [item for item in items if item.kind == kind][:10]
        result += [max(first, key=lambda item: len(item.source))] if first else []
    return result
