"""Pictures of `heedful generate`, drawn for captions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.cli.parser import flag_group
from heedful.cli.text_io import Report, chunks, output_to, refuse_existing, terminal

if TYPE_CHECKING:
    from heedful.pipelines.image_drawing import DrawingPipeline

_AT_ONCE = 1024  # captions in memory


@flag_group("Pictures", 15)
class DrawingFlags:
    """Pictures for captions, by a model of the task diffusion; --seed sets their noise.

    Args:
        steps: Number of steps from noise to a picture; 30 if unset.
        guidance: Strength of the caption (classifier-free guidance): 1 follows the model as it is,
            more makes pictures plainer and surer; 2 if unset.
        out: Folder for PNG files, whose names are printed; if unset, pictures are lines of JSON.
    """

    steps: int | None = None
    guidance: float | None = None
    out: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are set, as arguments of `DrawingPipeline.draw`."""
        both = {"steps": self.steps, "guidance": self.guidance}
        return {name: value for name, value in both.items() if value is not None}


def draw_pictures(
    pipeline: DrawingPipeline,
    source: tuple[Path | None, str | None, Path | None],
    drawing: DrawingFlags,
    seed: int,
    batch_size: int | None,
    report: Report,
) -> None:
    """Draw a picture for each caption, and write one output line for each.

    Args:
        pipeline: drawer of pictures.
        source: file of captions, single caption, and file for the output lines.
        drawing: flags of pictures.
        seed: seed of the noise.
        batch_size: pictures in a batch; the pipeline's own number if unset.
        report: report of this command.
    """
    file_of_captions, caption, output_file = source
    if drawing.out is not None:
        refuse_existing(drawing.out)
    loaded, count, is_json = report.seconds, 0, report.output.json
    named = file_of_captions or "standard input"
    options = {"seed": seed, "batch_size": batch_size, **drawing.settings}
    with terminal() as events, output_to(output_file) as file:
        for captions in chunks(file_of_captions, _AT_ONCE, caption):
            first = count

            def place(number: int, first: int = first) -> str:
                return "caption" if caption is not None else f"{named}:{first + number + 1}"

            for picture, text in zip(
                pipeline.draw(captions, first=first, place=place, **options), captions, strict=True
            ):
                count += 1
                item: dict[str, Any] = {"image": picture.tolist(), "caption": text}
                if drawing.out is not None:
                    # Made now, as a wrong caption would leave an empty folder.
                    drawing.out.mkdir(exist_ok=True)
                    path = drawing.out / f"{count:04d}.png"
                    pipeline.save(picture, path)
                    item["image"] = str(path)
                # A list of pixels is one line of JSON anyway.
                as_name = drawing.out is not None and not is_json
                line = item["image"] if as_name else json.dumps(item, ensure_ascii=False)
                file.write(line + "\n")
            events.progress(count, None, "drawn")
    report.finish({"pictures": count, "load_seconds": round(loaded, 3)}, summary=False)
