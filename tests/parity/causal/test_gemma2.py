"""Gemma 2's directories: the same numbers as `transformers`, in and out, to 1e-5 in float32."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from heedful.device import Precision
from heedful.engines.inference.prepare import prepare
from heedful.engines.inference.support import cpu_refusals
from heedful.errors import ModelError
from heedful.interop.architectures.decoders.gemma2 import ARCHITECTURE as gemma2
from heedful.interop.architectures.decoders.llama import ARCHITECTURE as llama
from heedful.interop.hugging_face import export_model, import_model
from heedful.interop.model_loading import load_any
from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import save_model
from heedful.pipelines.text_generation import generate

WINDOW = 3
SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "sliding_window": WINDOW,
    "pad_token_id": 0,
    "attn_implementation": "eager",
}
CASES = {
    "as published": {"query_pre_attn_scalar": 6},
    "low caps, untied, biases": {
        "attn_logit_softcapping": 0.7,
        "final_logit_softcapping": 2.0,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "rms_norm_eps": 1e-3,
    },
    "no caps, windows in the last layers": {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2,
        "hidden_activation": "silu",
    },
}


@pytest.fixture(scope="module", params=CASES)
def case(request, causal, tmp_path_factory):
    import transformers

    config = transformers.Gemma2Config(**SIZES, **CASES[request.param])
    cls = transformers.Gemma2ForCausalLM
    return causal(gemma2, cls, config, tmp_path_factory.mktemp("gemma2"))


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_outputs_are_theirs(case, left):
    case.compare_outputs(left)


def test_outputs_from_a_cache_are_theirs(case):
    case.compare_cached(True, 3, "growing")


def test_texts_longer_than_the_window_are_theirs(case):
    case.compare_texts(eos_token_id=None, max_new_tokens=4 * WINDOW)


def test_what_is_written_is_what_was_read(case, tmp_path):
    case.compare_export(tmp_path / "out")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_directory_read_written_and_read_again_is_the_same(tmp_path, dtype):
    import tokenizers
    import transformers

    path, ours, out = (tmp_path / name for name in ("theirs", "ours", "out"))
    config = transformers.Gemma2Config(**SIZES | {"vocab_size": 257})
    torch.manual_seed(0)
    model = transformers.Gemma2ForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=1e-3)  # 1 + w would round most of these
    model.to(dtype).save_pretrained(path)
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    names = [*sorted(byte_level.alphabet()), "<eos>"]
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={name: id for id, name in enumerate(names)}, merges=[])
    )
    library.pre_tokenizer = byte_level(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens(["<eos>"])
    library.save(str(path / "tokenizer.json"))
    first = import_model(path, keep_dtype=True)
    save_model(first.model, first.tokenizers, ours, origin=first.origin)
    export_model(ours, out)
    tensors = [load_file(each / "model.safetensors") for each in (path, out)]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())
    again, _ = load_any(out)
    assert again.spec == first.spec
    assert transformers.Gemma2ForCausalLM.from_pretrained(out).config.sliding_window == WINDOW


def test_it_is_none_of_llamas(case):
    assert not llama.fits(case.ours.spec)


@torch.no_grad()
def test_greedy_steps_past_the_window_are_those_of_a_whole_pass(case):
    (best,) = generate(case.ours, [[5, 9, 3]], ends=[], max_length=5 * WINDOW)
    text = [5, 9, 3, *best.n_best[0].tokens]
    assert len(text) == 3 + 5 * WINDOW
    ids = torch.tensor([text])
    logits = case.ours.logits(case.ours(ids, torch.arange(len(text))[None]))
    assert logits[0, 2:-1].argmax(-1).tolist() == text[3:]


@torch.no_grad()
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_an_engine_computes_the_same_and_names_what_kernels_do_not(case, precision):
    named = {each.field.rpartition(".")[-1] for each in cpu_refusals(case.ours.spec)}
    expected = {"norm_placement", "unit_offset"}
    capped = case.config["attn_logit_softcapping"] is not None
    assert named >= expected | ({"softcap"} if capped else set())
    engine = prepare(case.ours, Precision(precision, "cpu"))
    ids, positions = torch.tensor([[5, 9, 3, 7, 2, 8]]), torch.arange(6)[None]
    expected = case.ours.logits(case.ours(ids, positions))[0]
    state = engine.start(ids[:, :0], positions[:, :0])
    steps = []
    for token in ids[0]:
        logits, state = engine.step(state, token.view(1, 1))
        steps.append(logits[0, 0])
    tolerance = {"fp32": 1e-5, "bf16": 0.2, "int8": 0.2}[precision]
    torch.testing.assert_close(torch.stack(steps), expected, rtol=tolerance, atol=tolerance)


def test_embeddings_of_16_bits_are_theirs_to_the_bit(case):
    theirs = case.theirs.model.embed_tokens
    table = CausalLM(case.ours.spec)
    table.load_state_dict(case.ours.state_dict())
    table.bfloat16()
    ids = torch.arange(50)[None]
    expected = type(theirs)(50, 24, 0, embed_scale=24**0.5)
    expected.load_state_dict(theirs.state_dict())
    found = table.input(ids, torch.arange(50)[None], table.embedding)
    assert torch.equal(found, expected.bfloat16()(ids))


def test_files_mean_what_their_class_does_without_a_setting():
    sizes = {"num_hidden_layers": 3}
    spec = gemma2.read_config(sizes, where="config.json")
    attention = spec.decoder.blocks[0].self_attention
    assert (attention.softcap, spec.logits_softcap, spec.tied) == (50.0, 30.0, True)
    assert attention.scale == pytest.approx(1 / 16)
    masks = [block.self_attention.mask.kind for block in spec.decoder.blocks]
    assert masks == ["all_of", "causal", "all_of"]
    assert spec.decoder.blocks[0].feedforward.activation == "geglu_tanh"


@pytest.mark.parametrize(
    "wrong",
    [
        {"use_bidirectional_attention": True},
        {"hidden_activation": "tanh"},
        {"final_logit_softcapping": "high"},
        {"layer_types": ["chunked_attention"] * 4},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ModelError, match=next(iter(wrong))):
        gemma2.read_config({**SIZES, **wrong}, where="config.json")
