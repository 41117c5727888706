"""Models of types that are not read: the refusal says which part is missing."""

from __future__ import annotations

import json

import pytest

from heedful.errors import ModelError
from heedful.interop.hugging_face import import_model

MISSING = {
    "longt5": r"attention in blocks .*local_radius = 127",
    "bigbird_pegasus": r"blocks of which some are drawn \(num_random_blocks = 3",
    "led": r"attention in windows .*attention_window = 512",
    "reformer": r"tokens of equal hashes.*lsh_attn_chunk_length = 64",
    "fnet": r"Fourier transforms in the place of attention",
    "xlnet": r"permuted orders of the tokens",
    "funnel": r"shorten the sequence.*block_sizes = \[4, 4, 4\]",
    "blip": r"joins several networks \(text_config, vision_config\).*clip and siglip",
    "vits": r"from text to the samples of speech",
    "sam": r"a decoder of masks",
    "swin": r"windows of patches.*window_size = 7",
    "ernie": r"those of 'bert' but for .*task_type_vocab_size = 3",
    "codegen": r"those of 'gptj', and what it computes otherwise stands in its code alone",
    "xlm": r"no architecture here has (settings like|its) .*asm",
}


@pytest.mark.parametrize(("model_type", "part"), MISSING.items())
def test_the_missing_part_is_named(model_type, part, tmp_path):
    from safetensors.numpy import save_file
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    (tmp_path / "config.json").write_text(CONFIG_MAPPING[model_type]().to_json_string())
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=part) as caught:
        import_model(tmp_path)
    assert f"type {model_type!r} cannot be imported" in caught.value.what
    assert "other-models.md" in str(caught.value)


def test_a_type_without_settings(tmp_path):
    from safetensors.numpy import save_file

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "none_such", "x": 1}))
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="'none_such' cannot be imported: no architecture"):
        import_model(tmp_path)
