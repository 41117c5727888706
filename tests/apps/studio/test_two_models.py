"""Page "Translate" with a second model beside the first."""

from __future__ import annotations

from typing import Any

from heedful.pipelines.translation import TranslationPipeline

TEXT = "the cat sat"


def test_two_models_translate_the_same_text(visit: Any, given: Any) -> None:
    page = visit.open(f"translate?model=learned&text={TEXT}&beam=2")
    assert not page.get_by_role("heading", name="Two models side by side").is_visible()
    page.get_by_label("Another model beside it").select_option("t5")
    page.get_by_role("heading", name="Two models side by side").wait_for()
    visit.idle()
    assert "beside=t5" in visit.address()
    texts = {}
    for name, path in (("learned", given.learned), ("t5", given.t5)):
        (expected,) = TranslationPipeline.load(path).translate([TEXT], beam=2)
        host = page.locator(f"[data-model={name}]")
        texts[name] = str(expected).split()
        assert host.locator(".text").inner_text().split() == texts[name]
        assert f"log-probability {visit.shown(expected.score)}," in host.inner_text()
    # What is marked is what the other one lacks.
    for name, other in (("learned", "t5"), ("t5", "learned")):
        marked = page.locator(f"[data-model={name}] mark").all_inner_texts()
        rest = list(texts[other])
        expected_marks = []
        for word in texts[name]:
            if word in rest:
                rest.remove(word)
            else:
                expected_marks.append(word)
        assert marked == expected_marks

    page.get_by_label("Text to translate").fill("a dog ran")
    (expected,) = TranslationPipeline.load(given.t5).translate(["a dog ran"], beam=2)
    page.locator("[data-model=t5] .text", has_text=str(expected)).wait_for()
    visit.idle()
    page.get_by_label("Another model beside it").select_option(label="none")
    visit.until("!document.querySelector('[data-model]')?.checkVisibility()")
