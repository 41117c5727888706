"""What people do to a loaded model, one after the other; run by `test_touched_models.py`.

Prints a line for each touch: its name, and `works` (the outputs are those of the definition as it
is now), `refused` (in words), or what is wrong.
"""

import copy
import pickle
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import heedful
from heedful.errors import UserError
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.pipelines.translation import TranslationPipeline

TEXTS = ["abcd", "dcba ab"]


def outputs(pipeline):
    if isinstance(pipeline, TranslationPipeline):
        # One text alone goes another way than several.
        found = [
            *pipeline.translate(TEXTS[:1], max_length=6),
            *pipeline.translate(TEXTS, max_length=6),
        ]
    else:
        found = pipeline.generate(TEXTS, max_length=6)
    return [each.tokens for each in found], torch.tensor([each.score for each in found])


def definition_of(pipeline):
    """The same by the definition's code alone."""
    model = copy.deepcopy(pipeline.model)
    if isinstance(pipeline, TranslationPipeline):
        return TranslationPipeline(model, pipeline.tokenizers)
    return GenerationPipeline(model, pipeline.tokenizer)


def stack(model):
    return list(model.stacks().values())[-1]


def block(model):
    return stack(model).blocks[0]


def large(model):
    return [p for p in model.parameters() if p.dim() > 1]


def refilled(model):
    """Memory without values holds what was there before, at times numbers that are none."""
    with torch.no_grad():
        for each in (*model.parameters(), *model.buffers()):
            each.normal_(std=0.05) if each.is_floating_point() else each.zero_()
    return model


def shaken(model):
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    return model


class Louder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return 3 * self.inner(*args, **kwargs)


def set_data(model):
    for p in large(model):
        p.data = p.data * 0.5


def twice_new_memory(model):
    for _ in range(2):
        set_data(model)


def in_place_past_the_version(model):
    for p in large(model):
        p.data.mul_(0.5)


def one_element(model):
    large(model)[0].data[5, 3] += 2.0


def by_numpy(model):
    large(model)[-1].detach().numpy()[:] *= -1


def exchanged_rows(model):
    p = large(model)[0]
    p.data[[4, 5]] = p.data[[5, 4]].clone()


def trained(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sum(p.square().sum() for p in model.parameters()).backward()
    optimizer.step()
    optimizer.zero_grad()


def other_state(model):
    other = shaken(copy.deepcopy(model))
    model.load_state_dict(other.state_dict())


def assigned_state(model):
    model.load_state_dict(shaken(copy.deepcopy(model)).state_dict(), assign=True)


def columns_first(model):
    p = large(model)[-1]
    p.data = p.data.t().contiguous().t()


def subclass(model):
    network = block(model).feedforward
    kind = type(network)
    network.__class__ = type("Twice", (kind,), {"forward": lambda s, *a: 2 * kind.forward(s, *a)})


def own_forward(model):
    network = block(model).feedforward
    before = network.forward
    network.forward = lambda *args: -before(*args)


def scaled(model):
    block(model).self_attention.scale = 3.0


def emptied(model):
    large(model)[0].untyped_storage().resize_(0)


def shrunk(model):
    large(model)[0].untyped_storage().resize_(8)


def untied_shape(model):
    p = large(model)[-1]
    p.data = torch.zeros(3, 3)


TOUCHES = {
    "looked at": lambda m: sum(p.numel() for p in m.parameters()),
    "shaken": shaken,
    "p.data": set_data,
    "p.data twice": twice_new_memory,
    "p.data in place": in_place_past_the_version,
    "an element": one_element,
    "numpy": by_numpy,
    "rows exchanged": exchanged_rows,
    "trained": trained,
    "own state": lambda m: m.load_state_dict(m.state_dict()),
    "another state": other_state,
    "assigned state": assigned_state,
    "bfloat16": lambda m: m.to(torch.bfloat16),
    "half": lambda m: m.half(),
    "double": lambda m: m.double(),
    "there and back": lambda m: m.double().float(),
    "half a model": lambda m: stack(m).half(),
    "cpu": lambda m: m.cpu(),
    "meta": lambda m: m.to("meta"),
    "to_empty": lambda m: refilled(m.to("meta").to_empty(device="cpu")),
    "emptied": emptied,
    "shrunk": shrunk,
    "wrong shape": untied_shape,
    "columns first": columns_first,
    "shared memory": lambda m: m.share_memory(),
    "train()": lambda m: m.train(),
    "no gradients": lambda m: m.requires_grad_(False),
    # Added and not filled: of equal weights all tokens are equally probable, and rounding decides.
    "apply": lambda m: m.apply(lambda each: [p.data.add_(0.01) for p in each.parameters(False)]),
    "new parameter": lambda m: setattr(
        block(m).feedforward.up, "weight", nn.Parameter(block(m).feedforward.up.weight.detach() * 2)
    ),
    "frozen copy in place": lambda m: stack(m).blocks.__setitem__(0, copy.deepcopy(block(m))),
    "wrapped part": lambda m: setattr(block(m), "feedforward", Louder(block(m).feedforward)),
    "identity": lambda m: stack(m).blocks.__setitem__(0, nn.Identity()),
    "linear": lambda m: setattr(block(m), "feedforward", nn.Linear(32, 32)),
    "block removed": lambda m: stack(m).blocks.__delitem__(0),
    "block added": lambda m: stack(m).blocks.append(copy.deepcopy(block(m))),
    "part removed": lambda m: delattr(block(m), "feedforward"),
    "no stack": lambda m: setattr(m, "decoder", None),
    "subclass": subclass,
    "own forward": own_forward,
    "setting": scaled,
    "hook": lambda m: block(m).register_forward_hook(lambda *a: (3 * a[2][0], a[2][1])),
    "early hook": lambda m: block(m).feedforward.register_forward_pre_hook(
        lambda _, args: (2 * args[0], *args[1:])
    ),
    "weight norm": lambda m: parametrizations.weight_norm(block(m).feedforward.up),
    "pruned": lambda m: prune.l1_unstructured(block(m).feedforward.up, "weight", amount=0.5),
    "parameter removed": lambda m: delattr(block(m).feedforward.up, "weight"),
}


def copied_model(pipeline):
    pipeline.model = shaken(copy.deepcopy(pipeline.model))
    return pipeline


def pickled_model(pipeline):
    pipeline.model = pickle.loads(pickle.dumps(shaken(pipeline.model)))
    return pipeline


def wrong_model(pipeline):
    pipeline.model = nn.Linear(2, 2)
    return pipeline


OF_PIPELINES = {
    "model copied": copied_model,
    "model pickled": pickled_model,
    "another model": wrong_model,
    "pipeline copied": copy.deepcopy,
    "pipeline copied after": lambda p: copy.deepcopy(p) if shaken(p.model) else p,
    "pipeline pickled": lambda p: pickle.loads(pickle.dumps(p)),
    "shallow copy": copy.copy,
}


def tried(pipeline, touch):
    """The outcome of a touch; `touch` gets the pipeline and returns the one to use."""
    before = outputs(pipeline)
    try:
        touched = touch(pipeline)
        found = outputs(touched)
    except UserError:
        return "refused"
    tokens, scores = outputs(definition_of(touched))
    if found[0] != tokens or not torch.allclose(found[1], scores, rtol=2e-2, atol=1e-2):
        return f"wrong: {found} and not {tokens, scores}, before {before}"
    return "works"


def main():
    torch.manual_seed(0)
    path = Path(sys.argv[1])
    for name, touch in TOUCHES.items():
        pipeline = heedful.load(path, device="cpu", precision=sys.argv[2])

        def on_model(pipeline, touch=touch):
            touch(pipeline.model)
            return pipeline

        print(f"{name}: {tried(pipeline, on_model)}", flush=True)
    for name, touch in OF_PIPELINES.items():
        pipeline = heedful.load(path, device="cpu", precision=sys.argv[2])
        print(f"{name}: {tried(pipeline, touch)}", flush=True)


if __name__ == "__main__":
    main()
