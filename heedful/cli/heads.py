"""`heedful heads`, `ablate` and `prune`: measure heads, ablate parts, prune heads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful.cli.corpus_flags import Corpus, Scoring, head_list
from heedful.cli.flags import ModelPath, SearchFlags
from heedful.cli.text_io import (
    Output,
    Report,
    print_json,
    refuse_existing,
    say,
    show_table,
    terminal,
)
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.apps.pruning import Effect, Pruning
    from heedful.inspect import HeadMeasures, Measures, ModelInput, Subject


Part = Literal["encoder", "decoder", "cross"]


def heads(
    model: ModelPath,
    /,
    *,
    part: Part | None = None,
    corpus: Corpus = Corpus(),
    output: Output = Output(),
) -> None:
    """Measure the attention of every head over a corpus.

    For each head, the table shows the mean entropy and distance of its attention, and the share of
    attention on the previous, next, first and current token, on special tokens, and on repeated and
    rare tokens; for cross-attention, also the share on aligned words. Heads get a name only if the
    evidence is strong (see the guide). A few hundred sentences are enough. Without --target, a
    translator uses its own translations.

    For example:

        heedful heads run --source valid.en --target valid.de --limit 300
        heedful heads bert --data texts.txt --json

    Args:
        part: Attention to measure: of the encoder, of the decoder, or cross-attention; all if
            unset.
    """
    report = Report("heads", output, corpus, model=model, part=part)
    subject = corpus.load(model)
    readings = corpus.readings(subject)
    from heedful.inspect import parts_of, usual_part

    if part is None:
        usual_part(subject.model)  # refuses a model without attention
    parts: tuple[Part, ...] = parts_of(subject.model) if part is None else (part,)
    results = []
    with terminal() as events:
        for number, each in enumerate(parts):
            events.progress(number, len(parts), "measured")
            results.append(_measure_part(subject, readings, each))
        events.progress(len(parts), len(parts), "measured")
    labelled = 0
    for measures in results:
        labelled += sum(head.label is not None for head in measures.heads)
        if output.json:
            for head in measures.heads:
                print_json({"part": measures.part, **head.plain()})
        else:
            _show_heads(measures)
    count = sum(len(measures.heads) for measures in results)
    say(f"{labelled} of {count} heads have a name.")
    facts = {"sentences": len(readings), "heads": count, "labelled": labelled}
    report.finish({**facts, "parts": [each.plain() for each in results]}, summary=False)


def _measure_part(subject: Subject, readings: list[ModelInput], part: Part) -> Measures:
    from heedful.inspect import align_words, measure

    if part != "cross":
        return measure(subject, readings, part)
    aligned = align_words(subject, readings)
    return measure(subject, readings, part, links=[pair.links for pair in aligned.pairs])


def _show_heads(measures: Measures) -> None:
    kinds = list(dict.fromkeys(kind for head in measures.heads for kind in head.shares))
    far = () if measures.part == "cross" else ("distance",)
    show_table(
        f"{measures.part}: {measures.rows:,} rows of {measures.sentences:,} sentences; shares of "
        "attention",
        ("layer", "head", "name", "evidence", "entropy", *far, *kinds),
        [_head_row(head, kinds) for head in measures.heads],
        numbers=2 + len(far) + len(kinds),
    )


def _head_row(head: HeadMeasures, kinds: list[str]) -> tuple[str, ...]:
    label = head.label
    name, evidence = ("", "") if label is None else (label.kind, f"{label.evidence:.2f}")
    values: list[Any] = [head.entropy]
    if head.distance is not None:
        values.append(head.distance)
    shares = [f"{head.shares[kind].share:.2f}" if kind in head.shares else "" for kind in kinds]
    figures = [f"{value:.2f}" for value in values]
    return (str(head.layer), str(head.head), name, evidence, *figures, *shares)


def prune(
    model: ModelPath,
    out: Path,
    /,
    *,
    heads_left: int | None = None,
    within_bleu: float | None = None,
    within_loss: float | None = None,
    method: Literal["greedy", "gradient"] = "greedy",
    corpus: Corpus = Corpus(),
    scoring: Scoring = Scoring(),
    search: SearchFlags | None = None,
    output: Output = Output(),
) -> None:
    """Prune the attention heads that a model needs least.

    Heads are removed one by one, and quality is measured after each; the curve is printed and
    stored in --report. OUT is an ordinary model directory with smaller projections, so the model is
    faster; it cannot be exported to formats that require equally many heads in every layer. MODEL
    is not changed. The choice of heads is fitted to this corpus, so evaluate OUT on another one.

    For example:

        heedful prune run small --source valid.en --target valid.de --within-bleu 0.5
        heedful prune run small --source valid.en --target valid.de --heads-left 24 \
--method gradient
        heedful prune lm smaller-lm --data texts.txt --within-loss 0.01

    Args:
        out: Model directory to write, which must not exist.
        heads_left: Number of heads to keep.
        within_bleu: Maximum loss of BLEU of a translator, such as 0.5.
        within_loss: Maximum increase of the loss, in nats per token; 0.01 if no limit is given.
        method: Method to choose heads: greedy tries every head at each step; gradient ranks them
            once by importance (Michel 2019), which is faster.
    """
    bounds = {"heads_left": heads_left, "within_bleu": within_bleu, "within_loss": within_loss}
    report = Report("prune", output, bounds, corpus, model=model, out=out, method=method)
    refuse_existing(out)
    limits = [limit for limit in (heads_left, within_bleu, within_loss) if limit is not None]
    if len(limits) > 1 or any(limit < 0 for limit in limits):
        raise UserError(
            "A single limit is possible, which must not be negative",
            where="heedful prune",
            remedy="Give --heads-left N, --within-bleu X or --within-loss X",
        )
    if not limits:
        within_loss = 0.01
    subject = corpus.load(model)
    examples = corpus.examples(subject)
    from heedful.apps import pruning

    bound = None if within_loss is None else pruning.Bound("loss", within_loss)
    if within_bleu is not None:
        bound = pruning.Bound("bleu", within_bleu)
    with terminal() as events:
        result = pruning.prune(
            subject,
            examples,
            method,
            heads_left=heads_left or 0,
            bound=bound,
            bleu=scoring.bleu(search) if within_bleu is not None else None,
            progress=lambda done, total: events.progress(done, total, "heads removed"),
        )
    left = result.points[-1].heads_left if bound is None else result.fewest(bound).heads_left
    removed = result.removed(left)
    if not output.json:
        _show_pruning(result, left)
    facts = _write_pruned(subject, removed, model, out, method)
    say(
        f"Wrote {out} with {left} of {result.points[0].heads_left} heads: "
        f"{facts['parameters']:,} parameters of {facts['parameters_before']:,}. "
        + (f"Removed: {head_list(sorted(removed))}." if removed else "No head could be removed.")
    )
    report.finish({**facts, "heads_left": left, "examples": len(examples), **result.plain()})


def _show_pruning(pruning: Pruning, left: int) -> None:
    with_bleu = pruning.points[0].bleu is not None
    rows = []
    for point in pruning.points:
        bleu = [] if point.bleu is None else [f"{point.bleu:.2f}"]
        mark = "kept" if point.heads_left == left else ""
        numbers = [str(point.heads_left), f"{point.loss:.4f}", f"{point.accuracy:.4f}", *bleu]
        rows.append((point.removed or "(complete)", mark, *numbers))
    columns = ("without also", "", "heads left", "loss", "accuracy", *(["bleu"] * with_bleu))
    show_table(f"Heads removed, {pruning.method}", columns, rows, numbers=3 + with_bleu)


def _write_pruned(
    subject: Subject, removed: tuple[str, ...], model: Path, out: Path, method: str
) -> dict[str, Any]:
    from heedful.apps.pruning import pruned
    from heedful.interop.hf_files import is_hugging_face
    from heedful.models.checkpoint import save_model
    from heedful.models.model_directory import find_model_directory, locate, read_facts

    smaller = pruned(subject, removed)
    model = locate(model)
    facts = {} if is_hugging_face(model) else dict(read_facts(find_model_directory(model)).training)
    facts["pruned"] = {"method": method, "removed": list(removed)}
    save_model(smaller.model.cpu(), smaller.tokenizers, out, training=facts)
    counts = [sum(p.numel() for p in each.model.parameters()) for each in (smaller, subject)]
    return {"removed": list(removed), "parameters": counts[0], "parameters_before": counts[1]}


_DIGITS = {"loss": 4, "accuracy": 4, "bleu": 2}


def ablate(
    model: ModelPath,
    /,
    *what: str,
    how: Literal["off", "mean"] = "off",
    together: bool = False,
    bleu: bool = False,
    samples: int = 1000,
    parts: bool = False,
    corpus: Corpus = Corpus(),
    scoring: Scoring = Scoring(),
    search: SearchFlags | None = None,
    output: Output = Output(),
) -> None:
    """Measure the loss of quality when parts of a model are removed.

    Parts are removed one at a time: heads (decoder.3.cross.head.2), sub-layers (decoder.3.cross,
    encoder.1.feedforward), residual connections (encoder.1.self.residual), norms
    (encoder.1.self.norm), the scale of attention (encoder.1.self.scale), or the positions of a
    stack (encoder.positions). The table shows the change of the loss (nats per token) and of the
    accuracy (of next tokens or labels), with a 95 % bootstrap interval over sentences; an interval
    that contains 0 shows no effect.

    For example:

        heedful ablate run --source valid.en --target valid.de --limit 200
        heedful ablate run decoder.*.cross --source valid.en --target valid.de --bleu
        heedful ablate run encoder.positions --parts
        heedful ablate lm decoder.0.self.head.* --data texts.txt --how mean

    Args:
        what: Parts to remove, such as decoder.*.cross, where * matches anything between two dots;
            every head if none, or every sub-layer of a model without heads.
        how: Output of a removed part: zero (off), or its mean over the corpus (mean).
        together: Remove all parts at once instead of one at a time.
        bleu: Measure BLEU as well, by translating without each part; slower, and for translators
            only.
        samples: Number of resamples of the paired bootstrap; more give more precise intervals.
        parts: List the names of parts instead of removing any.
    """
    flags = {"what": what, "how": how, "together": together, "bleu": bleu, "samples": samples}
    report = Report("ablate", output, flags, corpus, model=model)
    if samples < 1:
        raise UserError("The bootstrap needs at least one resample", where="--samples")
    subject = corpus.load(model)
    from heedful.apps import pruning

    if parts:
        for address in pruning.parts(subject.model, what or "**"):
            print_json({"part": address}) if output.json else print(address)
        return
    addresses = pruning.parts(subject.model, what) if what else pruning.usual_parts(subject.model)
    examples = corpus.examples(subject)
    ablations: list[Any] = [addresses] if together else list(addresses)
    means = None
    if how == "mean":
        means = pruning.mean_outputs(subject, [example.reading for example in examples])
    with terminal() as events:
        effects = pruning.effects(
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
        _show_effects(effects, len(examples))
    report.finish(
        {"examples": len(examples), "effects": [each.plain() for each in effects]}, summary=False
    )


def _show_effects(effects: list[Effect], examples: int) -> None:
    first = effects[0].scores
    complete = ", ".join(f"{name} {first[name].a.score:.{_DIGITS[name]}f}" for name in first)
    show_table(
        f"Without each part, over {examples:,} examples; with all parts: {complete}",
        ("without", *first),
        [_effect_row(effect) for effect in effects],
        numbers=len(first),
    )
    say("In brackets: 95 % bootstrap intervals over examples.")


def _effect_row(effect: Effect) -> tuple[str, ...]:
    names = effect.what if len(effect.what) < 4 else (*effect.what[:3], f"… {len(effect.what)}")
    ranges = []
    for name, score in effect.scores.items():
        change, digits = score.difference, f"+.{_DIGITS[name]}f"
        ranges.append(f"{change.score:{digits}} ({change.low:{digits}} to {change.high:{digits}})")
    return (" ".join(names), *ranges)
