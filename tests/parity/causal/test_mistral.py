"""Mistral's directories: the same numbers as `transformers`, in and out, to 1e-5 in float32."""

from __future__ import annotations

import pytest

from heedful.errors import ModelError
from heedful.interop.architectures.decoders.llama import ARCHITECTURE as llama
from heedful.interop.architectures.decoders.mistral import ARCHITECTURE as mistral

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
CASES = {
    "a window": {"sliding_window": 3, "head_dim": 10, "rms_norm_eps": 1e-3},
    "no window, tied": {"sliding_window": None, "tie_word_embeddings": True},
}


@pytest.fixture(scope="module", params=CASES)
def case(request, causal, tmp_path_factory):
    import transformers

    config = transformers.MistralConfig(**SIZES, **CASES[request.param])
    cls = transformers.MistralForCausalLM
    return causal(mistral, cls, config, tmp_path_factory.mktemp("mistral"))


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_outputs_are_theirs(case, left):
    case.compare_outputs(left)


def test_outputs_from_a_cache_are_theirs(case):
    case.compare_cached(True, 3, "growing")


def test_what_is_written_is_what_was_read(case, tmp_path):
    case.compare_export(tmp_path / "out")


def test_a_window_is_none_of_llamas(case):
    windowed = case.config["sliding_window"] is not None
    assert llama.fits(case.ours.spec) != windowed


def test_a_wrong_window_is_named():
    with pytest.raises(ModelError, match="sliding_window"):
        mistral.read_config({**SIZES, "sliding_window": "wide"}, where="config.json")
