"""Average attention and SSRU by kernels in C: what the definition gives, however it is asked."""

from __future__ import annotations

import pytest
import torch

from heedful.apps.pruning import ablated
from heedful.device import Precision
from heedful.engines.class_exchange import computed_by_definition
from heedful.engines.inference.cpu_model import share_weights
from heedful.engines.inference.lowering import Unsupported
from heedful.engines.inference.prepare import prepare
from heedful.kernels import library
from heedful.models.causal_lm import CausalLM
from heedful.models.model_spec import CausalLMSpec, TranslatorSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.models.translator import Translator
from heedful.nn.attention.masks import Causal
from heedful.nn.capture import Capture
from heedful.nn.mixer_spec import AverageAttentionSpec, SSRUSpec
from heedful.nn.spec import AttentionSpec, FeedForwardSpec, NormSpec

from . import searches
from .searches import ids, padded

pytestmark = pytest.mark.skipif(library.kernels() is None, reason="no kernels were compiled here")

WIDTH = 64
PRE = {"norm_placement": "pre", "norm": NormSpec(kind="rms")}
PATTERNS = {
    "average": [AverageAttentionSpec()],
    "average, pre-norm": [AverageAttentionSpec(feedforward=20)],
    "average alone": [AverageAttentionSpec(feedforward=0, gate=False)],
    "gates alone, pre-norm": [AverageAttentionSpec(feedforward=0)],
    "SSRU": [SSRUSpec()],
    "SSRU, pre-norm": [SSRUSpec(bias=False)],
    "mixed": [SSRUSpec(), AttentionSpec(num_heads=4, mask=Causal()), AverageAttentionSpec()],
}


def stack(name: str, *, reads: bool) -> StackSpec:
    more = {"cross_attention": AttentionSpec(num_heads=4)} if reads else {}
    if name.endswith("pre-norm"):
        more |= PRE
    network = FeedForwardSpec(width=72)
    blocks = [BlockSpec.of(self_attention=m, feedforward=network, **more) for m in PATTERNS[name]]
    return StackSpec(num_layers=max(2, len(blocks)), pattern=tuple(blocks))


def shaken(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def translator(name: str) -> Translator:
    torch.manual_seed(0)
    block = BlockSpec.of(
        self_attention=AttentionSpec(num_heads=4), feedforward=FeedForwardSpec(width=72)
    )
    spec = TranslatorSpec(
        width=WIDTH,
        source_vocabulary=50,
        target_vocabulary=50,
        encoder=StackSpec.of(num_layers=1, block=block),
        decoder=stack(name, reads=True),
    )
    return shaken(Translator(spec))


def language_model(name: str) -> CausalLM:
    torch.manual_seed(0)
    return shaken(
        CausalLM(CausalLMSpec(width=WIDTH, vocabulary=50, decoder=stack(name, reads=False)))
    )


def searched(model: Translator) -> list[torch.Tensor]:
    """Logits of a search of four sentences."""
    source, positions = ids(4, 6, seed=5), padded([6, 4, 1, 5], 6)
    reorders = {0: [[0] * 3, [1] * 3, [2] * 3, [3] * 3], 2: [[1, 0, 1], [9, 11, 10]], 4: [[4, 3]]}
    return searches.searched(model, source, positions, reorders, 7)[0]


def assert_near(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=2e-5)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("name", PATTERNS)
@torch.inference_mode()
def test_a_search_gives_the_logits_of_the_definition(name, monkeypatch):
    plain = translator(name)
    engine = prepare(plain, Precision("fp32", "cpu"))
    for block in engine.decoder.blocks:  # nothing is left to the definition
        monkeypatch.setattr(block, "forward", None)
    found = searched(engine)
    assert_near(found, searched(plain))
    monkeypatch.setattr(engine.decoder, "program", None)
    assert all(map(torch.equal, found, searched(engine)))


@pytest.mark.parametrize("name", PATTERNS)
@torch.inference_mode()
def test_8_bits_are_those_of_the_packed_layers(name):
    if not library.has_int8_kernels():
        pytest.skip("no kernels for 8-bit products here")
    engine = prepare(translator(name), Precision("int8", "cpu"))
    found = searched(engine)
    with computed_by_definition(engine):
        assert_near(found, searched(engine))
    exact = searched(translator(name))
    assert all((one - two).abs().max() > 1e-3 for one, two in zip(found, exact, strict=True))


@pytest.mark.parametrize("name", ["average", "SSRU, pre-norm"])
@torch.inference_mode()
def test_bfloat16_rounds_weights_and_no_states(name):
    plain = translator(name)
    engine = prepare(plain, Precision("bf16", "cpu"))
    source, positions = ids(1, 3, seed=1), padded([3], 3, "right")
    _, state = engine.step(engine.start(source, positions), torch.full((1, 1), 7))
    assert state.decoder.blocks[0][0].tensors[0].dtype == torch.float32
    for one, two in zip(searched(engine), searched(plain), strict=True):
        error = (one - two).abs().mean() / two.std()
        assert 1e-4 < error < 0.02  # bfloat16 has 8 bits: 0.4 %


@pytest.mark.parametrize("name", ["average", "SSRU, pre-norm", "mixed"])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.inference_mode()
def test_whole_targets_with_padding(name, side):
    plain = translator(name)
    engine = prepare(plain, Precision("fp32", "cpu"))
    source, places = ids(3, 5, seed=1), padded([5, 2, 3], 5, "right")
    target, positions = ids(3, 6, seed=2), padded([2, 6, 1], 6, side)
    real = positions >= 0
    found = [m.decode(m.encode(source, places), target, positions)[real] for m in (engine, plain)]
    assert_near([found[0]], [found[1]])


@pytest.mark.parametrize("name", ["average, pre-norm", "SSRU", "mixed"])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.inference_mode()
def test_a_prompt_is_read_in_pieces_and_continued(name, side):
    plain = language_model(name)
    engine = prepare(plain, Precision("fp32", "cpu"))
    prompt, positions = ids(3, 7, seed=2), padded([7, 2, 5], 7, side)
    found: list[list[torch.Tensor]] = []
    for model in (engine, plain):
        state, tokens, logits = model.start(prompt, positions, chunk=3), ids(3, 1, seed=4), []
        for step in range(4):
            scores, state = model.step(state, tokens)
            logits.append(scores)
            if step == 1:
                rows = torch.tensor([[0, 0, 0], [2, 2, 2]])
                state, tokens = model.reorder(state, rows), ids(2, 3, seed=6)
        found.append(logits)
    assert_near(*found)
    state, tokens = engine.start(prompt, positions), ids(3, 1, seed=4)
    _, same = engine.extend(state, prompt[:, :0], positions[:, :0])
    assert torch.equal(engine.step(same, tokens)[0], engine.step(state, tokens)[0])


@torch.inference_mode()
def test_a_layer_that_does_not_read_the_source():
    spec = translator("SSRU").spec
    alone = BlockSpec.of(self_attention=SSRUSpec(), feedforward=FeedForwardSpec(width=72))
    decoder = StackSpec(num_layers=2, pattern=(spec.decoder.pattern[0], alone))
    spec = spec.model_copy(update={"decoder": decoder})
    plain = shaken(Translator(spec))
    engine = prepare(plain, Precision("fp32", "cpu"))
    assert engine.decoder.program is not None
    assert_near(searched(engine), searched(plain))
    with pytest.raises(Unsupported):
        share_weights(engine)


@torch.inference_mode()
def test_texts_that_share_a_row_do_not_see_each_other():
    plain = language_model("SSRU")
    engine = prepare(plain, Precision("fp32", "cpu"))
    tokens, positions = ids(1, 5, seed=2), torch.tensor([[0, 1, 2, 0, 1]])
    segments = torch.tensor([[0, 0, 0, 1, 1]])
    whole = engine(tokens, positions, segments)
    assert_near([whole], [plain(tokens, positions, segments)])
    assert_near([whole[:, 3:]], [engine(tokens[:, 3:], positions[:, 3:])])


@torch.inference_mode()
def test_a_state_is_a_value():
    engine = prepare(translator("average"), Precision("fp32", "cpu"))
    source, positions = ids(2, 6, seed=3), padded([6, 4], 6, "right")
    _, state = engine.step(engine.start(source, positions), torch.full((2, 1), 2))
    state = engine.reorder(state, torch.tensor([[0, 0], [1, 1]]))
    one, two = ids(2, 2, seed=8), ids(2, 2, seed=9)
    _, first = engine.step(state, one)
    alone, _ = engine.step(first, two)
    _, second = engine.step(state, two)
    assert torch.equal(engine.step(first, two)[0], alone)
    assert not torch.equal(engine.step(second, two)[0], alone)


@torch.inference_mode()
def test_blocks_that_are_looked_into_are_computed_by_the_definition():
    plain = translator("average")
    engine = prepare(plain, Precision("fp32", "cpu"))
    source, places = ids(2, 5, seed=1), padded([5, 3], 5, "right")
    target, positions = ids(2, 4, seed=2), padded([4, 2], 4, "right")
    real = positions >= 0
    wanted = ["decoder.0.cross.weights", "decoder.1.mixer.gate"]
    found = []
    for model in (engine, plain):
        capture = Capture(wanted)
        model.decode(model.encode(source, places), target, positions, capture)
        weights, gate = (capture.found[name] for name in wanted)
        found.append([weights.transpose(1, 2)[real], gate[real]])
    assert_near(*found)
    whole = engine.decode(engine.encode(source, places), target, positions)[real]
    found = []
    for model in (engine, plain):
        with ablated(model, "decoder.0.mixer"):
            found.append(model.decode(model.encode(source, places), target, positions)[real])
    assert_near([found[0]], [found[1]])
    assert not torch.allclose(found[0], whole)


@torch.inference_mode()
def test_nothing_is_kept_of_each_token():
    """Without attention a search has no slots that beams share; with it, it has."""
    source, positions = ids(1, 3, seed=1), padded([3], 3, "right")
    for name, shares in (("SSRU", False), ("mixed", True)):
        model = translator(name)
        state = model.start(source, positions)
        assert (state.decoder.lineage is not None) == shares
        sizes = []
        for _ in range(2):
            _, state = model.step(state, torch.full((1, 1), 7))
            tensors = (state.decoder.blocks[0][0].tensors, state.memory_positions)
            sizes.append(sum(each.numel() for each in (*tensors[0], tensors[1])))
        assert sizes[0] == sizes[1]
