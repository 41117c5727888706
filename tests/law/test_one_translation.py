"""Ten lines through `heedful translate` with PyTorch: few modules to read, and a short way down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from heedful.kernels.library import kernels
from heedful.models.checkpoint import save_model
from heedful.models.shape import TranslatorShape
from heedful.models.shape_to_spec import translator_spec
from heedful.models.translator import Translator
from heedful.pipelines.numpy_translation import MOST_LINES
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

MODULES_IMPORTED = 70
"""The definition's attention is 7 of these: an engine is made of a model that was built by the
definition."""

MODULES_OF_A_COMMAND = 63
"""Present number of files executed, loading the model included."""

MODULES_OF_TRANSLATING = 39
"""Files executed once the model is loaded."""

FRAMES = 10
"""Functions from `main` to `beam_search`, both included."""

LINES = "".join(
    f"{word}\n" for word in ("abc", "bcd", "cde", "def", "efg", "fgh", "ab", "bc", "cd", "de")
)

WALK = """
import ast, io, json, sys
from pathlib import Path
import heedful
from heedful.cli.main import main

PACKAGE = Path(heedful.__file__).parent
words = ["translate", sys.argv[1], "--device", "cpu", "--max-length", "4"]
lines = sys.stdin.buffer.read()
executed, translating, depth, frames = set(), set(), [], []

def command():
    sys.stdin = io.TextIOWrapper(io.BytesIO(lines))
    assert main(words) == 0

def has_code(module):
    file = Path(module.__file__)
    return file.name != "__init__.py" or len(ast.parse(file.read_text()).body) > 1

def note(frame, event, _):
    file = Path(frame.f_code.co_filename)
    if event not in ("call", "return") or not file.is_relative_to(PACKAGE):
        return
    executed.add(str(file.relative_to(PACKAGE)))
    if depth or frame.f_code.co_qualname == "TranslationPipeline.translate":
        depth.append(0) if event == "call" else depth.pop()
        translating.add(str(file.relative_to(PACKAGE)))
    if frame.f_code.co_name == "beam_search" and not frames:
        while frame is not None:
            if Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
                frames.append(frame.f_code.co_qualname)
            frame = frame.f_back

command()
assert "torch" in sys.modules
own = [module for name, module in sys.modules.items() if name.split(".")[0] == "heedful"]
imported = sorted(module.__name__ for module in own if has_code(module))
sys.setprofile(note)
command()
sys.setprofile(None)
print(json.dumps({
    "imported": imported,
    "executed": sorted(executed),
    "translating": sorted(translating),
    "frames": frames[: frames.index("main") + 1][::-1],
}), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    pair = train_pair(TokenizerSpec(kind="characters"), ["abcdefgh"] * 3, ["abcdefgh"] * 3)
    shape = TranslatorShape(
        width=32, encoder_layers=1, decoder_layers=1, num_heads=2, feedforward=32, max_length=40
    )
    directory: Path = tmp_path_factory.mktemp("walk") / "model"
    # Without it a model may write texts that are cut, and the warning is one file more.
    torch.manual_seed(1)
    save_model(
        Translator(translator_spec(shape, pair.source.size, pair.target.size)), pair, directory
    )
    command = [sys.executable, "-c", WALK, str(directory)]
    done = subprocess.run(command, input=LINES, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stderr.splitlines()[-1])
    return found


needs_kernels = pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")


def test_the_lines_are_too_many_for_one_by_one() -> None:
    assert LINES.count("\n") > MOST_LINES


@needs_kernels
def test_few_modules_are_imported(walk: dict[str, list[str]]) -> None:
    assert len(walk["imported"]) <= MODULES_IMPORTED, walk["imported"]


@needs_kernels
def test_few_modules_are_executed(walk: dict[str, list[str]]) -> None:
    assert "search/beam.py" in walk["translating"]
    assert len(walk["executed"]) <= MODULES_OF_A_COMMAND, walk["executed"]
    assert len(walk["translating"]) <= MODULES_OF_TRANSLATING, walk["translating"]


@needs_kernels
def test_few_frames_lie_between_the_command_and_the_search(walk: dict[str, list[str]]) -> None:
    assert len(walk["frames"]) <= FRAMES, walk["frames"]
