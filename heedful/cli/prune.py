"""`heedful prune`: a smaller and faster model, without the heads it needs least."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.cli.import_ import refuse_existing
from heedful.cli.judged_corpus import CORPUS, SCORING, Corpus, Scoring, spelled
from heedful.cli.output import PLAIN, Output, Report
from heedful.cli.running import SearchFlags, terminal
from heedful.cli.tables import say, show_table
from heedful.errors import UserError

if TYPE_CHECKING:
    from heedful.inspect import Bound, Pruning, Subject


def prune(
    model: Annotated[Path, Parameter(help="A directory of a model, of a run, or of Hugging Face.")],
    out: Annotated[Path, Parameter(help="The directory to write; must not exist yet.")],
    /,
    *,
    heads_left: Annotated[
        int | None, Parameter(help="Take heads away until this many are left.")
    ] = None,
    within_bleu: Annotated[
        float | None,
        Parameter(help="Translators: as many as cost no more BLEU than this, 0.5 say."),
    ] = None,
    within_loss: Annotated[
        float | None,
        Parameter(help="As many as cost no more loss than this, in nats per token."),
    ] = None,
    method: Annotated[
        Literal["greedy", "gradient"],
        Parameter(
            help="greedy tries every head at every step; gradient takes them in the order of their "
            "importance, of which one pass is enough."
        ),
    ] = "greedy",
    corpus: Corpus = CORPUS,
    scoring: Scoring = SCORING,
    search: SearchFlags | None = None,
    output: Output = PLAIN,
) -> None:
    """A smaller and faster model, without the heads it needs least.

    Heads are taken away one after the other, and quality is measured after each: the curve is
    shown, and kept by --report. OUT is an ordinary model directory whose projections lack the
    heads, which translates, is evaluated and looked into like any other; only other projects'
    formats have no place for layers with unequal heads. MODEL stays as it is. Heads are chosen to
    do well on this corpus, so measure the result on another one.

    For example:

        heedful prune run small --source valid.en --target valid.de --within-bleu 0.5
        heedful prune run small --source valid.en --target valid.de --heads-left 24 \
--method gradient
        heedful prune lm smaller-lm --data texts.txt --within-loss 0.01
    """
    asked: dict[str, Any] = {"model": str(model), "out": str(out), "heads_left": heads_left}
    asked |= {"within_bleu": within_bleu, "within_loss": within_loss, "method": method}
    report = Report("prune", output, {**asked, **corpus.plain()})
    refuse_existing(out)
    given = [limit for limit in (heads_left, within_bleu, within_loss) if limit is not None]
    if len(given) != 1 or given[0] < 0:
        raise UserError(
            "One limit is needed, of at least 0",
            where="heedful prune",
            remedy="Give --heads-left N, --within-bleu X or --within-loss X",
        )
    subject = corpus.load(model)
    examples = corpus.examples(subject)
    import heedful.inspect as inside

    bound = _bound(within_bleu, within_loss)
    with closing(terminal()) as events:
        found = inside.prune(
            subject,
            examples,
            method,
            heads_left=heads_left or 0,
            bound=bound,
            bleu=scoring.bleu(search) if within_bleu is not None else None,
            progress=lambda done, total: events.progress(done, total, "heads taken away"),
        )
    left = found.points[-1].heads_left if bound is None else found.fewest(bound).heads_left
    removed = found.removed(left)
    if not output.json:
        _show(found, left)
    facts = _write(subject, removed, model, out, method)
    say(
        f"{out} holds the model with {left} of {found.points[0].heads_left} heads now: "
        f"{facts['parameters']:,} parameters of {facts['parameters_before']:,}. "
        + (f"Taken away: {spelled(sorted(removed))}." if removed else "No head could go.")
    )
    report.finish({**facts, "heads_left": left, "examples": len(examples), **found.plain()})


def _bound(bleu: float | None, loss: float | None) -> Bound | None:
    from heedful.inspect import Bound

    if bleu is not None:
        return Bound("bleu", bleu)
    return None if loss is None else Bound("loss", loss)


def _show(found: Pruning, left: int) -> None:
    with_bleu = found.points[0].bleu is not None
    rows = []
    for point in found.points:
        bleu = [] if point.bleu is None else [f"{point.bleu:.2f}"]
        mark = "kept" if point.heads_left == left else ""
        numbers = [str(point.heads_left), f"{point.loss:.4f}", f"{point.accuracy:.4f}", *bleu]
        rows.append((point.removed or "(whole)", mark, *numbers))
    columns = ("without also", "", "heads left", "loss", "accuracy", *(["bleu"] * with_bleu))
    show_table(f"Heads taken away, {found.method}", columns, rows, numbers=3 + with_bleu)


def _write(
    subject: Subject, removed: tuple[str, ...], model: Path, out: Path, method: str
) -> dict[str, Any]:
    from heedful.inspect import pruned
    from heedful.interop.loading import is_hugging_face
    from heedful.models.checkpoint import save_model
    from heedful.models.directory import find_model_directory, read_facts

    smaller = pruned(subject, removed)
    facts = {} if is_hugging_face(model) else dict(read_facts(find_model_directory(model)).training)
    facts["pruned"] = {"method": method, "removed": list(removed)}
    save_model(smaller.model.cpu(), smaller.tokenizers, out, training=facts)
    counts = [sum(p.numel() for p in each.model.parameters()) for each in (smaller, subject)]
    return {"removed": list(removed), "parameters": counts[0], "parameters_before": counts[1]}
