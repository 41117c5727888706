"""What every comparison of a sequence-to-sequence model with transformers does."""

from __future__ import annotations

import inspect
import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from heedful.models.build import canonical_weights, load_weights
from heedful.models.cost import count_parameters
from heedful.models.translator import Translator
from heedful.search.dispatch import search
from heedful.search.search_settings import SearchSettings, Specials

EXACT = {"rtol": 1e-5, "atol": 1e-5}
SOURCES, TARGETS = (7, 4, 1), (6, 2, 5)


def shake(model, seed=0):
    """Make every tensor unlike its first value and unlike any other."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        tensors = [p for p in model.parameters() if p.requires_grad]
        for tensor in [*tensors, *(b for n, b in model.named_buffers() if "logits_bias" in n)]:
            tensor.add_(torch.randn(tensor.shape, generator=draw), alpha=0.3)
    return model.eval()


def saved(model, directory):
    """What is in a model's directory: its configuration and its tensors."""
    model.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    return config, load_file(directory / "model.safetensors")


def imported(module, config, tensors):
    """Our model of their files."""
    spec = module.read_config(config, where="config.json", names=tensors.keys())
    model = Translator(spec)
    ours = module.table(spec, tensors.keys()).to_ours(tensors, where="model.safetensors")
    load_weights(model, ours, where="model.safetensors")
    assert count_parameters(spec) == sum(p.numel() for p in model.parameters())
    return model.eval()


def padded(lengths, vocabulary, pad, *, left=False, seed=0):
    """Random ids [B, L] and positions [B, L], −1 for padding; the same ids on either side."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.full((len(lengths), max(lengths)), pad)
    positions = torch.full_like(tokens, -1)
    for row, length in enumerate(lengths):
        where = slice(max(lengths) - length, None) if left else slice(0, length)
        tokens[row, where] = torch.randint(4, vocabulary - 2, (length,), generator=draw)
        positions[row, where] = torch.arange(length)
    return tokens, positions


@torch.no_grad()
def same_states(theirs, ours, pad, sources=SOURCES, targets=TARGETS):
    """Encoder states and logits, with our padding on either side; theirs on the right."""
    spec = ours.spec
    source, source_positions = padded(sources, spec.source_vocabulary, pad)
    target, target_positions = padded(targets, spec.target_vocabulary, pad, seed=1)
    expected = theirs(
        input_ids=source,
        attention_mask=(source_positions >= 0).long(),
        decoder_input_ids=target,
        decoder_attention_mask=(target_positions >= 0).long(),
    )
    states = expected.encoder_last_hidden_state[source_positions >= 0]
    logits = expected.logits[target_positions >= 0]
    assert states.std() > 0.1 < logits.std()
    for left in (False, True):
        source, source_positions = padded(sources, spec.source_vocabulary, pad, left=left)
        target, target_positions = padded(targets, spec.target_vocabulary, pad, left=left, seed=1)
        memory = ours.encode(source, source_positions)
        torch.testing.assert_close(memory.states[source_positions >= 0], states, **EXACT)
        hidden = ours.decode(memory, target, target_positions)
        found = ours.logits(hidden)[target_positions >= 0]
        torch.testing.assert_close(found, logits, **EXACT)


@torch.no_grad()
def same_steps(theirs, ours, pad, length=6):
    """Logits of each step, with both models' caches."""
    spec = ours.spec
    source, source_positions = padded(SOURCES, spec.source_vocabulary, pad)
    mask = (source_positions >= 0).long()
    target, _ = padded((length,) * len(SOURCES), spec.target_vocabulary, pad, seed=1)
    encoded = theirs.get_encoder()(input_ids=source, attention_mask=mask)
    state, past = ours.start(source, source_positions), None
    # Renamed in transformers 5.24, which warns of the old name; 5.23 knows no other.
    known = inspect.signature(type(theirs).forward).parameters
    name = "cache" if "cache" in known else "past_key_values"
    for t in range(length):
        token = target[:, t : t + 1]
        expected = theirs(
            encoder_outputs=encoded,
            attention_mask=mask,
            decoder_input_ids=token,
            use_cache=True,
            **{name: past},
        )
        past = getattr(expected, name)
        logits, state = ours.step(state, token)
        torch.testing.assert_close(logits, expected.logits, **EXACT)


def same_searches(theirs, ours, *, pad, bos, eos, forced=(), length=9):
    """Greedy search that ends where it will, and all beams of a given length.

    Length is not normalised, as the two do it differently. Of beams of a given length, theirs are
    ranked by log-probability without the forced end, ours with it.
    """
    vocabulary = ours.spec.target_vocabulary
    source, positions = padded((9, 3, 6, 2), ours.spec.source_vocabulary, pad, seed=2)

    def generate(end, **options):
        start = end if bos == eos else bos
        found = theirs.generate(
            input_ids=source,
            attention_mask=(positions >= 0).long(),
            decoder_start_token_id=start,
            eos_token_id=end,
            pad_token_id=pad,
            suppress_tokens=sorted({pad, start} - {end}),
            forced_bos_token_id=forced[0] if forced else None,
            do_sample=False,
            **options,
        )
        return [tuple(row[1:]) for row in found.tolist()]

    def found(end, **options):
        return search(
            ours,
            source,
            positions,
            SearchSettings(length_penalty=0.0, **options),
            specials=Specials(pad=pad, bos=end if bos == eos else bos, eos=end),
            prefixes=[forced] * len(source),
        )

    def ends_itself(rows):
        return min(map(len, rows)) < 2 * length and len(set(rows)) > 1

    # Toy models repeat themselves for ever: let a token end the text that they do generate.
    for end in range(vocabulary):
        greedy = [h[0].tokens for h in found(end, beam=1, max_length=2 * length)]
        if end != pad and ends_itself(greedy):
            break
    assert ends_itself(greedy)
    rows = generate(end, num_beams=1, max_new_tokens=2 * length, forced_eos_token_id=None)
    assert greedy == [row[: row.index(end)] if end in row else row for row in rows]

    beams = generate(
        eos,
        num_beams=4,
        num_return_sequences=4,
        min_new_tokens=length,
        max_new_tokens=length + 1,
        forced_eos_token_id=eos,
        length_penalty=0.0,
    )
    exactly = found(eos, beam=4, n_best=4, min_length=length, max_length=length)
    for row, hypotheses in enumerate(exactly):
        ranked = sorted(hypotheses, key=lambda h: h.token_scores[-1] - h.score)
        expected = [beam[:length] for beam in beams[4 * row : 4 * row + 4]]
        assert [h.tokens for h in ranked] == expected


def same_after_export(module, theirs, ours, tensors, directory):
    """Their tensors bit for bit, and a directory transformers loads, with equal answers."""
    table = module.table(ours.spec, tensors.keys())
    again = table.to_theirs(canonical_weights(ours))
    assert again.keys() - tensors.keys() <= {copy.name for copy in table.copies if copy.written}
    for name, tensor in tensors.items():
        assert torch.equal(again[name], tensor), name

    assert module.fits(ours.spec)
    config = module.write_config(ours.spec)
    assert module.read_config(config, where="", names=tensors.keys()) == ours.spec
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    export = module.table(ours.spec).to_theirs(canonical_weights(ours))
    save_file(export, directory / "model.safetensors", metadata={"format": "pt"})
    loaded, told = type(theirs).from_pretrained(
        directory, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(told.values()), told
    source, _ = padded((5, 5), ours.spec.source_vocabulary, 0)
    target, _ = padded((4, 4), ours.spec.target_vocabulary, 0)
    with torch.no_grad():
        before, after = (
            m.eval()(input_ids=source, decoder_input_ids=target).logits for m in (theirs, loaded)
        )
    assert torch.equal(before, after)


@pytest.fixture(scope="session")
def checks():
    """The functions above."""
    return SimpleNamespace(
        shake=shake,
        saved=saved,
        imported=imported,
        padded=padded,
        same_states=same_states,
        same_steps=same_steps,
        same_searches=same_searches,
        same_after_export=same_after_export,
    )
