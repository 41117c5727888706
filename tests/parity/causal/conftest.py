"""What the parity tests of the causal models share: toy models of theirs, read as ours."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from heedful.models.build import canonical_weights, load_weights
from heedful.models.causal_lm import CausalLM
from heedful.nn.attention.cache import StaticCache
from heedful.nn.capture import Capture
from heedful.pipelines.text_generation import generate
from tests.reference_parts import GrowingCache

LENGTHS, WIDTH = [7, 4, 1], 8


def write_toy(cls, config, directory):
    """A model of theirs in which no tensor is at its neutral start, saved and returned."""
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return model


def read_directory(directory):
    config = json.loads((directory / "config.json").read_text())
    return config, load_file(directory / "model.safetensors")


def draw_batch(vocabulary, *, left):
    """The same three texts with padding on either side."""
    torch.manual_seed(1)
    rows = []
    for length in LENGTHS:
        text = torch.stack([torch.randint(0, vocabulary, (length,)), torch.arange(length)])
        padding = torch.tensor([[0], [-1]]).expand(2, WIDTH - length)
        rows.append(torch.cat([padding, text] if left else [text, padding], dim=1))
    ids, positions = torch.stack(rows).unbind(1)
    return SimpleNamespace(ids=ids, positions=positions, real=positions >= 0)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


class Causal:
    """Two models that should be one: theirs, saved, and ours, made of what was saved.

    Args:
        module: of `heedful.interop`.
        cls, config: of theirs, built with new weights.
        directory: where theirs is saved and read from.
    """

    def __init__(self, module, cls, config, directory):
        self.module, self.cls = module, cls
        self.theirs = write_toy(cls, config, directory)
        self.config, self.tensors = read_directory(directory)
        spec = module.read_config(self.config, where="config.json")
        self.ours = CausalLM(spec).eval()
        self.table = module.table(spec, self.tensors)
        ours = self.table.to_ours(self.tensors, where="model.safetensors")
        load_weights(self.ours, ours, where="model.safetensors")

    def compare_outputs(self, left, theirs=None):
        """Logits and states after every layer, at all real tokens."""
        batch = draw_batch(self.ours.spec.vocabulary, left=left)
        their = self.run(theirs or self.theirs, batch)
        layers = [f"decoder.{n}.output" for n in range(self.ours.spec.decoder.num_layers)]
        capture = Capture(layers)
        with torch.no_grad():
            states = self.ours(batch.ids, batch.positions, capture=capture)
            # Their last states are behind the final norm.
            found = [*(capture.found[address] for address in layers[:-1]), states]
            for own, other in zip(found, their.hidden_states[1:], strict=True):
                close(own[batch.real], other[batch.real])
            if "logits" in their:
                close(self.ours.logits(states)[batch.real], their.logits[batch.real])

    def compare_cached(self, left, chunk, kind):
        """Logits of texts read piece by piece into a cache."""
        batch = draw_batch(self.ours.spec.vocabulary, left=left)
        expected = self.run(self.theirs, batch).logits
        make = {"growing": GrowingCache.empty, "static": partial(StaticCache.empty, capacity=WIDTH)}
        empty = batch.ids[:, :0], batch.positions[:, :0]
        state = self.ours.start(*empty, make_cache=make[kind])
        parts = []
        with torch.no_grad():
            for part in torch.arange(WIDTH).split(chunk):
                states, state = self.ours.extend(
                    state, batch.ids[:, part], batch.positions[:, part]
                )
                parts.append(self.ours.logits(states))
        close(torch.cat(parts, 1)[batch.real], expected[batch.real])

    def compare_texts(self, **searched):
        """What both make of prompts of several lengths; `searched` are their arguments."""
        prompts = [[5, 9, 3, 7, 2], [4, 8], [6]]
        size = max(map(len, prompts))
        rows = [[0] * (size - len(p)) + p for p in prompts]
        mask = [[0] * (size - len(p)) + [1] * len(p) for p in prompts]
        generated = self.theirs.generate(
            torch.tensor(rows),
            attention_mask=torch.tensor(mask),
            do_sample=False,
            pad_token_id=0,
            **searched,
        )[:, size:].tolist()
        end = searched["eos_token_id"]
        beams = searched.get("num_beams", 1)
        own = generate(
            self.ours,
            prompts,
            ends=[] if end is None else [end],
            beam=beams,
            n_best=beams,
            length_penalty=searched.get("length_penalty", 1.0),
            max_length=searched["max_new_tokens"],
            min_length=searched.get("min_new_tokens", 0),
        )
        found = [list(text.tokens) for best in own for text in best.n_best]
        expected = [row[: row.index(end)] if end in row else row for row in generated]
        assert found == expected
        return generated

    def compare_tensors(self):
        """Theirs come back bit for bit."""
        back = self.table.to_theirs(canonical_weights(self.ours))
        assert back.keys() == self.tensors.keys()
        assert all(torch.equal(tensor, self.tensors[name]) for name, tensor in back.items())
        return back

    def compare_export(self, directory):
        """They load what we write, and it is the same model."""
        assert self.module.fits(self.ours.spec)
        back = self.compare_tensors()
        directory.mkdir()
        config = self.module.write_config(self.ours.spec)
        (directory / "config.json").write_text(json.dumps(config))
        written = {name: tensor.contiguous() for name, tensor in back.items()}
        save_file(written, directory / "model.safetensors", metadata={"format": "pt"})
        loaded, told = self.cls.from_pretrained(directory, output_loading_info=True)
        assert not any(told.values()), told
        self.compare_outputs(True, loaded.eval())
        assert self.module.read_config(config, where="config.json") == self.ours.spec

    @staticmethod
    @torch.no_grad()
    def run(model, batch):
        return model(
            input_ids=batch.ids,
            attention_mask=batch.real.long(),
            position_ids=batch.positions.clamp(min=0),
            output_hidden_states=True,
        )


@pytest.fixture(scope="session")
def causal():
    return Causal
