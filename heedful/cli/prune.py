"""`heedful prune`: remove the attention heads that a model needs least."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.corpus_flags import CORPUS, SCORING, Corpus, Scoring, head_list
from heedful.cli.flags import ModelPath, SearchFlags, terminal
from heedful.cli.line_files import refuse_existing
from heedful.cli.output import PLAIN, Output, Report, say, show_table
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.inspect import Bound, Pruning, Subject


def prune(
    model: ModelPath,
    out: Annotated[Path, Parameter(help="Directory to write; must not exist.")],
    /,
    *,
    heads_left: Annotated[
        int | None, Parameter(help="Remove heads until this many are left.")
    ] = None,
    within_bleu: Annotated[
        float | None,
        Parameter(help="Translators: maximum loss of BLEU, such as 0.5."),
    ] = None,
    within_loss: Annotated[
        float | None,
        Parameter(help="Maximum increase of the loss, in nats per token."),
    ] = None,
    method: Annotated[
        Literal["greedy", "gradient"],
        Parameter(
            help="greedy: try every head at every step; gradient: remove heads by their "
            "importance, measured in one pass."
        ),
    ] = "greedy",
    corpus: Corpus = CORPUS,
    scoring: Scoring = SCORING,
    search: SearchFlags | None = None,
    output: Output = PLAIN,
) -> None:
    """Remove the attention heads that a model needs least.

    Heads are removed one after the other, and quality is measured after each; the curve is printed,
    and --report keeps it. OUT is an ordinary model directory with smaller projections, so the model
    is faster; it cannot be exported to formats without layers of unequal heads. MODEL is not
    changed. The choice of heads is fitted to this corpus, so measure the result on another one.

    For example:

        heedful prune run small --source valid.en --target valid.de --within-bleu 0.5
        heedful prune run small --source valid.en --target valid.de --heads-left 24 \
--method gradient
        heedful prune lm smaller-lm --data texts.txt --within-loss 0.01
    """
    flags: dict[str, Any] = {"model": str(model), "out": str(out), "heads_left": heads_left}
    flags |= {"within_bleu": within_bleu, "within_loss": within_loss, "method": method}
    report = Report("prune", output, {**flags, **corpus.plain()})
    refuse_existing(out)
    limits = [limit for limit in (heads_left, within_bleu, within_loss) if limit is not None]
    if len(limits) != 1 or limits[0] < 0:
        raise UserError(
            "Exactly one limit is needed, of at least 0",
            where="heedful prune",
            remedy="Give --heads-left N, --within-bleu X or --within-loss X",
        )
    subject = corpus.load(model)
    examples = corpus.examples(subject)
    import heedful.inspect as inside

    bound = _bound(within_bleu, within_loss)
    with closing(terminal()) as events:
        pruning = inside.prune(
            subject,
            examples,
            method,
            heads_left=heads_left or 0,
            bound=bound,
            bleu=scoring.bleu(search) if within_bleu is not None else None,
            progress=lambda done, total: events.progress(done, total, "heads removed"),
        )
    left = pruning.points[-1].heads_left if bound is None else pruning.fewest(bound).heads_left
    removed = pruning.removed(left)
    if not output.json:
        _show(pruning, left)
    facts = _write(subject, removed, model, out, method)
    say(
        f"Wrote {out} with {left} of {pruning.points[0].heads_left} heads: "
        f"{facts['parameters']:,} parameters of {facts['parameters_before']:,}. "
        + (f"Removed: {head_list(sorted(removed))}." if removed else "No head could be removed.")
    )
    report.finish({**facts, "heads_left": left, "examples": len(examples), **pruning.plain()})


def _bound(bleu: float | None, loss: float | None) -> Bound | None:
    from heedful.inspect import Bound

    if bleu is not None:
        return Bound("bleu", bleu)
    return None if loss is None else Bound("loss", loss)


def _show(pruning: Pruning, left: int) -> None:
    with_bleu = pruning.points[0].bleu is not None
    rows = []
    for point in pruning.points:
        bleu = [] if point.bleu is None else [f"{point.bleu:.2f}"]
        mark = "kept" if point.heads_left == left else ""
        numbers = [str(point.heads_left), f"{point.loss:.4f}", f"{point.accuracy:.4f}", *bleu]
        rows.append((point.removed or "(complete)", mark, *numbers))
    columns = ("without also", "", "heads left", "loss", "accuracy", *(["bleu"] * with_bleu))
    show_table(f"Heads removed, {pruning.method}", columns, rows, numbers=3 + with_bleu)


def _write(
    subject: Subject, removed: tuple[str, ...], model: Path, out: Path, method: str
) -> dict[str, Any]:
    from heedful.inspect import pruned
    from heedful.interop.hf_files import is_hugging_face
    from heedful.models.checkpoint import save_model
    from heedful.models.model_directory import find_model_directory, read_facts

    smaller = pruned(subject, removed)
    facts = {} if is_hugging_face(model) else dict(read_facts(find_model_directory(model)).training)
    facts["pruned"] = {"method": method, "removed": list(removed)}
    save_model(smaller.model.cpu(), smaller.tokenizers, out, training=facts)
    counts = [sum(p.numel() for p in each.model.parameters()) for each in (smaller, subject)]
    return {"removed": list(removed), "parameters": counts[0], "parameters_before": counts[1]}
