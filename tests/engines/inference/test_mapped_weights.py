"""Weights that processes share through mapped files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heedful.engines.inference.mapped_weights import SMALLEST
from heedful.errors import RunError
from heedful.kernels.library import kernels
from heedful.pipelines.text_generation import GenerationPipeline
from heedful.pipelines.translation import TranslationPipeline
from heedful.pretrained.catalogue import directory_of

TEXTS = ["A man rides a bicycle.", "I don't know.", "Where is the station, please?"]


def mapped_files(folder: Path) -> dict[str, int]:
    """Bytes that this process maps of each file of a folder."""
    sizes: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.match(r"(\w+)-(\w+) .* (/\S+)$", line)
        if found and Path(found[3]).parent == folder:
            size = int(found[2], 16) - int(found[1], 16)
            sizes[found[3]] = sizes.get(found[3], 0) + size
    return sizes


@pytest.mark.skipif(kernels() is None, reason="no kernels in C here: layers stay a process's own")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_translations_are_those_of_weights_of_its_own(precision: str, tmp_path: Path) -> None:
    path = directory_of(Path("en-de"))
    own = TranslationPipeline.load(path, precision=precision)
    first = TranslationPipeline.load(path, precision=precision, shared=tmp_path)
    files = {file: file.stat().st_ino for file in tmp_path.iterdir()}
    second = TranslationPipeline.load(path, precision=precision, shared=tmp_path)
    assert {file: file.stat().st_ino for file in tmp_path.iterdir()} == files
    expected = own.translate(TEXTS)
    assert first.translate(TEXTS) == second.translate(TEXTS) == expected

    # Both map all of the weights, twice what the files hold.
    sizes = mapped_files(tmp_path)
    assert {Path(name) for name in sizes} == set(files)
    parameters = sum(p.numel() for p in own.engines[0].parameters())
    assert sum(file.stat().st_size for file in files) > 4 * 0.9 * parameters
    for file in files:
        assert file.stat().st_size >= SMALLEST
        assert sizes[str(file)] >= 2 * file.stat().st_size


def test_different_models_share_what_is_equal_and_no_more(tmp_path: Path) -> None:
    GenerationPipeline.load(directory_of(Path("english")), shared=tmp_path)
    before = set(tmp_path.iterdir())
    TranslationPipeline.load(directory_of(Path("en-de")), shared=tmp_path)
    both = set(tmp_path.iterdir())
    assert before < both
    GenerationPipeline.load(directory_of(Path("english")), shared=tmp_path)
    assert set(tmp_path.iterdir()) == both


def test_a_folder_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Cannot write weights") as caught:
        TranslationPipeline.load(directory_of(Path("en-de")), shared=tmp_path / "missing")
    assert "TMPDIR" in str(caught.value)
