"""The start page in a browser: models that are dropped, and runs that train."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .conftest import write_run


def test_a_folder_is_chosen_and_its_model_is_offered(
    serve: Callable[..., str], visit_at: Any, given: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "my model"
    shutil.copytree(given.learned, folder)
    (folder / "notes.md").write_text("not for the studio", encoding="utf-8")
    visit = visit_at(serve([given.run]))
    page = visit.open("")
    page.locator("#folder").set_input_files(folder)
    page.wait_for_selector(".drop-box a[href='/']")
    assert "my model is here" in page.locator(".drop-box").inner_text()
    visit.until(
        "[...document.querySelectorAll('.places li')].some("
        "e => e.innerText.startsWith('my model translator'))"
    )
    page.get_by_role("button", name="Close").click()
    assert page.locator(".drop-box").count() == 0
    page = visit.open("translate?model=my+model&text=the+cat")
    assert page.get_by_label("Model", exact=True).input_value() == "my model"
    assert page.locator("#translation").count() == 1


def test_a_folder_without_a_model_is_refused_in_words(visit: Any, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "cat.png").write_bytes(b"x")
    page = visit.open("")
    page.locator("#folder").set_input_files(folder)
    page.wait_for_selector(".drop-box .problem")
    assert "neither a model directory nor a run directory" in page.locator(".drop-box").inner_text()
    assert page.locator(".places li").count() == 4


def test_a_run_that_trains_is_followed(
    serve: Callable[..., str], visit_at: Any, given: Any, tmp_path: Path
) -> None:
    """Started before there is a model: the start page says how far it is, and then what it is."""
    run = tmp_path / "young"
    finished = write_run(tmp_path / "finished", 0.003, 30)
    run.mkdir()
    shutil.copy(finished / "config.toml", run)
    visit = visit_at(serve([run]))
    page = visit.open("")
    place = page.locator(".places li")
    assert "no model yet" in place.inner_text()
    assert "training has not begun" in place.inner_text()
    line = json.dumps({"step": 7, "loss": 4.5, "lr": 0.1})
    (run / "metrics.jsonl").write_text(line + "\n", encoding="utf-8")
    visit.until("document.querySelector('.training').innerText.includes('step 7, loss 4.5')")
    shutil.copytree(finished / "model", run / "model")
    visit.until("document.querySelector('.places li').innerText.startsWith('young translator')")
    assert "training now" in place.inner_text()


def test_a_folder_is_dropped_with_a_mouse(
    serve: Callable[..., str], visit_at: Any, given: Any
) -> None:
    """Browsers let no test drop a real folder, so its files come one by one as dropped files."""
    visit = visit_at(serve([given.run]))
    page = visit.open("scale")
    files = {file.name: file.read_bytes().hex() for file in given.t5.iterdir() if file.is_file()}
    page.evaluate(
        """(files) => {
          const transfer = new DataTransfer();
          for (const [name, hex] of Object.entries(files)) {
            const bytes = Uint8Array.from(hex.match(/../g) ?? [], (each) => parseInt(each, 16));
            transfer.items.add(new File([bytes], name));
          }
          const facts = { dataTransfer: transfer, bubbles: true, cancelable: true };
          const event = (name) => new DragEvent(name, facts);
          document.body.dispatchEvent(event("dragenter"));
          if (!document.body.classList.contains("dropping")) throw new Error("no mark");
          document.body.dispatchEvent(event("drop"));
        }""",
        files,
    )
    page.wait_for_selector(".drop-box a[href='/']")
    assert not page.evaluate("document.body.classList.contains('dropping')")
    assert "model is here" in page.locator(".drop-box").inner_text()
