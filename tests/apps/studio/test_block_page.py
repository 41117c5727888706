"""The page of a block in a browser: the diagram against the model's spec and the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful import inspect
from heedful.inspect.block_flow import block_flow
from heedful.inspect.residual_stream import contributions
from heedful.models.build import build_model
from heedful.models.checkpoint import load_model, save_model
from heedful.models.model_spec import CausalLMSpec

TEXT = "the cat sat"


def box(page: Any, part: str) -> dict[str, float]:
    """Where the box of a part is."""
    return dict(page.locator(f"[data-part='{part}'] rect").bounding_box())


def drawn_links(page: Any) -> set[tuple[str, str]]:
    links = page.locator("path.flow").evaluate_all(
        "paths => paths.map(path => [path.dataset.from, path.dataset.to])"
    )
    return {(before, after) for before, after in links}


def is_on_stream(page: Any, part: str) -> bool:
    """Whether a box is right below where the stream comes in."""
    return box(page, part)["x"] == pytest.approx(box(page, "input")["x"], abs=1)


def test_diagram_of_a_decoder(visit: Any, given: Any) -> None:
    page = visit.open("block?layer=1&stack=decoder&part=input")
    page.get_by_label("Text", exact=True).fill(TEXT)
    visit.until("document.querySelector('#written').innerText !== ''")
    visit.until("location.search.includes('the+cat')")
    visit.idle()
    subject = inspect.load(given.learned)
    reading = inspect.read(subject, TEXT)
    assert page.locator("#written").inner_text() == (reading.target or "(nothing)")
    found = block_flow(subject, reading, "decoder", 0)
    parts = {part.key: part for part in found.parts}

    # Every part has a box and every reading a line; cross-attention reads the encoder.
    keys = page.locator("[data-part]").evaluate_all("parts => parts.map(p => p.dataset.part)")
    assert keys == list(parts)
    links = {(before, part.key) for part in found.parts for before in part.reads}
    assert drawn_links(page) == links
    assert ("cross.memory", "cross.key") in links

    # The spec says where norms stand: after the sums, on the stream.
    spec = load_model(given.learned)[0].spec
    assert spec.decoder.block.norm_placement == "post"
    for place in ("self", "cross", "feedforward"):
        assert is_on_stream(page, f"{place}.norm")
        assert not is_on_stream(page, f"{place}.output")
        assert box(page, f"{place}.norm")["y"] > box(page, f"{place}.sum")["y"]
    assert "post-norm" in page.locator(".sentence", has_text="Block 1 of").inner_text()

    # A click shows what the library says of a part.
    page.locator("[data-part='cross.key']").click()
    visit.until("location.search.includes('part=cross.key')")
    key = parts["cross.key"]
    shape = inspect.shapes(subject.model, inspect.tensors(subject, [reading]))[key.address]
    assert page.locator("#address").inner_text() == "decoder.0.cross.key"
    assert visit.fact("shape") == " × ".join(map(str, shape))
    assert visit.fact("mean-length") == visit.shown(key.figures["mean length"])
    assert page.locator("#about-part").inner_text() == key.about
    page.locator(".detail summary").click()
    rows = page.locator(".detail tbody tr")
    rows.first.wait_for()
    assert rows.locator("td").all_inner_texts() == [visit.shown(float(x)) for x in key.sizes]
    shown = [piece.replace("\u2581", "·") for piece in reading.encoder.pieces]
    assert rows.locator("th").all_inner_texts() == shown

    # A token's vector is added up in strips: stream, what is added, and the sum.
    names = page.locator("text.addition").evaluate_all("all => all.map(x => x.textContent)")
    added = ("self-attention", "cross-attention", "feed-forward")
    rows_of = [[f"+ {name}", "= sum", "after the norm"] for name in added]
    assert names == ["stream in", *(name for rows in rows_of for name in rows)]
    vectors = {key: part.vectors[1] for key, part in parts.items() if part.vectors is not None}
    channel = int(np.abs(vectors["self.output"][:6]).argmax())
    start, plus, total = (vectors[k][channel] for k in ("input", "self.output", "self.sum"))
    assert start + plus == pytest.approx(total, abs=1e-5)
    sign = "+" if plus >= 0 else "−"
    assert page.locator(".lane-channel").text_content() == f"channel {channel + 1}"
    numbers = page.locator(".addition-number").all_text_contents()
    first, second, third = (
        float(x.strip("= ").replace("−", "-").replace("+ ", "").replace("- ", "-"))
        for x in numbers[:3]
    )
    assert numbers[1].startswith(sign)
    assert (first, second, third) == pytest.approx((start, plus, total), abs=0.006)
    assert first + second == pytest.approx(third, abs=1e-9)  # as it is written, too
    # Its lines are the shares of the first head: back in its own text, to all of the source.
    lines = page.locator(".lane-line[data-share]").evaluate_all(
        "all => all.map(x => x.dataset.share)"
    )
    shares = [*vectors["self.weights"][:2], *vectors["cross.weights"]]
    assert [*map(float, lines)] == pytest.approx([*map(float, shares)], abs=1e-4)
    # Arrow keys go to another cell, and Enter follows its word.
    page.locator(".lanes").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    visit.until("location.search.includes('word=2')")
    word = page.locator(".lane-word.own title").text_content()
    assert word == parts["input"].tokens[2].replace("\u2581", "·")
    page.go_back()
    visit.until("!location.search.includes('word=2')")

    # What it does stands in each sub-layer's band; each vector has a bar, that of the word its own.
    titles = page.locator(".band-title").all_text_contents()
    assert titles == [
        "Masked: each word sees itself and those before it",
        "Cross-attention: the source",
        "Feed-forward: word by word",
    ]
    count, of_source = page.locator(".lane-box").count(), len(parts["cross.memory"].tokens)
    assert 10 < count < len(parts["input"].tokens)  # as many words as have room
    back = count * (count + 1) // 2  # of each word to itself and those before it
    assert page.locator(".lane-line").count() == back + count * of_source + count
    sizes = parts["self.output"].sizes
    output = page.locator("[data-part='self.output']")
    assert output.locator(".bar").count() == len(sizes)
    assert output.locator(".bar.followed").count() == 1
    assert output.locator(".value").text_content() == visit.shown(float(sizes[1]), 3)
    page.locator(".word-row button").nth(2).click()
    visit.until("location.search.includes('word=2')")
    assert output.locator(".value").text_content() == visit.shown(float(sizes[2]), 3)
    # What the word takes from each word, in the first head: from the source in the second.
    cross = page.locator("[data-part='cross.weights']")
    row = parts["cross.weights"].vectors[2]
    best = parts["cross.memory"].tokens[int(row.argmax())].replace("\u2581", "·")
    assert cross.locator(".value").text_content() == f"{best} {100 * row.max():.0f} %"
    rises_of_row = cross.locator(".bar").evaluate_all("all => all.map(bar => bar.getBBox().height)")
    assert sorted(rises_of_row) == pytest.approx(
        sorted(max(0.5, max(rises_of_row) * float(share / row.max())) for share in row), abs=0.1
    )
    # One colour is the followed word's, in its own attention too; bars keep the order of the text.
    weights = page.locator("[data-part='self.weights'] .bar")
    tokens = parts["input"].tokens
    followed = weights.evaluate_all("all => all.map(bar => bar.classList.contains('followed'))")
    assert [i for i, is_own in enumerate(followed) if is_own] == [2]
    assert cross.locator(".bar.followed").count() == 0
    lefts = output.locator(".bar").evaluate_all("all => all.map(bar => bar.getBBox().x)")
    read = output.locator(".bar title").all_text_contents()
    assert lefts == sorted(lefts)
    shown = [each.partition(":")[0].strip("·") for each in read]
    assert shown == [token.strip("\u2581") for token in tokens]
    # Words keep to the scale, whose longest is a full bar; an end of another length is broken.
    marks = [i for i, token in enumerate(tokens) if token.startswith("<")]
    assert output.locator(".bar.apart").count() == len(marks) > 0
    bars = {key: page.locator(f"[data-part='{key}'] .bar:not(.apart)") for key in parts}
    rises = {
        key: bars[key].evaluate_all("all => all.map(bar => bar.getBBox().height)")
        for key, part in parts.items()
        if part.sizes is not None and bars[key].count()
    }
    lengths = {
        key: [float(size) for i, size in enumerate(parts[key].sizes) if i not in marks]
        for key in rises
        if parts[key].tokens == tokens
    }
    scale = max(map(max, rises.values())) / max(map(max, lengths.values()))
    for key, sized in lengths.items():
        assert rises[key] == pytest.approx([scale * size for size in sized], abs=0.6), key

    # The keyboard goes from part to part.
    page.locator("[data-part='input']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    visit.until("document.querySelector('#address').innerText === 'decoder.0.self.query'")
    assert page.evaluate("document.activeElement.dataset.part") == "self.query"
    assert page.locator("[data-part][aria-pressed=true]").get_attribute("data-part") == "self.query"
    page.go_back()
    visit.until("document.querySelector('#address').innerText === 'decoder.0.cross.key'")

    # Step by step through all parts, with what each does to the word in the model's numbers.
    page.locator("[data-part='input']").click()
    said = [page.locator(".walk-block .said").inner_text()]
    while page.get_by_role("button", name="Next", exact=True).is_enabled():
        page.get_by_role("button", name="Next", exact=True).click()
        key = keys[len(said)]
        visit.until(f"document.querySelector('[data-part=\"{key}\"]').ariaPressed === 'true'")
        said.append(page.locator(".walk-block .said").inner_text())
        if key in ("cross.scores", "cross.weights"):
            # The open box has a bar for each word, of what the followed word gives it.
            drawn = page.locator(".inside-bar").evaluate_all("all => all.map(x => x.dataset.value)")
            assert [*map(float, drawn)] == pytest.approx(parts[key].vectors[2].tolist(), abs=1e-4)
        if key == "self.sum":
            rows = page.locator(".inside text").all_text_contents()
            names = [text for text in rows if text[-1].isalpha()]
            assert names == ["stream in", "+ output", "= sum"]
    assert len(said) == len(keys) == len(set(said))
    told_of = dict(zip(keys, said, strict=True))
    assert f"length {visit.shown(float(parts['input'].sizes[2]), 3)}" in told_of["input"]
    assert f"“{best.strip('·')}” {100 * row.max():.0f} %" in told_of["cross.weights"]
    before, after = (visit.shown(float(parts[k].sizes[2]), 3) for k in ("input", "self.sum"))
    assert f"length {before} becomes {after}" in told_of["self.sum"]

    # A word that is chosen goes down its rows, but not for who wants no motion.
    moving = "document.querySelector('.lanes').getAnimations({ subtree: true }).length"
    page.locator(".word-row button").nth(1).click()
    visit.until("location.search.includes('word=1')")
    assert page.evaluate(moving) == 0
    page.emulate_media(reduced_motion="no-preference")
    page.locator(".word-row button").nth(2).click()
    visit.until(f"{moving} > 0")
    visit.until(f"{moving} === 0")
    page.emulate_media(reduced_motion="reduce")


def test_words_that_have_no_room_are_told(visit: Any) -> None:
    page = visit.open("block?model=learned&text=the+cat+sat+the+cat+sat+the+cat&stack=encoder")
    told = page.locator(".lanes + .hint")
    heads = page.locator("figure", has=page.locator(".lanes")).inner_text()
    assert "those of head 1 of 2, and what is added comes from all" in heads
    assert told.count() == 0
    words = page.locator(".lane-word").count()
    page.set_viewport_size({"width": 390, "height": 844})
    told.wait_for()
    assert told.inner_text().startswith(f"{page.locator('.lane-word').count()} of {words} words")


def test_stream(visit: Any, given: Any) -> None:
    page = visit.open("block?model=learned&text=the+cat+sat&stack=decoder")
    page.get_by_text("Through all blocks: what").click()
    subject = inspect.load(given.learned)
    reading = inspect.read(subject, TEXT)
    found = contributions(subject, reading, "decoder")
    share = 100 * found.shares[0].mean()
    assert visit.fact("share-embedding") == f"{visit.shown(float(share), 3)} %"
    figure = page.locator("figure", has_text="By sub-layer and token")
    row = visit.numbers_of(figure, 3)
    np.testing.assert_allclose(read(row), found.shares[3], atol=2e-3)
    for measure, values in (("stream", found.stream_sizes), ("cosine", found.cosines)):
        page.get_by_label("Shown").select_option(measure)
        visit.until(f"location.search.includes('measure={measure}')")
        np.testing.assert_allclose(
            read(visit.numbers_of(figure, 2)), values[2], rtol=1e-2, atol=2e-3
        )
    # The encoder's stream is another, of the text's own pieces.
    page.get_by_label("Stack").select_option("encoder")
    visit.until("document.querySelector('.sentence:not(.own-text)').innerText.includes('encoder')")
    visit.idle()
    encoder = contributions(subject, reading, "encoder")
    share = 100 * encoder.shares[0].mean()
    assert visit.fact("share-embedding") == f"{visit.shown(float(share), 3)} %"
    assert page.locator("[data-part='cross.sum']").count() == 0


def read(cells: list[str]) -> list[float]:
    """Numbers of a table's cells."""
    return [float(cell.replace("−", "-").replace(",", "")) for cell in cells]


def test_diagram_with_norms_first(
    visit_at: Any, serve: Callable[[Any], str], given: Any, tmp_path: Path
) -> None:
    """A language model with norms on the way into its sub-layers, rotary positions and ALiBi."""
    _, tokenizers = load_model(given.learned)
    attention = {
        "num_heads": 4,
        "num_kv_heads": 2,
        "mask": {"kind": "causal"},
        "rotary": {},
        "position_bias": {"kind": "alibi"},
    }
    block = {
        "norm_placement": "pre",
        "norm": {"kind": "rms"},
        "self_attention": attention,
        "feedforward": {"width": 24, "activation": "swiglu"},
    }
    decoder = {"num_layers": 2, "block": block, "final_norm": {"kind": "rms"}}
    values = {"width": 16, "vocabulary": tokenizers.target.size, "decoder": decoder}
    directory = tmp_path / "lm"
    save_model(build_model(CausalLMSpec.parse(values)), tokenizers, directory)
    visit = visit_at(serve([directory]))
    page = visit.open("block?text=a+dog&part=self.norm")
    for place in ("self", "feedforward"):
        assert not is_on_stream(page, f"{place}.norm")
        assert box(page, f"{place}.norm")["y"] < box(page, f"{place}.output")["y"]
    links = drawn_links(page)
    assert {
        ("input", "self.norm"),
        ("self.norm", "self.query"),
        ("self.bias", "self.scores"),
    } <= links
    assert {("input", "self.sum"), ("self.output", "self.sum")} <= links
    assert ("self.norm", "self.sum") not in links
    # A norm tells the lengths of the words before it and after; ends are no words.
    found = block_flow(subject := inspect.load(directory), inspect.read(subject, "a dog"), None, 1)
    parts = {part.key: part for part in found.parts}
    for key, before in (("self.norm", "input"), ("feedforward.norm", "self.sum")):
        ranges = [
            [
                size
                for size, token in zip(parts[name].sizes, found.parts[0].tokens, strict=True)
                if any(letter.isalpha() for letter in token) and token[0] not in "<["
            ]
            for name in (before, key)
        ]
        said = " become ".join(
            f"{visit.shown(min(sizes), 3)}–{visit.shown(max(sizes), 3)}" for sizes in ranges
        )
        assert f"lengths {said}" in page.locator(f"[data-part='{key}']").text_content()
    assert is_on_stream(page, "final.norm")
    assert page.locator("[data-part='cross.query']").count() == 0
    assert page.locator("#about-part").inner_text().startswith("Root-mean-square norm")
    assert page.locator("#address").inner_text() == "decoder.1.self.input"
    page.locator("[data-part='self.key']").click()
    visit.until("document.querySelector('#address').innerText === 'decoder.1.self.key'")
    tokens = len(inspect.read(inspect.load(directory), "a dog").decoder)
    assert visit.fact("shape") == f"1 × 2 × {tokens} × 4"
    assert "rotated by its position" in page.locator("#about-part").inner_text()
    page.get_by_text("Another block", exact=True).click()
    page.get_by_label("Block", exact=True).select_option(index=1)
    visit.until("document.querySelector('#address').innerText === 'decoder.0.self.key'")
    assert page.locator("[data-part='final.norm']").count() == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Type a text"),
        ("\x07\x00", "tokenizer"),
        ("القطة", "Block 2 of|tokenizer"),
        ("🐈‍⬛", "Block 2 of|tokenizer"),
        ("one\ntwo", "several lines"),
        ("x" * 100_000, "100,000 characters"),
    ],
)
def test_any_text_is_answered(visit: Any, text: str, said: str) -> None:
    page = visit.open("block?model=learned&text=a+dog&stack=decoder")
    page.get_by_label("Text", exact=True).fill(text)
    page.wait_for_function(
        "said => new RegExp(said).test(document.querySelector('.result').innerText)", arg=said
    )
    page.get_by_label("Text", exact=True).fill(TEXT)
    visit.until("document.querySelectorAll('.problem').length === 0")
    visit.until("document.querySelectorAll('[data-part]').length > 20")


def test_a_wrong_address_says_so(visit: Any) -> None:
    page = visit.open("block?model=learned&text=a+dog&layer=7&stack=decoder")
    page.wait_for_selector(".problem")
    assert "Indices go from 0 to 1" in page.locator(".problem").inner_text()
    page = visit.open("block?model=elsewhere&text=a+dog")
    page.wait_for_selector(".problem")
    assert "elsewhere" in page.locator(".problem").first.inner_text()
