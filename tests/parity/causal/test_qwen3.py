"""Qwen 3's directories: the same numbers as `transformers`, in and out, to 1e-5 in float32."""

from __future__ import annotations

import pytest

from heedful.interop.architectures.decoders.llama import ARCHITECTURE as llama
from heedful.interop.architectures.decoders.qwen3 import ARCHITECTURE as qwen3

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "head_dim": 10,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
CASES = {
    "as published": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "tied, biases": {"tie_word_embeddings": True, "rms_norm_eps": 1e-3, "attention_bias": True},
    "windows in the last layers": {
        "use_sliding_window": True,
        "sliding_window": 3,
        "max_window_layers": 1,
    },
}


@pytest.fixture(scope="module", params=CASES)
def case(request, causal, tmp_path_factory):
    import transformers

    config = transformers.Qwen3Config(**SIZES, **CASES[request.param])
    cls = transformers.Qwen3ForCausalLM
    return causal(qwen3, cls, config, tmp_path_factory.mktemp("qwen3"))


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_outputs_are_theirs(case, left):
    case.compare_outputs(left)


def test_outputs_from_a_cache_are_theirs(case):
    case.compare_cached(True, 3, "growing")


def test_what_is_written_is_what_was_read(case, tmp_path):
    case.compare_export(tmp_path / "out")


def test_norms_of_heads_are_none_of_llamas(case):
    assert not llama.fits(case.ours.spec)
