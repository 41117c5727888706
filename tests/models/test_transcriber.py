"""The model from frames of sound to tokens: a decoder on another encoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heedful.errors import ConfigError, DataError
from heedful.interop.architecture import find_architecture
from heedful.models.build import build_model
from heedful.models.sounds.transcriber import Transcriber
from heedful.models.sounds.transcriber_spec import TranscriberSpec
from tests.speech import CONFIG


@pytest.fixture(scope="module")
def model() -> Transcriber:
    torch.manual_seed(1)
    made: Any = build_model(find_architecture("whisper", where="").read_config(CONFIG, where=""))
    return made.eval()  # type: ignore[no-any-return]


@torch.no_grad()
def test_steps_are_the_rows_of_a_whole_pass(model: Transcriber) -> None:
    frames, ids = torch.randn(2, 100, 80), torch.randint(0, 250, (2, 6))
    states, at = torch.arange(50).expand(2, -1), torch.arange(6).expand(2, -1)
    whole = model.logits(model(frames, states, ids, at))
    state = model.start(frames, states)
    for place in range(6):
        logits, state = model.step(state, ids[:, place : place + 1])
        torch.testing.assert_close(logits[:, 0], whole[:, place], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_state_sees_seven_frames_before_attention(model: Transcriber) -> None:
    """Two windows of three frames, of which the second moves by two."""
    frames, states = torch.randn(1, 100, 80), torch.arange(50)[None]
    other = frames.clone()
    other[:, 40] += 1.0
    moved = (model.source_input(frames, states) != model.source_input(other, states)).any(-1)[0]
    assert moved.nonzero().flatten().tolist() == [19, 20, 21][: int(moved.sum())]
    assert moved[20]


def test_frames_of_other_bands_are_refused(model: Transcriber) -> None:
    with pytest.raises(DataError, match=r"shape \[2, 100, 40\].*frames, 80\]"):
        model.start(torch.randn(2, 100, 40), torch.arange(50).expand(2, -1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frames": 99}, "two frames make a state"),
        ({"prompt": {"start": 500}}, "past the vocabulary"),
        ({"prompt": {"start": 1, "language": "de"}}, "'de' is the default, and has no token"),
    ],
)
def test_specs_that_fit_nowhere_are_refused(
    model: Transcriber, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        TranscriberSpec.parse({**model.spec.plain(), **changes})
