"""`heedful ablate`: remove parts of a model and measure the loss of quality."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.corpus_flags import CORPUS, SCORING, Corpus, Scoring, format_range
from heedful.cli.flags import ModelPath, SearchFlags, terminal
from heedful.cli.output import PLAIN, Output, Report, print_json, say, show_table
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.inspect import Effect

_DIGITS = {"loss": 4, "accuracy": 4, "bleu": 2}


def ablate(
    model: ModelPath,
    /,
    *what: Annotated[
        str,
        Parameter(
            help="Addresses of parts, in which * matches anything between two dots; each head by "
            "itself if there are none."
        ),
    ],
    how: Annotated[
        Literal["off", "mean"],
        Parameter(help="off: output zero; mean: output the mean over the corpus."),
    ] = "off",
    together: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Remove all parts at once, instead of each by itself.",
        ),
    ] = False,
    bleu: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Translators: also translate without each part, which takes longer.",
        ),
    ] = False,
    samples: Annotated[int, Parameter(help="Resamples of the paired bootstrap.")] = 1000,
    parts: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="List the addresses of parts instead."),
    ] = False,
    corpus: Corpus = CORPUS,
    scoring: Scoring = SCORING,
    search: SearchFlags | None = None,
    output: Output = PLAIN,
) -> None:
    """Measure the loss of quality when parts of a model are removed.

    Each part is removed by itself, the corpus is read again, and the part is put back: a head
    (decoder.3.cross.head.2), a sub-layer (decoder.3.cross, encoder.1.feedforward), a residual
    connection (encoder.1.self.residual), a norm (encoder.1.self.norm), the scale of attention
    (encoder.1.self.scale), or the positions of a stack (encoder.positions). The table shows the
    change of the loss (nats per token) and of the accuracy (of the next token, of labels), with a
    95 % interval over draws of sentences: an interval that spans 0 shows nothing.

    For example:

        heedful ablate run --source valid.en --target valid.de --limit 200
        heedful ablate run decoder.*.cross --source valid.en --target valid.de --bleu
        heedful ablate run encoder.positions --parts
        heedful ablate lm decoder.0.self.head.* --data texts.txt --how mean
    """
    flags: dict[str, Any] = {"model": str(model), "what": list(what), "how": how}
    flags |= {"together": together, "bleu": bleu, "samples": samples, **corpus.plain()}
    report = Report("ablate", output, flags)
    if samples < 1:
        raise UserError("The bootstrap needs at least one resample", where="--samples")
    subject = corpus.load(model)
    import heedful.inspect as inside

    addresses = inside.parts(subject.model, what) if what else inside.heads(subject.model)
    if parts:
        for address in inside.parts(subject.model, what or "**"):
            print_json({"part": address}) if output.json else print(address)
        return
    examples = corpus.examples(subject)
    ablations: list[Any] = [addresses] if together else list(addresses)
    means = None
    if how == "mean":
        means = inside.mean_outputs(subject, [example.reading for example in examples])
    with closing(terminal()) as events:
        effects = inside.effects(
            subject,
            examples,
            ablations,
            how,
            means=means,
            bleu=scoring.bleu(search) if bleu else None,
            samples=samples,
            progress=lambda done, total: events.progress(done, total, "removed"),
        )
    effects.sort(key=lambda effect: -effect.scores["loss"].difference.score)
    if output.json:
        for effect in effects:
            print_json(effect.plain())
    else:
        _show(effects, len(examples))
    report.finish(
        {"examples": len(examples), "effects": [each.plain() for each in effects]}, summary=False
    )


def _show(effects: list[Effect], examples: int) -> None:
    first = effects[0].scores
    complete = ", ".join(f"{name} {first[name].a.score:.{_DIGITS[name]}f}" for name in first)
    show_table(
        f"Without each part, over {examples:,} examples; with all parts: {complete}",
        ("without", *first),
        [_row(effect) for effect in effects],
        numbers=len(first),
    )
    say("In brackets: 95 % intervals over draws of examples.")


def _row(effect: Effect) -> tuple[str, ...]:
    names = effect.what if len(effect.what) < 4 else (*effect.what[:3], f"… {len(effect.what)}")
    ranges = []
    for name, score in effect.scores.items():
        change = score.difference
        ranges.append(format_range(change.score, change.low, change.high, _DIGITS[name]))
    return (" ".join(names), *ranges)
