"""What the parity tests of the text encoders share: toy models of theirs, read as ours."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from heedful.config import merge
from heedful.models.build import canonical_weights, load_weights
from heedful.models.encoder import EncoderModel
from heedful.models.encoder_spec import EncoderSpec
from heedful.nn.capture import Capture
from heedful.nn.spec import NormSpec

LENGTHS, WIDTH = [7, 4, 1], 8
PARTS = {"self_attention", "feedforward"}


def write_toy(cls, config, directory, **options):
    """A model of theirs in which no tensor is at its neutral start, saved and returned."""
    torch.manual_seed(0)
    model = cls(config, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return model


def read_directory(directory):
    config = json.loads((directory / "config.json").read_text())
    return config, load_file(directory / "model.safetensors")


def read_ours(module, config, tensors):
    """Our model of their configuration and tensors."""
    spec = module.read_config(config, where="config.json", names=tensors)
    model = EncoderModel(spec).eval()
    ours = module.table(spec, tensors).to_ours(tensors, where="model.safetensors")
    load_weights(model, ours, where="model.safetensors")
    return model


def write_theirs(module, model, directory):
    """Our model as a directory of theirs."""
    directory.mkdir()
    config = module.write_config(model.spec)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = module.table(model.spec).to_theirs(canonical_weights(model))
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def draw_batch(vocabulary, num_segments, *, left):
    """The same three texts with padding on either side."""
    torch.manual_seed(1)
    rows = []
    for length in LENGTHS:
        text = torch.stack(
            [
                torch.randint(4, vocabulary, (length,)),
                torch.arange(length),
                torch.randint(0, num_segments, (length,)),
            ]
        )
        padding = torch.tensor([[0], [-1], [0]]).expand(3, WIDTH - length)
        rows.append(torch.cat([padding, text] if left else [text, padding], dim=1))
    ids, positions, segments = torch.stack(rows).unbind(1)
    return SimpleNamespace(ids=ids, positions=positions, segments=segments, real=positions >= 0)


@torch.no_grad()
def run_theirs(model, batch, first_position=0):
    return model(
        input_ids=batch.ids,
        attention_mask=batch.real.long(),
        position_ids=batch.positions.clamp(min=0) + first_position,
        token_type_ids=batch.segments,
        output_hidden_states=True,
    )


@torch.no_grad()
def run_ours(model, batch):
    """States, states after every layer, the pooler's output and the logits of every head."""
    layers = [f"encoder.{n}.output" for n in range(model.spec.encoder.num_layers)]
    capture = Capture(layers)
    states = model(batch.ids, batch.positions, batch.segments, capture=capture)
    heads = {
        "masked_lm": lambda: model.masked_lm_logits(states),
        "next_sentence": lambda: model.next_sentence_logits(states, batch.positions),
        "sequence": lambda: model.sequence_logits(states, batch.positions),
        "token": lambda: model.token_logits(states),
        "span": lambda: model.span_logits(states),
    }
    return SimpleNamespace(
        states=states,
        layers=[capture.found[address] for address in layers],
        pooled=model.pooled(states, batch.positions) if model.spec.pooler else None,
        logits={head.kind: heads[head.kind]() for head in model.spec.heads},
    )


def their_logits(output):
    """By our kinds of heads; what is not there is left out."""
    if "start_logits" in output:
        return {"span": torch.stack([output.start_logits, output.end_logits], dim=-1)}
    if "prediction_logits" in output:
        return {
            "masked_lm": output.prediction_logits,
            "next_sentence": output.seq_relationship_logits,
        }
    return {"the only": output.logits} if "logits" in output else {}


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def agree(ours, theirs, batch, whole=None):
    """Equal at all real tokens.

    Args:
        ours: from `run_ours`.
        theirs: from `run_theirs`, on the same batch.
        batch: from `draw_batch`.
        whole: from `run_theirs` with padding on the right, where their first token is the text's;
            for what they predict of a whole text.
    """
    whole = theirs if whole is None else whole
    assert len(ours.layers) == len(theirs.hidden_states) - 1
    for own, other in zip(ours.layers, theirs.hidden_states[1:], strict=True):
        close(own[batch.real], other[batch.real])
    close(ours.states, ours.layers[-1])
    if "pooler_output" in theirs and theirs.pooler_output is not None:
        close(ours.pooled, whole.pooler_output)
    logits, of_whole = their_logits(theirs), their_logits(whole)
    assert len(logits) == len(ours.logits)
    for kind, own in ours.logits.items():
        name = kind if kind in logits else "the only"
        if own.dim() == 2:
            close(own, of_whole[name])
        else:
            close(own[batch.real], logits[name][batch.real])


@pytest.fixture(scope="session")
def text_encoders():
    return SimpleNamespace(
        write_toy=write_toy,
        read_directory=read_directory,
        read_ours=read_ours,
        write_theirs=write_theirs,
        draw_batch=draw_batch,
        run_theirs=run_theirs,
        run_ours=run_ours,
        agree=agree,
    )


@pytest.fixture
def changed():
    """A function of a spec and changes: of its settings, of `block`, or of a part by its name."""

    def change(spec: EncoderSpec, changes: dict[str, Any]) -> EncoderSpec:
        own = {k: v for k, v in changes.items() if k not in ("block", *PARTS)}
        block = spec.encoder.block
        common = dict(changes.get("block", {}))
        if "norm" in common:
            common["norm"] = NormSpec.parse(common["norm"])
        parts = {
            name: type(block.part(name)).parse(merge(block.part(name).plain(), changes[name]))
            for name in PARTS & changes.keys()
        }
        stack = spec.encoder.with_block(block.replace(**common, **parts))
        values = merge(spec.with_stacks({"encoder": stack}).plain(), own)
        return EncoderSpec.parse({k: v for k, v in values.items() if v is not None})

    return change
