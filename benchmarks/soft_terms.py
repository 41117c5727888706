"""Soft terms against hard ones and none: terms satisfied, BLEU and speed, on terms never trained.

    python benchmarks/soft_terms.py --data DIR [--steps 300] [--share 0.3] [--seeds 1] [--runs DIR]

DIR holds multi30k/raw/{train,val,test_2016_flickr}.{en,de}.gz (or set HEEDFUL_DATA). Terms are
drawn from the training part as `glossary.py` draws them; a quarter of them is held out, and no term
that is trained shares a target with these. Two translators begin with the bundled `en-de` and are
trained on the same pairs for as many updates, one (`soft`) with `--soft-terms` and the other terms.
The test part is translated without a glossary, with the held-out terms as hard ones, and by `soft`
as soft ones. `swapped` gives each held-out term the targets of another: nothing but the glossary
asks for those. A term is satisfied where any of its targets is a word of the translation; a soft
term shows the model its first target.
Prints one JSON line, which also goes to RESULTS/soft-terms/result.json.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from glossary import bleu, draw_glossaries, read_corpus, satisfied
from report import say, write_result

from heedful.cli.main import main as heedful
from heedful.pipelines.glossary import Glossary, Term
from heedful.pipelines.translation import TranslationPipeline

FEWEST, HELD_OUT = 3, 4
"""A term stands in so many pairs; one of so many is held out."""
TRAINING = (
    *("--init", "en-de", "--data.batch-tokens", "2048", "--schedule.kind", "cosine"),
    *("--schedule.peak-learning-rate", "0.0005", "--schedule.warmup-steps", "50"),
    *("--validation.every-steps", "100000"),
)


def split_terms(terms: Sequence[Term]) -> tuple[list[Term], list[Term]]:
    """The terms to train with, and those that are held out."""
    chosen = list(terms)
    random.Random(1).shuffle(chosen)
    held_out = chosen[: len(chosen) // HELD_OUT]
    taken = {target.lower() for term in held_out for target in term.targets}
    rest = chosen[len(held_out) :]
    return [t for t in rest if not taken & {target.lower() for target in t.targets}], held_out


def swapped(terms: Sequence[Term]) -> list[Term]:
    """Terms with the targets of the next."""
    return [
        Term(term.source, other.targets)
        for term, other in zip(terms, [*terms[1:], terms[0]], strict=True)
    ]


def write_terms(path: Path, terms: Sequence[Term]) -> None:
    """Write a glossary."""
    rows = (f"{term.source}\t{' | '.join(term.targets)}\n" for term in terms)
    path.write_text("".join(rows), encoding="utf-8")


def measure(
    model: Path, sources: Sequence[str], references: Sequence[str], glossaries: dict[str, Any]
) -> dict[str, Any]:
    """Translate with each glossary.

    Args:
        model: of the translator.
        sources, references: of the test part.
        glossaries: by name, each with the glossary whose terms are counted.
    """
    pipeline = TranslationPipeline.load(model, device="cpu")
    results: dict[str, Any] = {}
    for name, (glossary, counted) in glossaries.items():
        have = [i for i, source in enumerate(sources) if counted.find(source)]
        right = [i for i in have if satisfied(counted, [sources[i]], [references[i]]) == 100]
        others = sorted(set(range(len(sources))) - set(have))
        started = time.process_time()
        found = pipeline.translate(sources, glossary=glossary)
        seconds = time.process_time() - started
        results[name] = {
            "terms_percent": satisfied(counted, sources, found),
            "bleu": bleu(found, references, range(len(sources))),
            "bleu_with_terms": bleu(found, references, have),
            "bleu_without_terms": bleu(found, references, others),
            "bleu_where_right": bleu(found, references, right) if right else None,
            "per_processor_second": round(len(sources) / seconds, 1),
        }
        say(f"{model.name}, {name}: {results[name]}")
    return results


def main() -> None:
    """Train twice for each seed, translate the test part, write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs") / "soft-terms")
    parser.add_argument("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    arguments = parser.parse_args()
    if arguments.data is None:
        say("skipped: give the corpus by --data or HEEDFUL_DATA")
        return
    torch.set_num_threads(1)
    arguments.runs.mkdir(parents=True, exist_ok=True)
    data = Path(arguments.data)
    train, test = read_corpus(data, "multi30k")
    terms, held_out = split_terms(draw_glossaries(train, 10**6, FEWEST)[0].terms)
    write_terms(arguments.runs / "terms.tsv", terms)
    sources, references = zip(*test, strict=True)
    folder = data / "multi30k" / "raw"
    files = {
        part: [str(folder / f"{part}.{side}.gz") for side in ("en", "de")]
        for part in ("train", "val")
    }
    hard, soft = Glossary(held_out), Glossary(held_out, is_soft=True)
    other = Glossary(swapped(held_out))
    other_soft = Glossary(swapped(held_out), is_soft=True)
    without = {
        "none": (None, hard),
        "hard": (hard, hard),
        "swapped none": (None, other),
        "swapped hard": (other, other),
    }
    withs = without | {"soft": (soft, hard), "swapped soft": (other_soft, other)}
    results: dict[str, Any] = {}
    for seed in range(1, arguments.seeds + 1):
        kinds = {
            "soft": (
                [
                    "--soft-terms",
                    str(arguments.runs / "terms.tsv"),
                    "--soft-terms-share",
                    str(arguments.share),
                ],
                withs,
            ),
            "plain": ([], without),
        }
        for name, (flags, glossaries) in kinds.items():
            run = arguments.runs / f"{name}-{seed}"
            corpora = ["--train", *files["train"], "--valid", *files["val"]]
            command = ["train", str(run), *corpora, *TRAINING, "--seed", str(seed)]
            command += ["--max-steps", str(arguments.steps), *flags]
            if not (run / "model").exists() and heedful(command) != 0:
                raise SystemExit(1)
            results[f"{name}-{seed}"] = measure(run, sources, references, glossaries)
    write_result(
        arguments.results,
        "soft-terms",
        f"python benchmarks/soft_terms.py --data DIR --steps {arguments.steps} "
        f"--share {arguments.share} --seeds {arguments.seeds}",
        {"terms_trained": len(terms), "terms_held_out": len(held_out), **results},
    )


if __name__ == "__main__":
    main()
