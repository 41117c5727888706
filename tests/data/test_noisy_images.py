"""Images on their way from noise: functions of seed, epoch and image alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.corpus_spec import CorpusSpec, ImageSpec
from heedful.data.encoded_images import encode_images
from heedful.data.image_files import image_reader
from heedful.data.noisy_images import (
    MOST_WORDS,
    CaptionTokens,
    NoisyImages,
    noise_of,
    words_of,
)
from heedful.errors import DataError
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

CAPTIONS = ["a ring", "two long bars", "a bar"]
TOKENIZER = train_tokenizer(TokenizerSpec(kind="characters"), CAPTIONS)
TOKENS = CaptionTokens(TOKENIZER, words_of(CAPTIONS), 20)


def images_of(folder: Path, captions: list[str]) -> NoisyImages:
    draw = np.random.default_rng(len(captions))
    file = folder / "records.jsonl"
    records = [
        {"image": draw.integers(0, 256, (3, 3)).tolist(), "caption": caption}
        for caption in captions
    ]
    file.write_text("".join(json.dumps(each) + "\n" for each in records))
    reader = image_reader(CorpusSpec(file=str(file)), ImageSpec())
    return NoisyImages(encode_images([reader], folder / "cache"), TOKENS)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> NoisyImages:
    return images_of(tmp_path_factory.mktemp("images"), CAPTIONS * 4)


@given(
    indices=st.lists(st.integers(0, 11), min_size=1, max_size=6),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 1000),
)
def test_what_is_drawn_for_an_image_does_not_depend_on_its_company(
    images: NoisyImages, indices: list[int], seed: int, epoch: int
) -> None:
    whole = images.batch(np.array(indices), seed, epoch, 0.5)
    for row, index in enumerate(indices):
        alone = images.batch(np.array([index]), seed, epoch, 0.5)
        for name in ("images", "velocities", "times"):
            assert torch.equal(getattr(whole, name)[row], getattr(alone, name)[0])
        length = alone.captions.shape[1]
        assert torch.equal(whole.captions[row, :length], alone.captions[0])
        assert (whole.caption_positions[row, length:] == -1).all()


def test_the_way_is_straight_and_ends_at_the_image(images: NoisyImages) -> None:
    numbers = np.arange(12)
    batch = images.batch(numbers, 1, 0, 0.0)
    at = batch.times[:, None, None, None]
    pixels = torch.from_numpy(images.images.gather(numbers)).float()
    end = batch.images + (1 - at) * batch.velocities
    torch.testing.assert_close((end + 1) * 127.5, pixels, rtol=0, atol=1e-3)
    noise = batch.images - at * batch.velocities
    expected = torch.from_numpy(noise_of(1, numbers, 10)[:, 1:]).float().view_as(noise)
    torch.testing.assert_close(noise, expected)
    assert (batch.target_tokens, batch.indices.tolist()) == (12, list(range(12)))


def test_noise_is_normal_and_differs_by_seed_epoch_and_image() -> None:
    noise = noise_of(5, np.arange(500), 301, epoch=2)
    assert noise.shape == (500, 301)
    assert abs(noise.mean()) < 0.01
    assert abs(noise.std() - 1) < 0.01
    # Neighbouring numbers, and both numbers of a pair, do not go together.
    assert abs(np.corrcoef(noise[:, 0], noise[:, 151])[0, 1]) < 0.15
    assert abs(np.corrcoef(noise[:-1, 3], noise[1:, 3])[0, 1]) < 0.15
    others = [noise_of(6, np.arange(500), 301, epoch=2), noise_of(5, np.arange(500), 301, epoch=3)]
    assert all(abs(np.corrcoef(noise.ravel(), each.ravel())[0, 1]) < 0.02 for each in others)


def test_a_share_of_the_captions_is_dropped(images: NoisyImages) -> None:
    def lengths(dropped: float) -> torch.Tensor:
        epochs = [images.batch(np.arange(12), 3, epoch, dropped) for epoch in range(100)]
        return torch.cat([(each.caption_positions >= 0).sum(1) for each in epochs])

    whole = torch.tensor([len(TOKENIZER.encode(each)) + 1 for each in CAPTIONS * 400])
    assert torch.equal(lengths(0.0), whole)
    some = lengths(0.25)
    assert 0.2 < float((some == 1).float().mean()) < 0.3  # eos alone
    assert torch.equal(some[some > 1], whole[some > 1])


def test_captions_end_in_eos_and_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    ids, positions = TOKENS.encode(["a bar", ""], str)
    length = len(TOKENIZER.encode("a bar"))
    assert ids[0].tolist() == [*TOKENIZER.encode("a bar"), TOKENIZER.eos]
    assert ids[1].tolist() == [TOKENIZER.eos, *[TOKENIZER.pad] * length]
    assert positions.tolist() == [[*range(length + 1)], [0, *[-1] * length]]
    with pytest.raises(DataError, match=r"records.jsonl, image 2.*has the word 'rang'") as error:
        images_of(tmp_path, ["a ring", "a rang"])
    assert "Use its words: a, bar, bars, long, ring, two" in str(error.value)
    long = CaptionTokens(TOKENIZER, (), 4)
    with pytest.raises(DataError, match="third: The caption has 5 tokens, more than the 4"):
        long.encode(["a", "b", "a bar"], ["first", "second", "third"].__getitem__)


def test_a_vocabulary_that_is_too_large_is_not_remembered() -> None:
    assert words_of(["b a", "a  c"]) == ("a", "b", "c")
    assert words_of([str(number) for number in range(MOST_WORDS + 1)]) == ()
