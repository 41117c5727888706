"""Direct preference optimisation (DPO, Rafailov 2023) of the length of answers.

    python benchmarks/preferences.py [--seeds 1 2 3] [--betas 0.1 0.5]

A small decoder learns from conversations to answer questions such as "ann likes red and bob likes
blue. What does bob like?"; half of its answers are the word alone, half the sentence "bob likes
blue". Then it learns from 1,000 pairs, of which the short answer is the chosen one. The frozen
model before is the reference. Answers to 300 new questions are sampled, and the divergence from the
reference is estimated on them too: log π(y|x) − log π_ref(y|x), the mean over answers. Everything
is made here; no data is needed.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from driver import HERE, hide_paths, new_parser, read_events, train, write_result

import heedful as library

NAME = "preferences"
COUNTS = {"answers": 4_000, "pairs": 1_000, "valid": 200}
TESTED = 300
NAMES = ("ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal", "ivy", "jon", "kim", "leo")
COLOURS = ("red", "blue", "green", "pink", "grey", "black", "white", "brown")


def main() -> None:
    """Train on conversations, then on preferences with each beta; write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--betas", nargs="+", type=float, default=[0.1, 0.5])
    arguments = parser.parse_args()
    started, out = datetime.now(UTC), arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    folder = arguments.run or Path("runs") / NAME
    files, questions = write_files(folder)
    runs = []
    for seed in arguments.seeds:
        before = folder / f"answers-{seed}"
        parts = {name: [str(files[f"answers-{name}"])] for name in ("train", "valid")}
        log = out / f"answers-{seed}.log"
        train(before, HERE / NAME / "answers.toml", parts, {"seed": seed}, (), log)
        hide_paths(log, {folder: "RUNS"})
        runs.append({"seed": seed, "beta": None, **measured(before, before, questions)})
        parts = {name: [str(files[f"pairs-{name}"])] for name in ("train", "valid")}
        for beta in arguments.betas:
            run, log = folder / f"dpo-{beta:g}-{seed}", out / f"dpo-{beta:g}-{seed}.log"
            settings = {"seed": seed, "init": before, "objective.beta": beta}
            train(run, HERE / NAME / "dpo.toml", parts, settings, (), log)
            hide_paths(log, {folder: "RUNS"})
            facts = measured(run, before, questions)
            runs.append({"seed": seed, "beta": beta, **facts, "curve": curve(run)})
            print(json.dumps(runs[-1] | {"curve": None}), flush=True)
        # After each seed, so that a stopped program has results.
        write_result(out, "python benchmarks/preferences.py", (), started, runs=runs)


def question(draw: random.Random) -> tuple[str, str, str]:
    """Return a question, its short answer and its long one."""
    names, colours = draw.sample(NAMES, 2), draw.sample(COLOURS, 2)
    asked = draw.randrange(2)
    facts = " and ".join(f"{n} likes {c}" for n, c in zip(names, colours, strict=True))
    long = f"{names[asked]} likes {colours[asked]}"
    return f"{facts}. What does {names[asked]} like?", colours[asked], long


def write_files(folder: Path) -> tuple[dict[str, Path], list[tuple[str, str]]]:
    """Write conversations and preferences; return the files, and new questions with answers."""
    folder.mkdir(parents=True, exist_ok=True)
    draw, seen, files = random.Random(0), set(), {}

    def fresh() -> tuple[str, str, str]:
        while (made := question(draw))[0] in seen:
            pass
        seen.add(made[0])
        return made

    for kind in ("answers", "pairs"):
        for part in ("train", "valid"):
            file = files[f"{kind}-{part}"] = folder / f"{kind}-{part}.jsonl"
            with file.open("w", encoding="utf-8") as lines:
                for _ in range(COUNTS["valid"] if part == "valid" else COUNTS[kind]):
                    asked, short, long = fresh()
                    line = {"prompt": asked, "answer": draw.choice((short, long))}
                    if kind == "pairs":
                        line = {"prompt": asked, "chosen": short, "rejected": long}
                    lines.write(json.dumps(line) + "\n")
    return files, [fresh()[:2] for _ in range(TESTED)]


def measured(run: Path, before: Path, questions: list[tuple[str, str]]) -> dict[str, Any]:
    """Sample answers of a run: how many are short, and right, and how far from the model before."""
    model: Any = library.load(run)
    reference: Any = library.load(before)
    prompts = [model.chat_prompt([{"role": "user", "content": asked}]) for asked, _ in questions]
    answers = model.generate(prompts, max_length=30, sampling=True, seed=1)
    texts = [answer.text for answer in answers]
    ratios = [
        log_probability(model, prompt, answer) - log_probability(reference, prompt, answer)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    mean = sum(ratios) / len(ratios)
    deviation = (sum((each - mean) ** 2 for each in ratios) / (len(ratios) - 1)) ** 0.5
    return {
        "short": sum(" " not in text for text in texts) / len(texts),
        "right": sum(
            text.endswith(right) for text, (_, right) in zip(texts, questions, strict=True)
        ) / len(texts),
        "kl": mean,
        "kl_error": deviation / len(ratios) ** 0.5,
        "samples": [
            {"prompt": asked, "answer": text}
            for (asked, _), text in zip(questions[:5], texts, strict=False)
        ],
    }  # fmt: skip


def log_probability(pipeline: Any, prompt: Any, answer: Any) -> float:
    """Return the log-probability of an answer and its end under a model."""
    from heedful.text.field_tokenizer import prompt_ids

    begun, end = prompt_ids(pipeline.tokenizer, prompt), [pipeline.tokenizer.eos]
    written = [*answer.tokens, *(end if answer.ended == "end" else [])]
    with torch.no_grad():
        states = pipeline.model(torch.tensor([[*begun, *written]]))[0, len(begun) - 1 : -1]
        scores = F.log_softmax(pipeline.model.logits(states), -1)
    return float(scores.gather(-1, torch.tensor(written)[:, None]).sum())


def curve(run: Path) -> list[dict[str, float]]:
    """Return what each validation of a run measured."""
    names = ("loss", "accuracy", "margin", "kl")
    found = [event for event in read_events(run) if event.get("event") == "validation"]
    return [{"step": event["step"], **{n: round(event[n], 4) for n in names}} for event in found]


if __name__ == "__main__":
    main()
