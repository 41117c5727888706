"""Every architecture on tiny models: read, equal in numbers, written again."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from heedful.engines.inference.prepare import prepare
from heedful.errors import ModelError
from heedful.interop.architecture import find_architecture
from heedful.models.build import build_around, canonical_weights

from .architecture_cases import CASES, CLOSE


def read(name, directory):
    """A model of theirs in a directory as ours, with its architecture."""
    config = json.loads((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    architecture = find_architecture(name.partition(",")[0], where="")
    spec = architecture.read_config(config, where="config.json", names=tensors)
    ours = architecture.table(spec, tensors).to_ours(tensors, where="model.safetensors")
    return architecture, build_around(spec, ours, where="", dtype=torch.float32).eval()


def make(name, directory):
    """A tiny model of theirs whose tensors were drawn, saved."""
    import transformers

    cls, sizes = CASES[name]
    cls = getattr(transformers, cls)
    torch.manual_seed(0)
    model = cls(cls.config_class(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("correction_bias"):
                buffer.add_(0.3 * torch.randn_like(buffer))
    model.save_pretrained(directory)
    return model


def read_in_two(engine, ids, at):
    """Logits of texts that an engine reads in two parts, from a cache or another state."""
    parts = []
    state = engine.start(ids[:, :0], at[:, :0])
    for part in (slice(0, 4), slice(4, 7)):
        states, state = engine.extend(state, ids[:, part], at[:, part])
        parts.append(engine.logits(states))
    return torch.cat(parts, 1)


def outputs(model, theirs):
    """What each makes of the same inputs."""
    if model.spec.reads == "images":
        images = torch.randn(2, 3, 8, 8)
        if not model.spec.class_names:
            return model(images), theirs(images).last_hidden_state
        return model.class_logits(model(images)), theirs(images).logits
    ids = torch.randint(5, 40, (2, 7))
    at = torch.arange(7).expand(2, -1)
    if model.spec.reads == "images_and_texts":
        ids, images = ids.clamp(max=38), torch.randn(3, 3, 8, 8)
        ids[:, -1] = 39  # the end token, and the highest id
        found = model(images, ids, at)
        return found, theirs(input_ids=ids, pixel_values=images).logits_per_image
    if model.spec.reads == "pairs":
        target = ids[:, :4].flip(1)
        found = model.logits(model(ids, at, target, at[:, :4]))
        return found, theirs(input_ids=ids, decoder_input_ids=target).logits
    if model.spec.reads == "sounds":
        frames = torch.randn(2, model.spec.frames, model.spec.bands)
        states = torch.arange(model.spec.num_states).expand(2, -1)
        found = model.logits(model(frames, states, ids, at))
        return found, theirs(frames.mT, decoder_input_ids=ids).logits
    if model.spec.generates:
        return read_in_two(prepare(model, "fp32"), ids, at), theirs(ids).logits
    (kind, head), states = *model.heads.items(), model(ids, at)
    return head(states[:, 0] if kind == "sequence" else states), theirs(ids).logits


def close(found, expected):
    """Equal to a small part of the largest number."""
    scale = expected.abs().max()
    torch.testing.assert_close(found / scale, expected / scale, rtol=0.0, atol=CLOSE)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_it_computes_the_same_in_and_out(name, tmp_path):
    theirs = make(name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    architecture, model = read(name, tmp_path)
    spec = model.spec
    found, expected = outputs(model, theirs)
    assert expected.std() > 0.1
    close(found, expected)

    assert architecture.differences(spec) == []
    written = architecture.table(spec).to_theirs(canonical_weights(model))
    out = tmp_path / "out"
    out.mkdir()
    # Ids of special tokens come from the tokenizer.
    ids = {"pad_token_id": config["pad_token_id"]} if config.get("pad_token_id") is not None else {}
    written_config = ids | architecture.write_config(spec)
    if "text_config" in config:
        written_config["text_config"]["eos_token_id"] = config["text_config"]["eos_token_id"]
    (out / "config.json").write_text(json.dumps(written_config))
    save_file(written, out / "model.safetensors", metadata={"format": "pt"})
    again, told = type(theirs).from_pretrained(out, output_loading_info=True)
    assert not any(told.values()), told
    found, expected = outputs(model, again.eval())
    close(found, expected)


# Tensors of ours that are one tensor of theirs.
SHARED = {
    "albert": "encoder.blocks.1.feedforward.up.weight",
    "deberta-v2": "encoder.blocks.1.self_attention.position_bias.weight",
    "falcon": "decoder.blocks.1.feedforward_norm.weight",
}


@pytest.mark.parametrize(("name", "moved"), SHARED.items())
@torch.no_grad()
def test_weights_that_moved_apart_are_refused(name, moved, tmp_path):
    make(name, tmp_path)
    architecture, model = read(name, tmp_path)
    tensors = dict(canonical_weights(model))
    tensors[moved] = tensors[moved] + 1.0
    with pytest.raises(ModelError, match=f"{moved}.* one tensor there"):
        architecture.table(model.spec).to_theirs(tensors)


@pytest.mark.parametrize(("buckets", "farthest"), [(4, 20), (256, 512), (32, 40)])
def test_distances_share_buckets_as_in_deberta(buckets, farthest):
    from transformers.models.deberta_v2 import modeling_deberta_v2

    from heedful.nn.attention.disentangled import Disentangled
    from heedful.nn.bias_spec import DisentangledSpec

    spec = DisentangledSpec(num_buckets=buckets, max_distance=farthest)
    ours = Disentangled(spec, num_heads=1, head_width=2, width=2, scale=1.0)
    distances = torch.arange(-2 * farthest, 2 * farthest)
    theirs = modeling_deberta_v2.make_log_bucket_position(distances, buckets, farthest)
    expected = (theirs.long() + buckets).clamp(0, 2 * buckets - 1)
    assert torch.equal(ours._bucket(distances), expected)
