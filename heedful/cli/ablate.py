"""`heedful ablate`: what a model is without some of its parts."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.judged_corpus import CORPUS, SCORING, Corpus, Scoring, shown_range
from heedful.cli.output import PLAIN, Output, Report, print_json
from heedful.cli.running import SearchFlags, terminal
from heedful.cli.tables import say, show_table
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.inspect import Effect, Subject

_DIGITS = {"loss": 4, "accuracy": 4, "bleu": 2}


def ablate(
    model: Annotated[Path, Parameter(help="A directory of a model, of a run, or of Hugging Face.")],
    /,
    *what: Annotated[
        str,
        Parameter(
            help="Parts by address, in which * stands for anything between two dots; every head by "
            "itself if there are none."
        ),
    ],
    how: Annotated[
        Literal["off", "mean"],
        Parameter(help="mean: what a part gives becomes its mean over the corpus."),
    ] = "off",
    together: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="All parts at once, instead of each by itself."
        ),
    ] = False,
    bleu: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Translators: translate without each part too, which takes longer.",
        ),
    ] = False,
    samples: Annotated[int, Parameter(help="Resamples of the paired bootstrap.")] = 1000,
    parts: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Instead, list the parts there are."),
    ] = False,
    corpus: Corpus = CORPUS,
    scoring: Scoring = SCORING,
    search: SearchFlags | None = None,
    output: Output = PLAIN,
) -> None:
    """What taking parts of a model away costs.

    Each part is taken away by itself, the corpus is read again, and the part is put back: a head
    (decoder.3.cross.head.2), a sub-layer (decoder.3.cross, encoder.1.feedforward), a residual
    connection (encoder.1.self.residual), a norm (encoder.1.self.norm), the scale of attention
    (encoder.1.self.scale), or what tells a stack its positions (encoder.positions). Shown is how
    much worse the loss (nats per token) and the accuracy (of the next token, of labels) become,
    with the range that holds 95 % of the draws of sentences: a range that spans 0 shows nothing.

    For example:

        heedful ablate run --source valid.en --target valid.de --limit 200
        heedful ablate run decoder.*.cross --source valid.en --target valid.de --bleu
        heedful ablate run encoder.positions --parts
        heedful ablate lm decoder.0.self.head.* --data texts.txt --how mean
    """
    asked: dict[str, Any] = {"model": str(model), "what": list(what), "how": how}
    asked |= {"together": together, "bleu": bleu, "samples": samples, **corpus.plain()}
    report = Report("ablate", output, asked)
    if samples < 1:
        raise UserError("The bootstrap needs at least one resample", where="--samples")
    subject = corpus.load(model)
    import heedful.inspect as inside

    chosen = inside.parts(subject.model, what) if what else inside.heads(subject.model)
    if parts:
        for address in inside.parts(subject.model, what or "**"):
            print_json({"part": address}) if output.json else print(address)
        return
    examples = corpus.examples(subject)
    ablations: list[Any] = [chosen] if together else list(chosen)
    means = None
    if how == "mean":
        means = inside.mean_outputs(subject, [example.reading for example in examples])
    with closing(terminal()) as events:
        found = inside.effects(
            subject,
            examples,
            ablations,
            how,
            means=means,
            bleu=scoring.bleu(search) if bleu else None,
            samples=samples,
            progress=lambda done, total: events.progress(done, total, "taken away"),
        )
    found.sort(key=lambda effect: -effect.scores["loss"].difference.score)
    if output.json:
        for effect in found:
            print_json(effect.plain())
    else:
        _show(found, len(examples), subject)
    report.finish(
        {"examples": len(examples), "effects": [each.plain() for each in found]}, summary=False
    )


def _show(found: list[Effect], examples: int, subject: Subject) -> None:
    names = list(found[0].scores)
    whole = ", ".join(f"{name} {found[0].scores[name].a.score:.{_DIGITS[name]}f}" for name in names)
    show_table(
        f"Without each part, over {examples:,} examples; with all parts: {whole}",
        ("without", *names),
        [_row(effect) for effect in found],
        numbers=len(names),
    )
    say("In brackets the range that holds 95 % of the draws of examples.")


def _row(effect: Effect) -> tuple[str, ...]:
    named = effect.what if len(effect.what) < 4 else (*effect.what[:3], f"… {len(effect.what)}")
    ranges = []
    for name, score in effect.scores.items():
        by = score.difference
        ranges.append(shown_range(by.score, by.low, by.high, _DIGITS[name]))
    return (" ".join(named), *ranges)
