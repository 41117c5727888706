"""Every page in Firefox: it draws, says nothing in the console, and asks nobody else."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from heedful.apps.studio.pages import PAGES
from heedful.pretrained.catalogue import models_at_hand

from .conftest import write_run
from .firefox import DRAWING, PROBLEMS, Firefox, path_of_firefox, window


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    if path_of_firefox() is None:
        pytest.skip("there is no Firefox: install Debian's with `apt-get install -y firefox-esr`")
    with window(tmp_path_factory.mktemp("firefox")) as opened:
        yield opened


@pytest.mark.parametrize("name", ["", *(page.name for page in PAGES)])
def test_a_page_in_firefox(firefox: Firefox, home: str, name: str) -> None:
    firefox.events.clear()
    firefox.open(home + name)
    assert firefox.value(PROBLEMS) == ""
    assert firefox.value("document.querySelector('h1').textContent.length") > 0
    said = [each["params"] for each in firefox.events if each["method"] == "log.entryAdded"]
    assert [each["text"] for each in said if each["level"] in ("warn", "error")] == []
    asked = [
        each["params"]["request"]["url"]
        for each in firefox.events
        if each["method"] == "network.beforeRequestSent"
    ]
    assert [url for url in asked if not url.startswith((home, "data:"))] == []


def test_a_slider_moves_the_picture_in_firefox(firefox: Firefox, home: str) -> None:
    firefox.open(home + "scale?width=64")
    before = firefox.value("document.querySelector('main svg').outerHTML")
    firefox.command(
        "script.evaluate",
        expression="""
          const slider = document.querySelector('input[type=range]');
          slider.value = slider.max;
          slider.dispatchEvent(new Event('input', { bubbles: true }));
        """,
        target={"context": firefox.window},
        awaitPromise=False,
    )
    deadline = time.monotonic() + DRAWING
    while firefox.value("document.querySelector('main svg').outerHTML") == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert firefox.value(PROBLEMS) == ""


def test_a_picture_is_completed_and_looked_into_in_firefox(firefox: Firefox, home: str) -> None:
    if "digit-pixels" not in models_at_hand():
        pytest.skip("digit-pixels is not at hand")
    firefox.open(home + "everywhere?records=digit-pixels")
    chips = "[...document.querySelectorAll('[aria-label=Tokens] .token')]"
    wait_for(firefox, f"{chips}.length === 197")
    assert firefox.value(f"{chips}.filter((each) => each.matches('.written')).length") == 98
    legend = "document.querySelector('.samples .key').textContent"
    words = "document.querySelector('.samples figure:last-child figcaption').textContent"
    wait_for(firefox, f"{words}.startsWith('From row')")
    before = firefox.value(legend)
    firefox.value(f"{chips}[120].click()")
    wait_for(firefox, f"{words}.startsWith('From row 9, column 8')")
    assert firefox.value(legend) != before
    assert "token=120" in firefox.value("location.search")
    drawn = f"{chips}.map((each) => each.textContent).join()"
    first = firefox.value(drawn)
    firefox.value(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Another').click()"
    )
    wait_for(firefox, f"{drawn} !== {json.dumps(first)}")
    assert firefox.value(PROBLEMS) == ""


def test_it_means_the_cat_in_firefox(firefox: Firefox, home: str) -> None:
    firefox.open(home + "steps?stage=4")
    firefox.value("""
      const example = document.querySelector('#example');
      example.value = 'it';
      example.dispatchEvent(new Event('change', { bubbles: true }));
    """)
    wait_for(firefox, "document.querySelector('main').innerText.includes('0.872')")
    words = firefox.value("document.querySelector('main').innerText")
    assert re.search(r"mat\s+e\S+ − \S+ ÷ 1.146 = 0.1353 ÷ 1.146\s+=\s+0.118", words)
    assert re.search(r"cat\s+e\S+ − \S+ ÷ 1.146 = 1 ÷ 1.146\s+=\s+0.8723", words)


def test_pages_open_on_the_head_that_the_card_points_at(firefox: Firefox, home: str) -> None:
    noted = models_at_hand()["en-de"].card().noted_head
    if noted is None:
        pytest.skip("the card of en-de points at no head")
    firefox.open(home + "attention?model=en-de")
    pressed = "[...document.querySelectorAll('[aria-pressed=true]')]"
    wait_for(firefox, f"{pressed}.some((each) => each.textContent === '·{noted.word}')")
    name = f"Layer {noted.layer}, head {noted.head}"
    wait_for(firefox, f"{pressed}.some((each) => each.title.startsWith('{name}'))")
    part = {"cross": "Cross-attention"}.get(noted.part, noted.part.title())
    title = f"{part}, layer {noted.layer}, head {noted.head}"
    assert firefox.value("document.querySelector('figure h3').textContent") == title
    firefox.open(home + "block?model=en-de&part=self.output")
    words = firefox.value("document.querySelector('main').innerText")
    stack = "encoder" if noted.part == "cross" else noted.part
    block = r"\d" if noted.part == "cross" else noted.layer  # the encoder's own, or the noted one
    assert re.search(rf"Block {block} of \d of the {stack}", words)
    place = re.search(r"In Python \(from 0\): (\w+)\.(\d)", words)
    assert place
    assert place[1] == stack
    assert f"Block {int(place[2]) + 1} of" in words
    # A model of the address has a block of its own.
    other = models_at_hand()["english"].card().noted_head
    firefox.open(home + "block?model=english")
    title = f"Block {other.layer} of 6 of the {other.part}"
    wait_for(firefox, f"document.querySelector('figure h3').textContent === '{title}'")


def test_heads_are_named_by_relations_of_words_in_firefox(firefox: Firefox, home: str) -> None:
    cards = {name: each.card() for name, each in models_at_hand().items() if name != "en-de"}
    clear = {
        name: [head for head in card.noted_heads if head.gain[0] > 0]
        for name, card in cards.items()
        if card.noted_head is not None
    }
    model = next(name for name, heads in clear.items() if heads)
    noted = cards[model].noted_head
    assert noted is not None
    most = next(x for x in clear[model] if (x.layer, x.head) == (noted.layer, noted.head))
    firefox.open(f"{home}attention?model={model}")
    pressed = "[...document.querySelectorAll('.head[aria-pressed=true]')]"
    wait_for(
        firefox, f"{pressed}.map((each) => each.textContent).join().includes('{most.relation}')"
    )
    assert f"{most.count:,} words" in firefox.value("document.querySelector('.pair').textContent")
    last = clear[model][-1]
    firefox.value("document.querySelectorAll('.chapter-fold').forEach((e) => { e.open = true; })")
    row = (
        f"[...document.querySelectorAll('tr')].find((r) => r.innerText.includes('{last.relation}'))"
    )
    assert firefox.value(f"{row}.innerText").split("\t")[1] == f"{last.layer}.{last.head}"
    firefox.value(f"{row}.querySelector('button').click()")
    wait_for(
        firefox, f"{pressed}.map((each) => each.textContent).join().includes('{last.relation}')"
    )
    assert f"layer {last.layer}" in firefox.value("document.querySelector('figure h3').textContent")
    assert firefox.value(PROBLEMS) == ""


def test_a_probability_is_a_bar_of_its_own_length_in_firefox(firefox: Firefox, home: str) -> None:
    firefox.open(home + "tour?model=en-de&stop=13")
    wait_for(firefox, "document.querySelector('.way-next .count') !== null")
    shares = firefox.value(
        """[...document.querySelectorAll('.way-next button')].map((each) => {
          const part = parseFloat(each.querySelector('.bar').style.width);
          return Math.abs(part - parseFloat(each.querySelector('.count').textContent)) < 0.1;
        }).join()"""
    )
    assert set(shares.split(",")) == {"true"}


def test_the_sum_of_the_tour_has_one_scale_in_firefox(firefox: Firefox, home: str) -> None:
    firefox.open(home + "tour?model=en-de&stop=2")
    wait_for(firefox, "document.querySelector('.way-legend') !== null")
    end = float(firefox.value("parseFloat(document.querySelector('.way-legend').textContent)"))
    walk = "fetch('/api/tour/walk', {method: 'POST', headers: {'Content-Type': 'application/json'},"
    body = (
        "body: JSON.stringify({model: 'en-de', text: document.querySelector('textarea').value})})"
    )
    most = "Math.max(...[...w.tokens, ...w.positions, ...w.embedding].flat().map(Math.abs))"
    found = firefox.value(f"{walk} {body}.then((answer) => answer.json()).then((w) => {most})")
    assert end == pytest.approx(found, abs=0.06)
    firefox.open(home + "tour?model=en-de")
    wait_for(firefox, "document.querySelectorAll('.model-box').length > 5")


@pytest.mark.parametrize(
    ("value", "written"),
    [("3.2e-9", "3.20 · 10⁻⁹"), ("-4.5e12", "−4.50 · 10¹²"), ("0.25", "0.25"), ("1234", "1,234")],
)
def test_numbers_are_written_for_people_in_firefox(
    firefox: Firefox, home: str, value: str, written: str
) -> None:
    firefox.open(home)
    assert firefox.value(f"import('/static/dom.js').then((dom) => dom.number({value}))") == written


def test_a_run_that_ended_says_so_in_firefox(
    firefox: Firefox, serve: Callable[[Sequence[Path]], str], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", 0.002, 20)
    address = serve([run])
    place = "document.querySelector('.training').textContent"
    firefox.open(address)
    assert firefox.value(place) == " – training now: step 20, loss 0.25"
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 20, "event": "summary", "reason": "max_steps = 20 reached"}\n')
    firefox.open(address)
    assert firefox.value(place) == " – trained: step 20, loss 0.25"


@pytest.mark.parametrize("query", ["model=english", "model=english&layer=1"])
def test_attention_opens_on_a_model_without_the_noted_head_in_firefox(
    firefox: Firefox, home: str, query: str
) -> None:
    if not {"en-de", "english"} <= models_at_hand().keys():
        pytest.skip("en-de and english are not at hand")
    firefox.open(f"{home}attention?{query}")
    title = "document.querySelector('figure h3')?.textContent.includes"
    wait_for(firefox, f"{title}('Decoder self-attention, layer')")
    assert firefox.value(PROBLEMS) == ""


def test_answers_are_kept_in_firefox(firefox: Firefox, home: str) -> None:
    firefox.open(home + "scale")
    firefox.value("document.querySelectorAll('.question input')[1].click()")
    wait_for(firefox, "document.querySelector('.answer').textContent.startsWith('Yes.')")
    firefox.open(home + "scale")
    assert firefox.value("document.querySelectorAll('.question input')[1].checked")
    assert firefox.value("document.querySelector('.answer').textContent").startswith("Yes.")
    firefox.open(home)
    card = "[...document.querySelectorAll('.card')].find((e) => e.innerText.includes('One head'))"
    assert "1 of 5 questions answered" in firefox.value(f"{card}.innerText")


def test_the_lowest_smoothed_loss_is_where_the_page_says_in_firefox(
    firefox: Firefox, home: str
) -> None:
    firefox.open(home + "schedule?smoothing=0.2&vocabulary=100")
    best = float(firefox.value("document.querySelector('[data-fact=smoothing-best]').textContent"))
    assert best == pytest.approx(0.802)  # 1 − ε + ε / V
    loss = "import('/static/smoothing.js').then((m) => m.smoothedLoss({}, 0.2, 100))"
    here, *near = (firefox.value(loss.format(p)) for p in (best, best - 0.01, best + 0.01))
    assert here < min(near)
    # Cross-entropy against the whole target, by hand.
    target = np.full(100, 0.002)
    target[0] += 0.8
    given = np.full(100, 0.3 / 99)
    given[0] = 0.7
    assert firefox.value(loss.format(0.7)) == pytest.approx(-(target * np.log(given)).sum())


@pytest.mark.parametrize("page", ["everywhere", "without", "attention", "results"])
def test_tables_are_not_cut_in_firefox(firefox: Firefox, home: str, page: str) -> None:
    firefox.command(
        "browsingContext.setViewport",
        context=firefox.window,
        viewport={"width": 1280, "height": 900},
    )
    firefox.open(home + page)
    wait_for(firefox, "document.querySelector('main td') !== null")
    cut = "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth)"
    assert firefox.value(f"{cut}.map((each) => each.getAttribute('aria-label')).join()") == ""


def wait_for(firefox: Firefox, condition: str) -> None:
    deadline = time.monotonic() + DRAWING
    while not firefox.value(condition):
        assert time.monotonic() < deadline, condition
        time.sleep(0.1)
