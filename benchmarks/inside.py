"""What attention is doing in the Multi30k translator: one command for each question.

    python benchmarks/inside.py heads --run RUN --data DIR    which heads are positional?
    python benchmarks/inside.py cost --run RUN --data DIR     what does removing each part cost?
    python benchmarks/inside.py prune --run RUN --data DIR    how many heads can go within 0.5 BLEU?
    python benchmarks/inside.py speed --run RUN --data DIR    what does a model without them save?
    python benchmarks/inside.py align --run RUN --data DIR    how well does cross-attention align?

DIR holds multi30k/tok/val.lc.norm.tok.en.gz and .de.gz (or set HEEDFUL_DATA); RUN is what
`python benchmarks/multi30k.py` trained. All is measured on the validation set, or on its first
--limit sentences; nothing here looks at the test set. BLEU is of greedy search (beam 1) without
tokenisation. Each question writes RESULTS/inside-multi30k/QUESTION.json and prints its answer.

There are no links made by people for Multi30k. `align` therefore looks at target words that stand
in the source letter for letter, once on either side: their link is known. These are few and easy
words, so the share that is found says that attention aligns, not how well it would do on all words.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine
from speed.turns import alternate, ratio, summary

from heedful import inspect
from heedful.apps import pruning
from heedful.events import Events, Terminal
from heedful.models.checkpoint import save_model
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.search_settings import SearchSettings

HERE = Path(__file__).resolve().parent
WITHIN = 0.5
LEFT = (37, 24, 12)
"""Heads of the smaller models whose speed is measured."""
WRITTEN = 16
ROUNDS = 11
BLEU = pruning.Bleu(SearchSettings(beam=1), tokenize="none", lowercase=True)

Question = Callable[["Bench"], dict[str, Any]]


class Bench:
    """The model, the corpus, and whom to tell."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        folder = Path(arguments.data) / "multi30k" / "tok"
        self.sources, self.targets = (
            read_lines(folder / f"val.lc.norm.tok.{side}.gz")[: arguments.limit]
            for side in ("en", "de")
        )
        self.choose_on = arguments.choose_on
        self.subject = inspect.load(arguments.run, device="cpu")
        self.examples = pruning.examples_of_text(self.subject, self.sources, self.targets)
        self.readings = [example.reading for example in self.examples]
        self.events = Events([Terminal()])

    def effects(self, ablations: Sequence[Any], bleu: bool, label: str) -> list[pruning.Effect]:
        """What ablations cost, with progress."""
        return pruning.effects(
            self.subject,
            self.examples,
            ablations,
            bleu=BLEU if bleu else None,
            progress=lambda done, total: self.events.progress(done, total, label),
        )


def heads(bench: Bench) -> dict[str, Any]:
    """Labels of all heads; positional ones are on the token before, after, or itself."""
    found = []
    for part in inspect.parts_of(bench.subject.model):
        measured = inspect.measure(bench.subject, bench.readings, part)
        found += [{"part": part, **head.plain()} for head in measured.heads]
    named = [head for head in found if head["label"] is not None]
    positional = [h for h in named if h["label"]["kind"] in ("previous", "next", "same")]
    return {
        "positional": [f"{h['part']} {h['layer']}.{h['head']}: {_why(h)}" for h in positional],
        "other_labels": [
            f"{h['part']} {h['layer']}.{h['head']}: {_why(h)}" for h in named if h not in positional
        ],
        "heads": len(found),
        "without_a_label": len(found) - len(named),
        "measures": found,
    }


def _why(head: dict[str, Any]) -> str:
    return str(head["label"]["why"])


def cost(bench: Bench) -> dict[str, Any]:
    """Loss and BLEU without each head, loss without each other part; dearest first."""
    model = bench.subject.model
    single = bench.effects(pruning.heads(model), True, "heads")
    others = [part for part in pruning.parts(model) if ".head." not in part]
    rest = bench.effects(others, False, "other parts")
    whole = single[0].scores
    return {
        "whole": {name: score.a.score for name, score in whole.items()},
        "heads": [_costs(effect) for effect in _dearest(single)],
        "heads_that_cost_loss": sum(e.scores["loss"].difference.low > 0 for e in single),
        "heads_better_away": sum(e.scores["loss"].difference.high < 0 for e in single),
        "heads_that_cost_bleu": sum(e.scores["bleu"].difference.high < 0 for e in single),
        "other_parts": [_costs(effect) for effect in _dearest(rest)],
    }


def _dearest(effects: Sequence[pruning.Effect]) -> list[pruning.Effect]:
    return sorted(effects, key=lambda effect: -effect.scores["loss"].difference.score)


def _costs(effect: pruning.Effect) -> dict[str, Any]:
    row: dict[str, Any] = {"without": effect.what[-1]}
    for name, score in effect.scores.items():
        by = score.difference
        row[name] = [round(number, 4) for number in (by.score, by.low, by.high)]
    return row


def prune(bench: Bench) -> dict[str, Any]:
    """Curves of both methods; heads are chosen on the first sentences, judged on all."""
    chosen_on = bench.examples[: bench.choose_on]
    total = len(pruning.heads(bench.subject.model))
    answer: dict[str, Any] = {"chosen_on_first": len(chosen_on), "heads": total}
    for method in ("gradient", "greedy"):
        found = pruning.prune(
            bench.subject,
            chosen_on,
            method,
            progress=lambda done, most, name=method: bench.events.progress(done, most, name),
        )
        order = found.removed(0)
        curve = bench.effects([order[:n] for n in range(1, total + 1)], True, f"{method}, judged")
        points = [
            {"heads_left": total - n, **_costs(effect), "without": order[n - 1]}
            for n, effect in enumerate(curve, start=1)
        ]
        inside = [point["bleu"][0] >= -WITHIN for point in points]
        first = inside.index(False) if False in inside else total
        answer[method] = {
            "whole": {name: score.a.score for name, score in curve[0].scores.items()},
            "removed_before_the_first_point_outside": first,
            "most_removed_at_a_point_within": max(
                (n for n, fits in enumerate(inside, start=1) if fits), default=0
            ),
            "curve": points,
        }
        smaller = pruning.pruned(bench.subject, order[:first])
        counts = [sum(p.numel() for p in s.model.parameters()) for s in (bench.subject, smaller)]
        answer[method]["parameters"] = counts
    return answer


def speed(bench: Bench) -> dict[str, Any]:
    """Seconds to translate with model directories that lack heads, in turns, one thread.

    Every model writes 16 tokens for each sentence with a beam of 5, so that all do equal work.
    """
    chosen_on = bench.examples[: bench.choose_on]
    found = pruning.prune(bench.subject, chosen_on, "gradient")
    total, order = len(pruning.heads(bench.subject.model)), found.removed(0)
    pipelines: dict[str, TranslationPipeline] = {}
    answer: dict[str, Any] = {"tokens_written": WRITTEN, "parameters": {}}
    with tempfile.TemporaryDirectory() as folder:
        for left in (total, *LEFT):
            smaller = pruning.pruned(bench.subject, order[: total - left])
            place = Path(folder) / f"{left} heads"
            assert smaller.tokenizers is not None
            save_model(smaller.model, smaller.tokenizers, place)
            pipelines[place.name] = TranslationPipeline.load(place, device="cpu")
            count = sum(parameter.numel() for parameter in smaller.model.parameters())
            answer["parameters"][place.name] = count
    settings = SearchSettings(beam=5, min_length=WRITTEN, max_length=WRITTEN)

    def turn(name: str) -> float:
        start = time.perf_counter()
        pipelines[name].translate(bench.sources, settings=settings)
        return time.perf_counter() - start

    for name in pipelines:  # the first time, much is set up
        turn(name)
    seconds = alternate(
        {name: lambda _, name=name: turn(name) for name in pipelines},
        ROUNDS,
        lambda text: print(text, file=sys.stderr),
    )
    whole, *others = seconds
    answer["seconds_to_translate"] = {name: summary(runs) for name, runs in seconds.items()}
    answer["share_of_the_time"] = {name: ratio(seconds[name], seconds[whole]) for name in others}
    return answer


def align(bench: Bench) -> dict[str, Any]:
    """Links of words whose link is known, by the chosen heads, by others, and by chance."""
    found = inspect.align_words(bench.subject, bench.readings)
    known = [_identical(pair.source_words, pair.target_words) for pair in found.pairs]
    attention = inspect.word_attention(bench.subject, bench.readings)
    layers, count = attention[0].weights.shape[:2]
    rows = ("predicting", "reading")  # of a target token: where it is predicted, where it is read

    def share(matrices: Sequence[Any]) -> float:
        """Of the known links, those from the source word with the most weight."""
        hits = total = 0
        for matrix, links in zip(matrices, known, strict=True):
            total += len(links)
            hits += sum(int(matrix[target].argmax()) == source for source, target in links)
        return round(hits / total, 4)

    singles = {
        f"{layer}.{head}": {
            name: share([each.weights[layer, head, row] for each in attention])
            for row, name in enumerate(rows)
        }
        for layer in range(layers)
        for head in range(count)
    }
    means = {
        name: share([each.weights[:, :, row].mean((0, 1)) for each in attention])
        for row, name in enumerate(rows)
    }
    diagonal = chance = 0.0
    for pair, links in zip(found.pairs, known, strict=True):
        sizes = len(pair.source_words), len(pair.target_words)
        diagonal += sum(round(t * (sizes[0] - 1) / max(1, sizes[1] - 1)) == s for s, t in links)
        chance += len(links) / max(1, sizes[0])
    number = sum(map(len, known))
    return {
        "known_links": number,
        "heads_chosen": found.forward.plain(),
        "found_by_the_chosen_heads": share([found.forward.matrix(each) for each in attention]),
        "found_by_the_mean_of_all": means,
        "found_by_one_head": dict(sorted(singles.items(), key=lambda item: -max(item[1].values()))),
        "found_by_the_diagonal": round(diagonal / number, 4),
        "found_by_chance": round(chance / number, 4),
        "examples": [
            {
                "source": " ".join(p.source_words),
                "target": " ".join(p.target_words),
                "links": p.pharaoh,
            }
            for p in found.pairs[:3]
        ],
    }


def _identical(source: Sequence[str], target: Sequence[str]) -> set[tuple[int, int]]:
    """Links of words that stand once on either side, letter for letter; no punctuation."""
    return {
        (source.index(word), place)
        for place, word in enumerate(target)
        if len(word) > 1
        and any(map(str.isalnum, word))
        and (source.count(word), target.count(word)) == (1, 1)
    }


def read_lines(path: Path) -> list[str]:
    """The lines of a gzip file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


QUESTIONS: dict[str, Question] = {
    "heads": heads,
    "cost": cost,
    "prune": prune,
    "speed": speed,
    "align": align,
}


def main() -> None:
    """Answer one question, and write the answer down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--limit", type=int, help="only the first sentences; all if unset")
    parser.add_argument("--choose-on", type=int, default=100, help="sentences heads are chosen on")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    if arguments.data is None:
        print("skipped: give the corpus by --data or HEEDFUL_DATA", file=sys.stderr)
        return
    torch.set_num_threads(1)
    bench = Bench(arguments)
    start = time.perf_counter()
    answer = QUESTIONS[arguments.question](bench)
    bench.events.close()
    limit = f" --limit {arguments.limit}" if arguments.limit else ""
    result = {
        "command": f"python benchmarks/inside.py {arguments.question} --run RUN --data DIR{limit}"
        f" --choose-on {arguments.choose_on}",
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
        "corpus": f"Multi30k tok validation, first {len(bench.examples)} sentences",
        "seconds": round(time.perf_counter() - start, 1),
        **answer,
    }
    folder = arguments.results / "inside-multi30k"
    folder.mkdir(parents=True, exist_ok=True)
    # Sentences of the corpus are shown, not kept.
    kept = {name: value for name, value in result.items() if name != "examples"}
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    (folder / f"{arguments.question}.json").write_text(text + "\n", encoding="utf-8")
    for bulky in ("measures",):
        result.pop(bulky, None)
    print(json.dumps(result, ensure_ascii=False))


if __name__ == "__main__":
    main()
