"""IDX files and folders of pictures: what is read of them, and what is refused."""

from __future__ import annotations

import gzip
import json
import struct
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from heedful.data.corpus_spec import CorpusSpec, ImageSpec
from heedful.data.encoded_images import EncodedImages, encode_images
from heedful.data.idx_files import is_idx, read_images, read_labelled
from heedful.data.image_files import image_reader, read_image
from heedful.errors import ConfigError, DataError


def idx(array: np.ndarray) -> bytes:
    """An IDX file of unsigned bytes."""
    sizes = b"".join(struct.pack(">i", size) for size in array.shape)
    return struct.pack(">HBB", 0, 8, array.ndim) + sizes + array.astype(np.uint8).tobytes()


def written(folder: Path, count: int = 7, side: int = 4, classes: int = 3, suffix: str = ".idx"):
    """Images, labels, and the files that hold them."""
    draw = np.random.default_rng(count)
    pixels = draw.integers(0, 256, (count, side, side)).astype(np.uint8)
    labels = np.arange(count) % classes
    files = []
    for name, array in (("images", pixels), ("labels", labels)):
        file = folder / f"{name}{suffix}"
        file.write_bytes(gzip.compress(idx(array)) if suffix.endswith("z") else idx(array))
        files.append(file)
    return pixels, labels, files


def corpus(*files: Path) -> CorpusSpec:
    if len(files) == 1:
        return CorpusSpec(file=str(files[0]))
    return CorpusSpec(source=str(files[0]), target=str(files[1]))


def encoded(folder: Path, *corpora: CorpusSpec, spec: ImageSpec | None = None) -> EncodedImages:
    readers = [image_reader(one, spec or ImageSpec()) for one in corpora]
    return encode_images(readers, folder / "cache")


@pytest.mark.parametrize("suffix", [".idx", ".gz"])
def test_idx_files_hold_what_was_written(tmp_path: Path, suffix: str) -> None:
    pixels, labels, files = written(tmp_path, suffix=suffix)
    assert np.array_equal(read_images(files[0]), pixels)
    assert np.array_equal(read_labelled(*files)[1], labels)
    assert is_idx(files[0])
    assert is_idx(files[1])
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    assert not is_idx(tmp_path / "a.png")
    assert not is_idx(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "no IDX file of images: it begins with the bytes ,"),
        (b"\x89PNG\r\n\x1a\n0000000000000", "begins with the bytes 89 50 4e 47, not 00 00 08 03"),
        (idx(np.zeros((3,))) + b"12345678", "IDX file of labels, not of images"),
        (idx(np.zeros((2, 3, 3)))[:9], "ends before its sizes do"),
        (idx(np.zeros((2, 3, 3)))[:-1], "holds 2 × 3 × 3 = 18 bytes after its head, and holds 17"),
        (idx(np.zeros((2, 3, 3))) + b"x", "= 18 bytes after its head, and holds more"),
        (idx(np.zeros((0, 3, 3))), "It holds nothing"),
        (struct.pack(">HBBiii", 0, 8, 3, -1, 1 << 30, 1 << 30), "and holds 0"),
        (struct.pack(">HBBiii", 0, 13, 3, 1, 1, 1) + b"1234", "00 00 0d 03"),
        (gzip.compress(idx(np.zeros((2, 90, 90))), mtime=0)[:-12], "damaged or cut short"),
        (b"\x1f\x8bnothing of the kind", "damaged or cut short"),
    ],
)
def test_what_is_no_idx_file_of_images_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    file = tmp_path / "images.idx"
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_images(file)
    assert str(file) in str(caught.value)
    assert told in str(caught.value)
    assert caught.value.remedy


def test_images_and_labels_must_belong_together(tmp_path: Path) -> None:
    _, _, files = written(tmp_path)
    (tmp_path / "less").mkdir()
    fewer = written(tmp_path / "less", count=5)[2]
    with pytest.raises(DataError, match=r"7 images, but 5 labels in .*less/labels.idx"):
        read_labelled(files[0], fewer[1])
    with pytest.raises(DataError, match="nowhere"):
        read_labelled(tmp_path / "nowhere", files[1])
    with pytest.raises(DataError, match="IMAGES LABELS"):
        read_labelled(files[1], files[0])


def test_corpora_are_numbered_through(tmp_path: Path) -> None:
    pixels, labels, files = written(tmp_path, classes=11, count=22)
    (tmp_path / "more").mkdir()
    others = written(tmp_path / "more", classes=2, count=5)
    images = encoded(tmp_path, corpus(*files), corpus(*others[2]))
    assert (len(images), images.shape) == (27, (1, 4, 4))
    assert images.label_names == [str(n) for n in range(11)]  # 10 after 9
    everything, numbers = np.concatenate([pixels, others[0]]), [*labels, *others[1]]
    assert images.labels(images.label_names).tolist() == numbers
    wanted = np.array([26, 0, 21, 22, 0])
    assert np.array_equal(images.gather(wanted), everything[wanted][:, None])
    mean, std = images.statistics()
    assert mean == pytest.approx([everything.mean()])
    assert std == pytest.approx([everything.std()])
    assert images.name(21) == f"{files[0]}, image 22"
    assert images.name(22) == f"{others[2][0]}, image 1"
    with pytest.raises(DataError, match=r"image 3: No training image has the label '2'"):
        images.labels(["0", "1"])


def test_images_are_read_once_and_again_when_damaged(tmp_path: Path) -> None:
    _, _, files = written(tmp_path)
    first = encoded(tmp_path, corpus(*files))
    (folder,) = (tmp_path / "cache").iterdir()
    before = (folder / "pixels").stat().st_mtime_ns
    again = encoded(tmp_path, corpus(*files))
    assert (folder / "pixels").stat().st_mtime_ns == before
    assert again.fingerprint == first.fingerprint
    content = (folder / "pixels").read_bytes()
    (folder / "pixels").write_bytes(content[:-1] + b"?")
    told: list[str] = []
    encode_images([image_reader(corpus(*files), ImageSpec())], tmp_path / "cache", told.append)
    assert "damaged" in told[0]
    assert (folder / "pixels").read_bytes() == content
    other = encoded(tmp_path, corpus(*files), spec=ImageSpec(size=8))
    assert other.shape == (1, 8, 8)
    assert other.fingerprint != first.fingerprint


def picture(path: Path, seed: int, size: tuple[int, int] = (6, 6), mode: str = "RGB") -> np.ndarray:
    """A picture of noise on the disk, and its pixels."""
    shape = (*size[::-1], 3) if mode == "RGB" else size[::-1]
    pixels = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def test_folders_are_labels(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    cat = picture(folder / "cat" / "b.png", 1)
    deep = picture(folder / "cat" / "more" / "a.PNG", 2)
    dog = picture(folder / "dog" / "1.jpg", 3)
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "dog" / ".hidden").write_bytes(b"x")
    images = encoded(tmp_path, corpus(folder))
    assert images.shape == (3, 6, 6)
    assert images.label_names == ["cat", "dog"]
    assert images.labels(["cat", "dog"]).tolist() == [0, 0, 1]
    assert [Path(images.name(n)).name for n in range(3)] == ["b.png", "a.PNG", "1.jpg"]
    found = images.gather(np.arange(3)).transpose(0, 2, 3, 1)
    assert np.array_equal(found[:2], [cat, deep])
    assert np.abs(found[2].astype(float).mean() - dog.mean()) < 10  # JPEG is not exact

    small = encoded(tmp_path, corpus(folder), spec=ImageSpec(size=3, channels=1))
    assert small.shape == (1, 3, 3)
    by_hand = Image.fromarray(cat).convert("L").resize((3, 3), Image.Resampling.BILINEAR)
    assert np.array_equal(small.gather(np.array([0]))[0, 0], np.asarray(by_hand))


def test_a_changed_picture_is_another_corpus(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        picture(tmp_path / "pets" / name / "a.png", 1)
    before = encoded(tmp_path, corpus(tmp_path / "pets")).fingerprint
    picture(tmp_path / "pets" / "dog" / "a.png", 2)
    assert encoded(tmp_path, corpus(tmp_path / "pets")).fingerprint != before


def test_what_does_not_belong_in_a_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    folder.mkdir()
    with pytest.raises(DataError, match="empty"):
        encoded(tmp_path, corpus(folder))
    (folder / "cat").mkdir()
    with pytest.raises(DataError, match=r"cat: There is no picture"):
        encoded(tmp_path, corpus(folder))
    picture(folder / "cat" / "a.png", 1)
    (folder / "cat" / "notes.txt").write_text("of cats")
    with pytest.raises(DataError, match=r"notes\.txt: This is no picture"):
        encoded(tmp_path, corpus(folder))
    (folder / "cat" / "notes.txt").rename(folder / "notes.txt")
    with pytest.raises(DataError, match=r"notes\.txt: This file is in no label's folder"):
        encoded(tmp_path, corpus(folder))
    for wrong in (tmp_path / "nowhere", folder / "notes.txt"):
        with pytest.raises(DataError, match="IMAGES LABELS"):
            encoded(tmp_path, corpus(wrong))
    _, _, files = written(tmp_path)
    with pytest.raises(DataError, match="images without labels"):
        encoded(tmp_path, corpus(files[0]))


def test_sizes_that_differ_are_refused_or_brought_to_one(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    picture(folder / "cat" / "a.png", 1)
    picture(folder / "dog" / "b.png", 2, (6, 5))
    with pytest.raises(DataError, match=r"b\.png: .* 5 × 6 .*not 6 × 6.*images\.size"):
        encoded(tmp_path, corpus(folder))
    picture(folder / "cat" / "a.png", 1, (5, 6))
    with pytest.raises(DataError, match=r"a\.png: .* 6 × 5 .*no square.*images\.size"):
        encoded(tmp_path, corpus(folder))
    assert encoded(tmp_path, corpus(folder), spec=ImageSpec(size=7)).shape == (3, 7, 7)
    _, _, files = written(tmp_path)
    (tmp_path / "other").mkdir()
    others = written(tmp_path / "other", side=7)[2]
    with pytest.raises(DataError, match=r"other/images\.idx, image 1: .* 7 × 7 .*not 4 × 4"):
        encoded(tmp_path, corpus(*files), corpus(*others))
    both = encoded(tmp_path, corpus(*files), corpus(*others), spec=ImageSpec(size=7))
    assert both.shape == (1, 7, 7)


def test_colour_and_grey_do_not_mix_unasked(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    for name in ("cat", "dog"):
        picture(folder / name / "a.png", 1, (4, 4))
    _, _, files = written(tmp_path)
    with pytest.raises(DataError, match=r"1 channels, the first one 3.*images\.channels"):
        encoded(tmp_path, corpus(folder), corpus(*files))
    for channels in (1, 3):
        both = encoded(tmp_path, corpus(folder), corpus(*files), spec=ImageSpec(channels=channels))
        assert both.shape == (channels, 4, 4)


def bomb(side: int) -> bytes:
    """A PNG that says it has so many pixels on a side; what follows does not matter."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        whole = kind + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 1000))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"Dear all, no picture is attached.", "no PNG or JPEG picture"),
        (b"", "no PNG or JPEG picture"),
        (b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", "no PNG or JPEG picture"),
        (bomb(10_000), "safe to open"),  # Pillow itself only warns
        (bomb(30_000), "safe to open"),
        (bomb(50), "cannot be read"),
    ],
)
def test_what_is_no_picture_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "upload.png"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in a person's terminal
        with pytest.raises(DataError, match=told) as caught:
            read_image(path, 3)
    assert str(path) in str(caught.value)
    assert caught.value.remedy


def test_pictures_of_other_kinds(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_image(tmp_path / "nowhere.png", 1)
    with pytest.raises(DataError, match="cannot be read"):
        read_image(tmp_path, 1)
    whole = tmp_path / "whole.jpg"
    picture(whole, 1, (40, 40))
    (tmp_path / "half.jpg").write_bytes(whole.read_bytes()[:500])
    with pytest.raises(DataError, match="cannot be read"):
        read_image(tmp_path / "half.jpg", 3)
    deep = np.arange(16, dtype=np.uint16).reshape(4, 4) * 4000
    Image.fromarray(deep).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match="more than 8 bits"):
        read_image(tmp_path / "deep.png", 1)
    grey = picture(tmp_path / "grey.png", 2, mode="L")
    assert np.array_equal(np.asarray(read_image(tmp_path / "grey.png", 3))[:, :, 1], grey)
    lying = Image.fromarray(grey[:, :4])
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn clockwise to stand upright
    lying.save(tmp_path / "lying.png", exif=turned)
    assert read_image(tmp_path / "lying.png", 1).size == (6, 4)


def test_without_pillow_idx_files_are_read_and_pictures_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels, _, files = written(tmp_path)
    picture(tmp_path / "pets" / "cat" / "a.png", 1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert np.array_equal(encoded(tmp_path, corpus(*files)).gather(np.arange(7))[:, 0], pixels)
    for wrong in (corpus(tmp_path / "pets"), corpus(*files)):
        with pytest.raises(ConfigError, match=r"pip install 'heedful\[images\]'"):
            encoded(tmp_path, wrong, spec=ImageSpec(size=8))


def write_lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return path


def test_captioned_images_are_read_from_lines_of_json(tmp_path: Path) -> None:
    grey, colour = [[0, 255], [12, 7]], [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [0, 0, 255]]]
    for image, shape in ((grey, (1, 2, 2)), (colour, (3, 2, 2))):
        file = write_lines(tmp_path / "a.jsonl", {"image": image, "caption": "two threes"})
        (read,) = image_reader(CorpusSpec(file=str(file)), ImageSpec())
        assert read.label == "two threes"
        assert read.pixels.shape == shape
        assert read.pixels.tolist() == np.moveaxis(np.array(image).reshape(2, 2, -1), 2, 0).tolist()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([[0, 1]], "no object with a caption"),
        ({"image": [[0, 1], [2, 3]]}, "no object with a caption"),
        ({"image": [[0, 1], [2]], "caption": "one"}, "rows of the image differ in length"),
        ({"image": [[0, 256], [2, 3]], "caption": "one"}, "array of bytes"),
        ({"image": [[0.5, 0.1], [0, 1]], "caption": "one"}, "array of bytes"),
        ({"image": [1, 2], "caption": "one"}, "bytes of height × width"),
        ({"caption": "one"}, "array of bytes"),
    ],
)
def test_broken_captioned_images_are_named(tmp_path: Path, record: object, message: str) -> None:
    good = {"image": [[0, 255], [12, 7]], "caption": "a seven"}
    file = write_lines(tmp_path / "a.jsonl", good, record)
    with pytest.raises(DataError, match=message) as raised:
        list(image_reader(CorpusSpec(file=str(file)), ImageSpec()))
    assert str(raised.value).find("a.jsonl:2") >= 0
