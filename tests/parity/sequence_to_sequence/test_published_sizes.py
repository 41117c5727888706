"""Presets of sequence-to-sequence models have as many parameters as the published models."""

from __future__ import annotations

import pytest

from heedful.interop.architectures.translators.bart import ARCHITECTURE as bart
from heedful.interop.architectures.translators.marian import ARCHITECTURE as marian
from heedful.interop.architectures.translators.t5 import ARCHITECTURE as t5
from heedful.models.cost import count_parameters
from heedful.models.preset_files import published_parameters, read_preset_spec

# transformers counts Marian's sinusoids, which nobody learns, and not its bias, which Marian does.
MARIAN = 74_410_496 - 2 * 512 * 512 + 58_101

PUBLISHED = {
    "t5-small": (t5, 60_506_624),
    "t5-base": (t5, 222_903_552),
    "t5-large": (t5, 737_668_096),
    "t5-3b": (t5, 2_851_598_336),
    "bart-base": (bart, 139_420_416),
    "bart-large": (bart, 406_291_456),
    "marian-base": (marian, MARIAN),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_many_parameters_as_published(name):
    architecture, count = PUBLISHED[name]
    spec = read_preset_spec(name)
    assert count_parameters(spec) == published_parameters(name) == count
    assert architecture.fits(spec)
