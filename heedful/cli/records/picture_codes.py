"""`heedful data codes` and `heedful data pictures`: images as an autoencoder's codes, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.cli.flags import DeviceFlag, ModelPath, PrecisionFlag
from heedful.cli.text_io import (
    Output,
    Report,
    output_to,
    refuse_existing,
    refuse_missing_folder,
    say,
    terminal,
)
from heedful.cli.train import corpora
from heedful.data.text_file import chunks
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.pipelines.image_codes import CodePipeline

_AT_ONCE = 1000  # pictures in memory


def data_codes(
    model: ModelPath,
    /,
    *images: str,
    out: Path,
    device: DeviceFlag = "auto",
    precision: PrecisionFlag = "auto",
    output: Output = Output(),
) -> None:
    """Write images as records of the codes of an autoencoder.

    A record has the fields `caption` and `codes`, a square of numbers. `heedful train --task
    tokens` learns from such records, and `heedful data pictures` draws them.

    For example:

        heedful train codes --task autoencode --train pictures.jsonl --valid others.jsonl
        heedful data codes codes pictures.jsonl --out records.jsonl
        heedful data codes codes train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz --out r.jsonl

    Args:
        images: Images as for training: lines of JSON with image and caption (.jsonl), IDX files of
            images and labels, or a folder with a folder of images for each label, which is then
            the caption.
        out: File for the records, lines of JSON, which appears when all are written.
    """
    refuse_missing_folder(out)
    report = Report("data codes", output, model=model, images=images, out=out)
    found = corpora(images, "IMAGES")
    if not found:
        raise UserError("There are no images", where="heedful data codes", remedy="Name their file")
    from heedful.data.corpus_spec import CorpusSpec, ImageSpec
    from heedful.data.image_files import image_reader
    from heedful.pipelines.any_pipeline import loaded_as

    pipeline: CodePipeline = loaded_as("autoencoder", model, device=device, precision=precision)
    size = ImageSpec(size=pipeline.spec.image_size, channels=pipeline.spec.channels)
    readers = [image_reader(CorpusSpec(**values), size) for values in found]
    used: set[int] = set()
    count = 0
    with terminal() as events, output_to(out) as file:
        for part in chunks(chain.from_iterable(readers), _AT_ONCE):
            pixels = [each.pixels.transpose(1, 2, 0) for each in part]
            grids = pipeline.encode(
                [each[..., 0] if each.shape[2] == 1 else each for each in pixels]
            )
            for example, codes in zip(part, grids, strict=True):
                used |= set(codes.flatten().tolist())
                record = {"caption": example.label, "codes": codes.tolist()}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += len(part)
            events.progress(count, None, "images")
    if not output.json:
        say(f"{out}: {count:,} records; {len(used):,} of {pipeline.spec.codes:,} codes occur")
    report.finish({"records": count, "codes_used": len(used)})


def data_pictures(
    model: ModelPath,
    /,
    records: Path,
    *,
    out: Path,
    field: str = "codes",
    device: DeviceFlag = "auto",
    precision: PrecisionFlag = "auto",
    output: Output = Output(),
) -> None:
    """Draw records of an autoencoder's codes.

    For example:

        heedful generate draw '{"caption": "a seven"}' --sampling -o drawn.jsonl
        heedful data pictures codes drawn.jsonl --out drawn

    Args:
        records: File of records, lines of JSON, as `heedful generate` writes them.
        out: Folder for the pictures 1.png, 2.png and so on (needs Pillow), or a file .jsonl for
            records whose field `image` has rows of pixels; it must not exist.
        field: Name of the field with the codes.
    """
    report = Report("data pictures", output, model=model, records=records, out=out, field=field)
    refuse_existing(out)
    refuse_missing_folder(out)
    from heedful.data.image_files import write_pictures
    from heedful.data.record_files import RecordReader
    from heedful.pipelines.any_pipeline import loaded_as

    pipeline: CodePipeline = loaded_as("autoencoder", model, device=device, precision=precision)

    def drawn() -> Iterator[tuple[dict[str, Any], Any]]:
        for part in chunks(RecordReader(records).records(), _AT_ONCE):
            grids = [pipeline.checked_codes(each.pop(field, None), where) for where, each in part]
            yield from zip([each for _, each in part], pipeline.decode(grids), strict=True)

    count = 0
    if out.suffix == ".jsonl":
        with output_to(out) as file:
            for others, pixels in drawn():
                file.write(json.dumps({**others, "image": pixels.tolist()}) + "\n")
                count += 1
    else:
        count = write_pictures(out, (pixels for _, pixels in drawn()))
    if not output.json:
        say(f"{out}: {count:,} picture{'s' * (count != 1)}")
    report.finish({"pictures": count})
