"""Adapters of PEFT, read and written: compared with the package where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from heedful.apps.export.peft_format import CONFIG_NAME, WEIGHTS_NAME, read_peft, write_peft
from heedful.errors import ModelError
from heedful.interop.architecture import find_architecture
from heedful.train.lora import Adapter, fingerprint

LLAMA = LlamaConfig(
    vocab_size=20,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
GPT2 = GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=4, n_positions=12)
T5 = T5Config(vocab_size=20, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4)
BERT = BertConfig(
    vocab_size=20,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=12,
)
MODELS = {
    "llama": (LlamaForCausalLM, LLAMA, ["q_proj", "v_proj", "down_proj"]),
    "gpt2": (GPT2LMHeadModel, GPT2, ["c_attn", "c_fc"]),
    "t5": (T5ForConditionalGeneration, T5, ["q", "wo"]),
    "bert": (BertModel, BERT, ["query", "output.dense"]),
}


class Toy:
    """A model of theirs with random weights, its spec and weights here, and its tensors there."""

    def __init__(self, model_type: str) -> None:
        torch.manual_seed(3)
        cls, config, self.targets = MODELS[model_type]
        self.theirs: Any = cls(config).eval()
        self.model_type = model_type
        self.architecture = find_architecture(model_type, where="")
        self.state = {name: t.detach().clone() for name, t in self.theirs.state_dict().items()}
        fields = json.loads(config.to_json_string(use_diff=False))
        self.spec = self.architecture.read_config(fields, where="", names=self.state.keys())

    def ours(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.architecture.table(self.spec, state.keys()).to_ours(state, where="")


def adapter(toy: Toy, folder: Path) -> Adapter:
    scale, tensors = read_peft(folder, toy.spec, toy.model_type)
    weights = toy.ours(toy.state)
    changed = {name.removesuffix(".up") for name in tensors if name.endswith(".up")}
    base = fingerprint({name: weights[f"{name}.weight"] for name in changed})
    return Adapter(toy.spec, scale, base, {}, tensors, None)


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name].float(), b[name].float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_an_adapter_of_the_package_changes_ours_as_theirs(
    model_type: str, rslora: bool, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    toy = Toy(model_type)
    first = toy.targets[0]
    config = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=toy.targets, init_lora_weights=False, use_rslora=rslora,
        rank_pattern={first: 2}, alpha_pattern={first: 7},
    )  # fmt: skip
    adapted = peft.get_peft_model(toy.theirs, config)
    adapted.save_pretrained(tmp_path)
    merged = adapted.merge_and_unload().state_dict()
    weights = adapter(toy, tmp_path).applied(toy.ours(toy.state), where="")
    close(weights, toy.ours(dict(merged)))


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "t5"])
@pytest.mark.filterwarnings("ignore")
def test_the_package_reads_what_is_written(model_type: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    toy = Toy(model_type)
    weights = toy.ours(toy.state)
    # Of queries and values only: GPT-2 has both, and the keys, in one matrix.
    names = [
        n.removesuffix(".weight") for n in weights if n.endswith(("query.weight", "up.weight"))
    ]
    names += [name.replace("query", "value") for name in names if "query" in name][:1]
    tensors = {}
    for number, name in enumerate(names):
        rows, columns = weights[f"{name}.weight"].shape
        rank = 2 + number % 2
        tensors[f"{name}.down"] = torch.randn(rank, columns)
        tensors[f"{name}.up"] = torch.randn(rows, rank)
    out = tmp_path / "out"
    assert write_peft(tensors, 0.5, toy.spec, {"model_type": model_type}, out) == model_type
    theirs = peft.PeftModel.from_pretrained(toy.theirs, str(out)).merge_and_unload().state_dict()
    applied = adapter(toy, out).applied(weights, where="")
    close(toy.ours(dict(theirs)), applied)
    by_hand = dict(weights)
    for name in names:
        product = tensors[f"{name}.up"] @ tensors[f"{name}.down"]
        by_hand[f"{name}.weight"] = by_hand[f"{name}.weight"] + 0.5 * product
    close(applied, by_hand)


def written(toy: Toy, folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """An adapter of one matrix, as the package writes it."""
    module = "base_model.model.model.layers.1.self_attn.q_proj"
    tensors = {
        f"{module}.lora_A.weight": torch.randn(2, 16),
        f"{module}.lora_B.weight": torch.randn(16, 2),
    }
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "use_dora": False}
    save_files(folder, config, tensors)
    return config, tensors


def save_files(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / CONFIG_NAME).write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, str(folder / WEIGHTS_NAME))


def test_files_read_and_written_are_the_same(tmp_path: Path) -> None:
    toy = Toy("llama")
    _, tensors = written(toy, tmp_path / "in")
    scale, ours = read_peft(tmp_path / "in", toy.spec, "llama")
    assert scale == 2
    write_peft(
        ours, scale, toy.spec, {"model_type": "llama", "repository": "a/b"}, tmp_path / "out"
    )
    close(load_file(tmp_path / "out" / WEIGHTS_NAME), tensors)
    config = json.loads((tmp_path / "out" / CONFIG_NAME).read_text())
    assert config["target_modules"] == ["model.layers.1.self_attn.q_proj"]
    assert (config["r"], config["lora_alpha"]) == (2, 4)
    assert (config["task_type"], config["base_model_name_or_path"]) == ("CAUSAL_LM", "a/b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "use_dora = True"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
        ({"a_setting_of_2030": 3}, "a_setting_of_2030 = 3"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
        ({"r": 0}, "r is 0"),
    ],
)
def test_what_would_be_ignored_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    toy = Toy("llama")
    config, tensors = written(toy, tmp_path)
    save_files(tmp_path, config | change, tensors)
    with pytest.raises(ModelError, match=message):
        read_peft(tmp_path, toy.spec, "llama")


def test_tensors_without_a_matrix_are_named(tmp_path: Path) -> None:
    toy = Toy("llama")
    config, tensors = written(toy, tmp_path)
    save_files(tmp_path, config, tensors | {"base_model.model.score.weight": torch.ones(2, 16)})
    with pytest.raises(ModelError, match=r"without a matrix here: base_model.model.score.weight"):
        read_peft(tmp_path, toy.spec, "llama")
    with pytest.raises(ModelError, match=r"no low-rank updates: embedding.weight.rows"):
        write_peft({"embedding.weight.rows": torch.ones(1, 16)}, 1.0, toy.spec, {}, tmp_path / "o")
