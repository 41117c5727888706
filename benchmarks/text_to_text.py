"""Text to text: five tasks by one model with prefixes (T5, Raffel 2020), and by one model each.

    python benchmarks/text_to_text.py --data DIR [--runs trees mixture …] [--updates 120]

DIR holds scitldr, wnut17, xquad and gum (or set HEEDFUL_DATA); code comes from Python's own
library. A run is a task, `mixture` of all five with as many updates as five tasks have together,
`trees-long` with ten times as many of trees alone, or an encoder that begins with english-masked:
`tagger` of named entities and `reader` of questions. Settings stand in benchmarks/text_to_text/.
Every test set is read once; intervals are 95 % of 1,000 resamples of its examples.
"""

from __future__ import annotations

import json
import tomllib
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w
import torch
from driver import HERE, heedful, hide_paths, new_parser, parse, read_events, write_result
from text_pairs import TASKS, Example, abstracts, messages, parses, squad

from heedful.apps.evaluation.bootstrap import Interval, ratio_interval, score_intervals
from heedful.data.text_corpus import QuestionReader, TaggedReader
from heedful.errors import DataError
from heedful.evaluate.brackets import coded_tree, read_tree
from heedful.evaluate.task_metrics import answer_exact_match, answer_f1, spans_of
from heedful.evaluate.text_metrics import Rouge1
from heedful.pipelines.search_items import encoder_input
from heedful.pipelines.text_encoding import EncoderPipeline
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.dispatch import search
from heedful.search.search_settings import SearchSettings
from heedful.search.tree_grammar import TreeGrammar, TreeModel

NAME = "text-to-text"
ENCODERS = ("tagger", "reader")


def main() -> None:
    """Train each run, measure it on its tests, write the results."""
    parser = new_parser(__doc__)
    choices = [*TASKS, "mixture", "trees-long", *ENCODERS]
    parser.add_argument("--runs", nargs="+", default=choices, choices=choices)
    parser.add_argument("--updates", type=int, default=120, help="updates of a task alone")
    arguments = parse(parser)
    started = datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    folder = arguments.run or Path("runs") / NAME
    folder.mkdir(parents=True, exist_ok=True)
    rows = [measured(arguments, name, folder, out) for name in arguments.runs]
    # Kept, as runs may be asked for one by one.
    kept = out / "beside.json"
    if not kept.exists():
        kept.write_text(json.dumps(baselines(arguments), indent=2) + "\n", encoding="utf-8")
    beside = json.loads(kept.read_text(encoding="utf-8"))
    command = "python benchmarks/text_to_text.py --data DIR"
    write_result(out, command, arguments.extra, started, runs=rows, beside=beside)


def measured(arguments: Namespace, name: str, folder: Path, out: Path) -> dict[str, Any]:
    """Train a run if it is not trained yet, and return what it measures; kept in a file."""
    kept = out / f"{name}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    run, log = folder / name, out / f"{name}.log"
    if not (run / "model").exists():
        heedful(["train", str(run), *words(arguments, name, folder), *arguments.extra], log)
        hide_paths(log, {folder: "RUNS", arguments.data: "DIR"})
    summary = read_events(run)[-1]
    if name in ENCODERS:
        scores = encoder_scores(run, name, arguments.data, folder)
    else:
        scores = text_scores(run, tasks_of(name), arguments.data)
    minutes = round(summary["seconds"] / 60, 1)
    row = {"run": name, "updates": summary["steps"], "minutes": minutes, "scores": scores}
    kept.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(row), flush=True)
    return row


def tasks_of(name: str) -> list[str]:
    """The tasks that a run learns."""
    return list(TASKS) if name == "mixture" else [name.removesuffix("-long")]


def words(arguments: Namespace, name: str, folder: Path) -> list[str]:
    """The flags by which a run is trained; its data is written beside it."""
    if name in ENCODERS:
        files = encoder_files(arguments.data, name, folder)
        config = HERE / "text_to_text" / f"{name}.toml"
        return ["--config", str(config), "--train", str(files[0]), "--valid", str(files[1])]
    settings = tomllib.loads((HERE / "text_to_text" / "text.toml").read_text(encoding="utf-8"))
    corpora: dict[str, list[dict[str, str]]] = {"train": [], "valid": []}
    for task in tasks_of(name):
        parts = TASKS[task].read(arguments.data)
        for part, files in corpora.items():
            file = folder / f"{task}.{part}.jsonl"
            pairs = [{"source": e.source, "target": e.target} for e in parts[part]]
            file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
            files.append({"file": str(file), "task_prefix": TASKS[task].prefix})
    settings["data"] |= corpora
    more = {"mixture": len(TASKS), "trees-long": 10}
    settings["max_steps"] = arguments.updates * more.get(name, 1)
    config = folder / f"{name}.toml"
    config.write_text(tomli_w.dumps(settings), encoding="utf-8")
    return ["--config", str(config)]


def text_scores(run: Path, names: Sequence[str], data: Path) -> dict[str, Any]:
    """The scores of a model of text on the tests of tasks."""
    pipeline = TranslationPipeline.load(run, split="none")
    found: dict[str, Any] = {}
    for name in names:
        parts = TASKS[name].read(data)
        examples = parts["test"]
        found[name] = scores_of(name, examples, answers(pipeline, name, examples))
        found[name]["nats_per_word"] = nats(pipeline, name, examples)
        if name == "trees":
            ruled = ruled_codes(pipeline, parts["train"], examples)
            found["trees-by-grammar"] = tree_scores(examples, ruled)
        if name == "questions":
            german = TASKS[name].read(data, "de")["test"]  # type: ignore[call-arg]
            found["questions-de"] = scores_of(name, german, answers(pipeline, name, german))
    return found


def answers(pipeline: Any, name: str, examples: Sequence[Example]) -> list[str]:
    """What a model answers, found greedily and kept as it is written."""
    longest = {"trees": 130, "summaries": 60}.get(name, 40)
    sources = [TASKS[name].prefix + example.source for example in examples]
    options: dict[str, Any] = {"beam": 1, "max_length": longest, "protect": []}
    return list(map(str, pipeline.translate(sources, **options)))


def nats(pipeline: Any, name: str, examples: Sequence[Example]) -> dict[str, float]:
    """Minus the log-probability of the right answers by their words, with its interval.

    Models with different tokens can be compared by it, and before one of their answers is right.
    """
    sources = [TASKS[name].prefix + example.source for example in examples]
    scored = pipeline.score(sources, [example.target for example in examples])
    words = [float(len(example.target.split())) for example in examples]
    return rounded(ratio_interval([-each.score for each in scored], words))


def ruled_codes(pipeline: Any, train: Sequence[Example], test: Sequence[Example]) -> list[str]:
    """Codes of trees that are found greedily among those of the sentence's words alone."""
    tokenizers, device = pipeline.tokenizers, pipeline.device
    labels = {each for e in train for each in e.target.split() if not each.isdecimal()}
    grammar = TreeGrammar.of(tokenizers.target, labels, device)
    order = sorted(range(len(test)), key=lambda i: len(test[i].source))
    codes = [""] * len(test)
    for start in range(0, len(order), 64):
        batch = order[start : start + 64]
        ids = tokenizers.source.encode_batch(
            [TASKS["trees"].prefix + test[i].source for i in batch]
        )
        words = torch.tensor([len(test[i].source.split()) for i in batch], device=device)
        settings = SearchSettings(beam=1, max_length=grammar.most_tokens * int(words.max()))
        model = TreeModel(pipeline.engine, grammar, words)
        source, positions = encoder_input(ids, tokenizers, device)
        found = search(model, source, positions, settings, specials=pipeline.specials)
        for i, (best, *_) in zip(batch, found, strict=True):
            codes[i] = tokenizers.target.decode(best.tokens)
    return codes


def encoder_files(data: Path, name: str, folder: Path) -> list[Path]:
    """Write the files of an encoder: training, validation, test, and for a reader German."""
    if name == "tagger":
        train = messages(data, "train")
        parts = {"train": train[:-400], "valid": train[-400:], "test": messages(data, "dev")}
        texts = {
            f"{part}.conll": "".join(
                "".join(f"{word}\t{tag}\n" for word, tag in message) + "\n" for message in found
            )
            for part, found in parts.items()
        }
    else:
        texts = {
            f"{part}.json": json.dumps({"version": "1.1", "data": articles})
            for part, articles in squad(data, "en").items()
        }
        german = squad(data, "de")["test"]
        texts["german.json"] = json.dumps({"version": "1.1", "data": german})
    files = {text_name.split(".")[0]: folder / f"{name}.{text_name}" for text_name in texts}
    for file, text in zip(files.values(), texts.values(), strict=True):
        file.write_text(text, encoding="utf-8")
    return [files[part] for part in ("train", "valid", "test", "german") if part in files]


def encoder_scores(run: Path, name: str, data: Path, folder: Path) -> dict[str, Any]:
    """The scores of a tagger or a reader on its tests."""
    _, _, *tests = encoder_files(data, name, folder)
    pipeline = EncoderPipeline.load(run)
    if name == "tagger":
        sentences = list(TaggedReader(tests[0]))
        found = pipeline.tag([sentence.words for sentence in sentences])
        sums, counts = [], []
        for words_, sentence in zip(found, sentences, strict=True):
            ours = set(spans_of([word.label for word in words_]))
            right = set(spans_of(sentence.tags))
            # F1 is twice the right spans by those of both sides.
            sums.append(2.0 * len(ours & right))
            counts.append(float(len(ours) + len(right)))
        return {"entities": {"entity_f1": hundredths(ratio_interval(sums, counts))}}
    scores = {}
    for language, file in zip(("questions", "questions-de"), tests, strict=True):
        asked = list(QuestionReader(file))
        texts = [a.text for a in pipeline.answer([(q.question, q.context) for q in asked])]
        right = [[answer.text for answer in q.answers] for q in asked]
        pairs = list(zip(texts, right, strict=True))
        scores[language] = {
            "answer_exact": share([answer_exact_match([a], [r]) for a, r in pairs]),
            "answer_f1": share([answer_f1([a], [r]) for a, r in pairs]),
        }
    return scores


def baselines(arguments: Namespace) -> dict[str, Any]:
    """The scores of what needs no training."""
    examples = {name: task.read(arguments.data)["test"] for name, task in TASKS.items()}
    sentences = abstracts(arguments.data)
    lead = [each[0] for each in sentences]
    scorer = Rouge1()
    pairs = list(zip(sentences, examples["summaries"], strict=True))
    best = [max(s, key=lambda text, e=e: scorer.score_one(text, e.references)) for s, e in pairs]
    lengths = [len(e.source.split()) for e in examples["trees"]]
    right = [
        " ".join(["S 0", *["VP 0"] * (n - 2), str(n - 1)]) if n > 1 else "S 1" for n in lengths
    ]
    return {
        "lead-1": scores_of("summaries", examples["summaries"], lead),
        "best sentence by ROUGE-1": scores_of("summaries", examples["summaries"], best),
        "right-branching": tree_scores(examples["trees"], right),
        "always self": scores_of("code", examples["code"], ["self"] * len(examples["code"])),
    }


def scores_of(name: str, examples: Sequence[Example], texts: Sequence[str]) -> dict[str, Any]:
    """The scores of answers to a task, with intervals."""
    if name == "trees":
        return tree_scores(examples, texts)
    metrics = {
        "summaries": ("rouge1", "rouge2", "rougeL"),
        "entities": ("entity_f1",),
        "questions": ("answer_exact", "answer_f1"),
        "code": ("answer_exact",),
    }[name]
    if name == "code":
        pairs = list(zip(examples, texts, strict=True))
        exact = [float(text.split() == e.target.split()) for e, text in pairs]
        right = [float(parses(text, e.references[1])) for e, text in pairs]
        return {"exact": share(exact), "parses": share(right)}
    most = max(len(example.references) for example in examples)
    # An example with fewer references repeats its first: the best counts.
    lists = [
        [e.references[i] if i < len(e.references) else e.references[0] for e in examples]
        for i in range(most)
    ]
    scores = score_intervals(texts, lists, metrics)
    return {metric: rounded(interval) for metric, interval in scores.items()}


def tree_scores(examples: Sequence[Example], codes: Sequence[str]) -> dict[str, Any]:
    """Bracket F1 of coded trees, and the share that are trees of their sentences."""
    texts, formed = [], []
    for example, code in zip(examples, codes, strict=True):
        leaves = read_tree(example.references[0]).leaves()
        try:
            texts.append(str(coded_tree(code, [leaf.word or "" for leaf in leaves])))
        except DataError:
            texts.append("")
        formed.append(float(texts[-1] != ""))
    references = [example.references[0] for example in examples]
    interval = score_intervals(texts, references, ("bracket_f1",))["bracket_f1"]
    return {"bracket_f1": rounded(interval), "well_formed": share(formed)}


def share(values: Sequence[float]) -> dict[str, float]:
    """The mean of values from 0 to 1 in hundredths, with its interval."""
    return hundredths(ratio_interval(values, [1.0] * len(values)))


def hundredths(interval: Interval) -> dict[str, float]:
    """An interval of values from 0 to 1 as data, in hundredths."""
    return {key: round(100 * value, 2) for key, value in asdict(interval).items()}


def rounded(interval: Interval) -> dict[str, float]:
    """An interval as data."""
    return {key: round(value, 2) for key, value in asdict(interval).items()}


if __name__ == "__main__":
    main()
