"""`heedful classify` and `embed`: labels and vectors of texts and images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from cyclopts import Parameter

from heedful.cli.encoder_verbs import EncoderVerb, Items, run, write_results
from heedful.cli.flags import ModelPath, positions_of
from heedful.cli.text_io import OneText, Output, chunks, one_line, terminal
from heedful.errors import ConfigError, DataError, UserError

if TYPE_CHECKING:
    import numpy as np

    from heedful.pipelines.image_input import Picture
    from heedful.pipelines.predictions import Label
    from heedful.pipelines.text_encoding import EncoderPipeline, EncodingOptions

Result = TypeVar("Result")

_SHOTS = 4

IMAGE_CHUNK = 64
"""Maximum number of images in memory."""

NamedImage = tuple[str, "Picture | None"]
"""The name of an image and the image itself, or None for an empty line."""


def classify(
    model: ModelPath,
    /,
    *what: Annotated[str, Parameter(allow_leading_hyphen=True)],
    top: int | None = None,
    labels: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    template: str | None = None,
    examples: Path | None = None,
    shots: int | None = None,
    seed: int | None = None,
    calibrate: bool = False,
    items: Items = Items(),
    output: Output = Output(),
) -> None:
    """Label texts, pairs of texts, or images.

    An input line is a text, or two texts with a tab between them. Its output line is the most
    probable label, a tab and its probability. With --json, `labels` lists all labels from the most
    to the least probable, each with `label` and `probability`. An empty line gets no label.

    For a model of images, an input line is the name of an image file, and the output line begins
    with that name: as the first column, or as `image` with --json. A model of images and texts
    labels images by the nearest of the texts that --labels gives. A causal language model that was
    not trained to label chooses the likelier of --labels after a text in --template, alone or after
    labelled --examples.

    For example:

        heedful classify reviews "A warm, funny film."
        heedful classify reviews -i texts.txt -o labels.txt
        heedful classify animals cat.png dog.jpg --top 3
        heedful classify animals folder --json
        heedful classify clip cat.png --labels cat dog --template "a photo of a {}"
        heedful classify english "A warm film." --labels bad good --template "{text} It is {label}."

    Args:
        what: Text to label, or images: PNG and JPEG files, folders of them, or IDX files. If none,
            the lines of --input are read.
        top: Number of most probable labels for each item; 1 if unset, or all with --json.
        labels: Labels to choose from, at least two; for language models, and models of images and
            texts.
        template: Text of a label, with {} in its place; the label itself if unset. For a language
            model, the prompt with {text} and {label}; "{text} It is {label}." if unset.
        examples: File of labelled texts, as for training, some of which stand before each text that
            a language model labels.
        shots: Number of --examples before each text, as far as they fit; 4 if unset.
        seed: Seed of the draw of --examples; 1 if unset.
        calibrate: Divide the likelihood of a label by the one that it has after an empty text: some
            words are likely after any (Zhao 2021).
    """
    if top is not None and top < 1:
        raise ConfigError("The number of labels must be at least 1", where=f"--top {top}")
    from heedful.interop.hugging_face import describe_any

    spec = describe_any(model).spec
    kind = spec.kind
    chosen: dict[str, Any] = {"labels": list(labels)} if kind == "two_towers" else {}
    if template is not None:
        chosen["template"] = template
    shown = {"--examples": examples, "--shots": shots, "--seed": seed}
    _check_choice(kind, labels, template, shown, calibrate)
    if spec.reads in ("images", "images_and_texts"):
        # Any other kind is refused by the pipeline of classifiers, which names what it needs.
        kind = kind if kind == "two_towers" else "vision"
        images: ImageVerb[list[Label]] = ImageVerb(
            "classify",
            kind,
            lambda pipeline, images, options: pipeline.classify(images, **chosen, **options),
            partial(_plain, top=top),
            lambda found: _fields(found or [], top=top),
        )
        run_images(images, model, what, items, output, {"top": top, **chosen})
        return
    if len(what) > 1:
        raise UserError(
            f"There are {len(what)} texts, and one is taken",
            where="heedful classify",
            remedy="Give one in quotes, or a file with one a line: --input FILE",
        )
    plain, fields = partial(_plain, top=top), partial(_fields, top=top)
    verb = EncoderVerb("classify", "sequence", _classify, plain, fields)
    settings: dict[str, Any] = {"top": top}
    if kind == "causal_lm":
        settings |= {"labels": list(labels), "template": template, "examples": examples}
        settings |= {"shots": shots, "seed": seed, "calibrate": calibrate}
        by_likelihood = _by_likelihood(labels, template, examples, shots, seed, calibrate)
        verb = EncoderVerb("classify", None, by_likelihood, plain, fields, partial(_load, kind))
    run(verb, model, what[0] if what else None, items, output, settings)


def _check_choice(
    kind: str,
    labels: tuple[str, ...],
    template: str | None,
    shown: Mapping[str, Any],
    calibrate: bool,
) -> None:
    """Refuse flags of a choice among labels that a model does not make.

    Raises:
        UserError: naming the flag.
    """
    of_prompts = {**shown, "--calibrate": calibrate or None}
    given = {"--labels": labels or None, "--template": template, **of_prompts}
    flag = next((name for name, value in given.items() if value is not None), None)
    if flag is not None and kind not in ("two_towers", "causal_lm"):
        raise UserError(
            "The model has labels of its own; only language models, and models of images and "
            "texts, choose among others",
            where=flag,
            remedy="Leave it out",
        )
    flag = next((name for name, value in of_prompts.items() if value is not None), None)
    if flag is not None and kind == "two_towers":
        raise UserError("Only a language model has prompts", where=flag, remedy="Leave it out")
    flag = next((name for name, value in shown.items() if value is not None), None)
    if flag is not None and shown["--examples"] is None:
        raise UserError(
            "There is nothing to show before a text", where=flag, remedy="Add --examples FILE"
        )
    if kind == "causal_lm" and not labels:
        raise UserError(
            "A language model has no labels of its own",
            where="heedful classify",
            remedy="Add --labels with the words to choose from, or fine-tune it: heedful train RUN "
            "--task classify --init MODEL",
        )


def _by_likelihood(
    labels: tuple[str, ...],
    template: str | None,
    examples: Path | None,
    shots: int | None,
    seed: int | None,
    calibrate: bool,
) -> Callable[[Any, list[str], EncodingOptions], list[list[Label]]]:
    """Return a function that labels lines by the likelihood of label words."""
    from heedful.apps.evaluation.label_words import (
        TEMPLATE,
        LabelPrompt,
        classify_by_likelihood,
        read_examples,
    )

    solved = () if examples is None else read_examples(examples, labels)
    count = 0 if examples is None else min(_SHOTS, len(solved)) if shots is None else shots
    seed = 1 if seed is None else seed
    prompt = LabelPrompt(labels, template or TEMPLATE, solved, count, seed, calibrate)

    def predict(pipeline: Any, lines: list[str], options: EncodingOptions) -> list[list[Label]]:
        with terminal() as events:
            return classify_by_likelihood(
                pipeline,
                lines,
                prompt,
                first=options["first_line"],
                batch_tokens=options["batch_tokens"],
                warn=events.warn,
            )

    return predict


def _classify(
    pipeline: EncoderPipeline, lines: list[str], options: EncodingOptions
) -> list[list[Label]]:
    texts: list[str | tuple[str, str]] = []
    for number, line in enumerate(lines, start=options["first_line"]):
        first, *others = line.split("\t")
        if len(others) > 1:
            raise DataError(
                f"{len(others)} tabs",
                where=f"line {number}",
                remedy="Give one text, or two with a tab between them",
            )
        texts.append((first, others[0]) if others else first)
    return pipeline.classify(texts, **options)


def _plain(labels: list[Label], *, top: int | None) -> str:
    return "\t".join(
        f"{one_line(each.label)}\t{each.probability:.4f}" for each in labels[: top or 1]
    )


def _fields(labels: list[Label], *, top: int | None) -> dict[str, Any]:
    return {"labels": [vars(each) for each in labels[:top]]}


@dataclass(frozen=True)
class ImageVerb(Generic[Result]):
    """The parts of the loop over images that differ between verbs.

    Args:
        name: name of the verb.
        kind: kind of the model.
        predict: function from pipeline, images and options to a result for each image.
        plain: function that formats a result as text, which stands behind the image's name.
        fields: function that formats a result, or None for an empty line, as the fields of a JSON
            object.
    """

    name: str
    kind: str
    predict: Callable[[Any, list[Picture], Mapping[str, Any]], Sequence[Result]]
    plain: Callable[[Result], str]
    fields: Callable[[Result | None], dict[str, Any]]


def run_images(
    verb: ImageVerb[Result],
    model: Path,
    what: Sequence[str],
    items: Items,
    output: Output,
    settings: Mapping[str, Any],
) -> None:
    """Run a verb on images, and write one output line for each.

    Args:
        verb: description of the verb.
        model: the model's directory.
        what: image files, folders and IDX files; if empty, lines of the input name images.
        items: the flags for input, output, device and batches.
        output: the common flags.
        settings: settings of this verb, for the report.
    """
    if what and items.input is not None:
        raise UserError("Give images or --input, not both", where=f"heedful {verb.name}")

    def load() -> Any:
        from heedful.pipelines.any_pipeline import loaded_as

        return loaded_as(verb.kind, model, device=items.device, precision=items.precision)

    def line(name: str, result: Result | None) -> str:
        if output.json:
            return json.dumps({"image": name, **verb.fields(result)}, ensure_ascii=False)
        return "" if result is None else f"{one_line(name)}\t{verb.plain(result)}"

    def results(pipeline: Any) -> Iterator[list[str]]:
        from heedful.data.image_files import named_images

        images: Iterator[NamedImage]
        images = named_images(what) if what else _listed_images(items.input)
        options = {
            "batch_size": items.batch_size,
            "batch_tokens": positions_of(items.batch_tokens, pipeline),
        }
        while chunk := list(islice(images, IMAGE_CHUNK)):
            given = [image for _, image in chunk if image is not None]
            rest = iter(verb.predict(pipeline, given, options))
            yield [line(name, None if image is None else next(rest)) for name, image in chunk]

    write_results(verb.name, {"model": model, **settings}, items, output, load, results)


def _listed_images(source: Path | None) -> Iterator[NamedImage]:
    """Yield the images whose names are lines of a file or of standard input."""
    for lines in chunks(source, IMAGE_CHUNK):
        for line in lines:
            yield line, Path(line) if line.strip() else None


def embed(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    images: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    pooling: Literal["first", "last", "mean", "max"] | None = None,
    normalize: bool | None = None,
    items: Items = Items(),
    output: Output = Output(),
) -> None:
    """Turn texts or images into vectors.

    Each input line gets one output line of numbers separated by spaces. With --json, `vector` is a
    list of numbers. An empty line gets zeros. A model of images and texts gives both vectors of
    length 1 in one space, and refuses empty lines; its lines for images begin with their names.

    For example:

        heedful embed minilm "The cat sat on the mat."
        heedful embed minilm -i texts.txt -o vectors.txt
        heedful embed clip --images cat.png folder

    Args:
        images: Images instead of texts, for a model of images and texts: PNG and JPEG files,
            folders of them, or IDX files.
        pooling: Vector of a text: that of its first or last token, or the mean or maximum over its
            tokens; as the model was published with if unset, else the mean.
        normalize: Divide each vector by its length; as the model was published with if unset.
    """
    from heedful.interop.hugging_face import describe_any

    settings = {"pooling": pooling, "normalize": normalize}
    chosen = {name: value for name, value in settings.items() if value is not None}
    kind = describe_any(model).spec.kind
    if chosen and kind == "two_towers":
        raise UserError(
            "A model of images and texts has vectors of one kind",
            where=f"--{next(iter(chosen))}",
            remedy="Leave it out",
        )
    if images:
        if text is not None:
            raise UserError("Give a text or --images, not both", where="heedful embed")
        seen: ImageVerb[np.ndarray] = ImageVerb(
            "embed",
            "two_towers",
            lambda pipeline, found, options: pipeline.embed_images(found, **options),
            _numbers,
            _vector_fields,
        )
        run_images(seen, model, images, items, output, settings)
        return
    verb: EncoderVerb[np.ndarray] = EncoderVerb(
        "embed",
        None,
        lambda pipeline, lines, options: list(pipeline.embed(lines, **chosen, **options)),
        _numbers,
        _vector_fields,
        # Any other kind is refused by the pipeline of encoders, which names what it needs.
        partial(_load, kind if kind == "two_towers" else "encoder"),
    )
    run(verb, model, text, items, output, settings)


def _load(kind: str, model: Path, **options: Any) -> Any:
    from heedful.pipelines.any_pipeline import loaded_as

    return loaded_as(kind, model, **options)


def _numbers(vector: np.ndarray) -> str:
    return " ".join(map(str, vector))


def _vector_fields(vector: np.ndarray | None) -> dict[str, Any]:
    # The shortest decimals of float32, not the long ones of the same numbers in float64.
    return {"vector": [] if vector is None else [float(text) for text in vector.astype(str)]}
