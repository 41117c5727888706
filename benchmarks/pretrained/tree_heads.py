"""Find the heads that look from one word of a relation to the other, by trees that people made.

    python benchmarks/pretrained/tree_heads.py --data DIR [--models en-de english english-masked]

DIR holds gum_dep, the dependency trees of GUM with its entities (or set HEEDFUL_DATA). For each
model at hand that reads English, and for each relation of gum_relations.py, a head is right where
the other word gets more of its attention than any word besides, the word itself and special tokens
left out (Clark 2019). One head of all is chosen on a third of the training documents, and so is the
best fixed offset, such as "always the next word"; both are measured on the validation documents and
another third. A model that reads from left to right is asked for earlier words alone. Intervals are
95 % of 1,000 resamples of documents. The cards of the models get what was found (`noted_heads`).

The vectors of "bank" for water and for money are compared, too (bank_senses.py).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bank_senses import bank_senses  # noqa: E402 (scripts of these folders)
from driver import new_parser, parse, write_result  # noqa: E402
from gum_relations import PRONOUN, RELATIONS, Sentence, read_sentences  # noqa: E402
from noted_head import between_words  # noqa: E402
from publish import amend_card  # noqa: E402
from tables import markdown_table  # noqa: E402

from heedful import inspect  # noqa: E402
from heedful.apps.evaluation.bootstrap import Interval, ratio_interval  # noqa: E402
from heedful.pretrained.catalogue import FOLDER, models_at_hand  # noqa: E402

NAME = "tree-heads"
MODELS = {"en-de": "encoder", "english": "decoder", "english-masked": "encoder"}
NAMES = [*(way for pair in RELATIONS.items() for way in pair), PRONOUN]

LONGEST = 40
"""Words of a sentence: longer ones do not fit every model."""

OFFSETS = [*range(-10, 0), *range(1, 11)]

EXAMPLES = {
    "The cat sat on the": {
        "verb → subject": ("sat", "cat"),
        "noun → determiner": ("cat", "The"),
    },
    "I went to the bank to borrow some [MASK].": {
        "verb → subject": ("went", "I"),
        "subject → verb": ("I", "went"),
        "object → verb": ("<mask>", "borrow"),
        "verb → object": ("borrow", "<mask>"),
        "noun → determiner": ("bank", "the"),
    },
}
"""Pieces of first examples of cards that stand in relations, those first that say most."""

FEWEST = 50
"""Pairs that are measured, of a relation that is reported."""


@dataclass(frozen=True)
class Found:
    """A pair of a relation: which heads, (layers, heads), and which offsets are right."""

    document: str
    heads: np.ndarray
    offsets: np.ndarray


def main() -> None:
    """Measure each model, write its card and the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=[*MODELS])
    parser.add_argument("--most", type=int, help="sentences of each part")
    parser.add_argument("--leave-cards", action="store_true", help="write no card")
    arguments = parse(parser)
    started = datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    choosing, measured = gum_parts(arguments.data / "gum_dep")
    # Evenly over the documents, which are sorted by their kind.
    parts = [p[:: math.ceil(len(p) / (arguments.most or len(p)))] for p in (choosing, measured)]
    counts = {"chosen_on": len(parts[0]), "measured_on": len(parts[1])}
    # Kept, as models may be asked for one by one.
    kept = out / "result.json"
    by_name = {}
    if kept.exists():
        by_name = {run["model"]: run for run in json.loads(kept.read_text("utf-8"))["runs"]}
    for name in arguments.models:
        rows = relation_heads(name, *parts)
        senses = bank_senses(name)
        by_name[name] = {"model": name, **counts, "relations": rows, "senses": senses}
        if not arguments.leave_cards:
            amend_card(FOLDER / name, {"noted_heads": rows, **example_head(name, rows)})
        print(relation_table(rows), *senses, sep="\n", flush=True)
    runs = [by_name[name] for name in MODELS if name in by_name]
    for run in runs:
        (out / f"{run['model']}.md").write_text(relation_table(run["relations"]), encoding="utf-8")
    (out / "bank.md").write_text(_sense_table(runs), encoding="utf-8")
    command = "python benchmarks/pretrained/tree_heads.py --data DIR"
    write_result(out, command, arguments.extra, started, longest=LONGEST, runs=runs)


def gum_parts(folder: Path) -> tuple[list[Sentence], list[Sentence]]:
    """Return sentences on which heads are chosen, and those of other documents to measure them."""
    train = list(read_sentences(folder / "train.conllu.gz", LONGEST))
    third = {document: i % 3 for i, document in enumerate(dict.fromkeys(s.document for s in train))}
    measured = list(read_sentences(folder / "dev.conllu.gz", LONGEST))
    measured += [each for each in train if third[each.document] == 1]
    return [each for each in train if third[each.document] == 0], measured


def relation_heads(
    name: str, choosing: Sequence[Sentence], measured: Sequence[Sentence]
) -> list[dict[str, Any]]:
    """Return the best head of each relation beside the best offset, as `noted_heads` of a card.

    Args:
        name: name of a model at hand.
        choosing: sentences on which head and offset are chosen.
        measured: sentences on which they are measured.
    """
    model = inspect.load(FOLDER / name)
    chosen, found = (pairs_found(model, MODELS[name], part) for part in (choosing, measured))
    rows = []
    for relation in NAMES:
        train, test = chosen.get(relation, []), found.get(relation, [])
        if not train or len(test) < FEWEST:
            continue
        by_head = np.mean([each.heads for each in train], axis=0)
        layer, head = map(int, np.unravel_index(by_head.argmax(), by_head.shape))
        best = int(np.mean([each.offsets for each in train], axis=0).argmax())
        right = [float(each.heads[layer, head]) for each in test]
        beside = [float(each.offsets[best]) for each in test]
        gains = [one - other for one, other in zip(right, beside, strict=True)]
        gain = _by_document(gains, test)
        rows.append(
            {
                "relation": relation,
                "part": MODELS[name],
                "layer": layer + 1,
                "head": head + 1,
                "share": round(float(np.mean(right)), 3),
                "offset": OFFSETS[best],
                "offset_share": round(float(np.mean(beside)), 3),
                "gain": [round(gain.low, 3), round(gain.high, 3)],
                "count": len(test),
            }
        )
    return rows


def example_head(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the field `noted_head` of a card: a head that shows its relation in the first example.

    It is the head of the first pair in `EXAMPLES` that is better than the offset, and right in the
    example. Nothing is returned for a model without such a head, whose card keeps what it has.

    Args:
        name: name of a model at hand.
        rows: its heads, from `relation_heads`.
    """
    text = models_at_hand()[name].card().examples[0].text
    clear = {row["relation"]: row for row in rows if row["gain"][0] > 0}
    pairs = {name: pair for name, pair in EXAMPLES.get(text, {}).items() if name in clear}
    if not pairs:
        return {}
    model = inspect.load(FOLDER / name)
    reading = inspect.read(model, text)
    for relation, pair in pairs.items():
        row = clear[relation]
        pieces = [piece.strip("▁") for piece in reading.tokens(row["part"]).pieces]
        word, other = map(pieces.index, pair)
        weights = inspect.attention(model, reading, row["part"]).weights
        own = weights[row["layer"] - 1, row["head"] - 1, word].copy()
        own[[word, *np.flatnonzero(reading.tokens(row["part"]).special)]] = -1.0
        if own.argmax() == other:
            about = f"Its strongest line goes from “{pieces[word]}” to “{pieces[other]}”."
            kept = {key: row[key] for key in ("part", "layer", "head")}
            return {"noted_head": {**kept, "word": pieces[word], "about": about}}
    return {}


def _by_document(values: Sequence[float], pairs: Sequence[Found]) -> Interval:
    """Return the interval of a mean over pairs, of which those of a document are dependent."""
    sums: dict[str, list[float]] = {}
    for value, pair in zip(values, pairs, strict=True):
        sums.setdefault(pair.document, []).append(value)
    return ratio_interval([sum(each) for each in sums.values()], [*map(len, sums.values())])


def pairs_found(model: Any, part: str, sentences: Sequence[Sentence]) -> dict[str, list[Found]]:
    """Return for each relation which heads and offsets find the right word, pair by pair."""
    found: dict[str, list[Found]] = {}
    limit = model.model.spec.max_length or sys.maxsize
    for sentence in sentences:
        ids, spans = model.source.encode_spans(sentence.text)
        unit_of, pieces = units(sentence.spans, spans)
        if not sentence.pairs or len(ids) + 2 > limit or len(pieces) < 2:
            continue
        # A translator's encoder does not see the target; one that is given need not be searched.
        target = "." if model.model.spec.reads == "pairs" else None
        reading = inspect.read(model, sentence.text, target)
        tokens = reading.tokens(part)
        if [
            id for id, special in zip(tokens.ids, tokens.special, strict=True) if not special
        ] != ids:
            continue  # text that the reading cleans
        first = tokens.special.index(False)
        places = [[piece + first for piece in each] for each in pieces]
        between = between_words(inspect.attention(model, reading, part).weights, places, places)
        index = np.arange(len(places))
        between[:, :, index, index] = -1.0
        looks_at = between.argmax(axis=-1)  # (layers, heads, words)
        for relation, pairs in sentence.pairs.items():
            for word, right in _of_units(pairs, unit_of, backwards=part == "decoder"):
                heads = np.isin(looks_at[:, :, word], right)
                offsets = np.isin(word + np.array(OFFSETS), right)
                found.setdefault(relation, []).append(Found(sentence.document, heads, offsets))
    return found


def units(
    words: Sequence[tuple[int, int]], pieces: Sequence[tuple[int, int]]
) -> tuple[list[int], list[list[int]]]:
    """Return the unit of each word, and the pieces of each unit.

    A unit is a word, or several that share a piece: "don't" with the pieces "don", "'" and "t". A
    piece of spaces belongs to the word after it.

    Args:
        words: start and end of each word in the text, in order.
        pieces: start and end of each piece of the tokenizer, in order.
    """
    parents = list(range(len(words)))
    first_of = []
    for start, end in pieces:
        after = [i for i, (_, stop) in enumerate(words) if stop > start]
        inside = [i for i in after if words[i][0] < end] or after[:1] or [len(words) - 1]
        first_of.append(inside[0])
        for each in inside[1:]:
            parents[each] = parents[inside[0]]
    numbers = {parent: i for i, parent in enumerate(dict.fromkeys(parents))}
    unit_of = [numbers[parent] for parent in parents]
    pieces_of: list[list[int]] = [[] for _ in numbers]
    for piece, word in enumerate(first_of):
        pieces_of[unit_of[word]].append(piece)
    return unit_of, pieces_of


def _of_units(
    pairs: dict[int, set[int]], unit_of: Sequence[int], *, backwards: bool
) -> list[tuple[int, list[int]]]:
    """Return pairs of words as pairs of units, without those of one unit or, if asked, later."""
    found: dict[int, set[int]] = {}
    for word, others in pairs.items():
        found.setdefault(unit_of[word], set()).update(unit_of[other] for other in others)
    kept = {
        word: [
            other for other in sorted(others) if other != word and not (backwards and other > word)
        ]
        for word, others in found.items()
    }
    return [(word, others) for word, others in kept.items() if others]


def relation_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return what was found of a model as a table."""
    table = [["relation", "layer.head", "share", "always the word at", "share", "gain", "pairs"]]
    for row in rows:
        low, high = (f"{100 * each:+.1f}" for each in row["gain"])
        table.append(
            [
                row["relation"],
                f"{row['layer']}.{row['head']}",
                f"{row['share']:.1%}",
                f"{row['offset']:+d}",
                f"{row['offset_share']:.1%}",
                f"{low} to {high}",
                f"{row['count']:,}",
            ]
        )
    return markdown_table(table)


def _sense_table(runs: Sequence[dict[str, Any]]) -> str:
    table = [["model", "sentences", "water", "money", "mean of both"]]
    for run in runs:
        for each in run["senses"]:
            cells = [
                f"{each[sense]:.1%} of {each['counts'][sense]}" for sense in ("water", "money")
            ]
            mean = (each["water"] + each["money"]) / 2
            table.append([run["model"], each["which"], *cells, f"{mean:.1%}"])
    return markdown_table(table)


if __name__ == "__main__":
    main()
