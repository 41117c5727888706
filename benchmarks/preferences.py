"""Preferences (DPO, Rafailov 2023; a reward model) and rewarded answers (GRPO, Shao 2024).

    python benchmarks/preferences.py [--seeds 1 2 3] [--betas 0.1 0.5]

A small decoder learns from conversations to answer questions such as "ann likes red and bob likes
blue. What does bob like?"; half of its answers are the word alone, half the sentence "bob likes
blue". Then it learns from 1,000 pairs, of which the short answer is the chosen one. The frozen
model before is the reference. A reward model learns from the same pairs. GRPO rewards answers of
one word, or by the reward model. Another decoder learns to write dates such as "May 3, 1998" as
1998-05-03, not well, and GRPO rewards right answers to new dates. Answers to 300 new questions are
sampled, and the divergence from the reference is estimated on them too:
log π(y|x) − log π_ref(y|x), the mean over answers. Everything is made here; no data is needed.
"""

from __future__ import annotations

import json
import random
from calendar import month_name
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from driver import HERE, hide_paths, new_parser, read_events, train, write_result

import heedful as library

NAME = "preferences"
COUNTS = {"answers": 4_000, "pairs": 1_000, "dates": 2_000, "asked": 1_000}
VALID = 200
TESTED = 300
NAMES = ("ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal", "ivy", "jon", "kim", "leo")
COLOURS = ("red", "blue", "green", "pink", "grey", "black", "white", "brown")


def main() -> None:
    """Train on conversations, then on preferences and on rewards; write the results."""
    parser = new_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--betas", nargs="+", type=float, default=[0.1, 0.5])
    arguments = parser.parse_args()
    started, out = datetime.now(UTC), arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    folder = arguments.run or Path("runs") / NAME
    files, tested = write_files(folder)
    runs: list[dict[str, Any]] = []

    def trained(name: str, config: str, data: str, seed: int, **settings: Any) -> Path:
        run, log = folder / f"{name}-{seed}", out / f"{name}-{seed}.log"
        parts = {part: [str(files[f"{data}-{part}"])] for part in ("train", "valid")}
        flags = {"seed": seed} | {key.replace("__", "."): each for key, each in settings.items()}
        train(run, HERE / NAME / config, parts, flags, (), log)
        hide_paths(log, {folder: "RUNS"})
        return run

    def add(name: str, seed: int, run: Path, before: Path, data: str, **facts: Any) -> None:
        found = {"run": name, "seed": seed, **facts, **measured(run, before, tested[data])}
        print(json.dumps(found | {"samples": None}), flush=True)
        runs.append(found | ({} if run == before else {"curve": curve(run)}))
        # After each run, so that a stopped program has results.
        write_result(out, "python benchmarks/preferences.py", (), started, runs=runs)

    for seed in arguments.seeds:
        before = trained("answers", "answers.toml", "answers", seed)
        add("answers", seed, before, before, "answers")
        judge = trained("judge", "judge.toml", "pairs", seed, init=before)
        runs.append({"run": "judge", "seed": seed, "curve": curve(judge)})
        judged = {"reward": "reward_model", "judge": judge}
        for how, beta in (({"reward": "length"}, 0.04), (judged, 0.04), (judged, 0.5)):
            name = f"grpo-{how['reward']}-{beta:g}"
            settings = {f"grpo__{key}": value for key, value in how.items()}
            settings |= {"init": before, "objective__beta": beta}
            run = trained(name, "grpo.toml", "pairs", seed, **settings)
            add(name, seed, run, before, "answers", beta=beta)
        before = trained("dates", "dates.toml", "dates", seed)
        add("dates", seed, before, before, "dates")
        run = trained("grpo-dates", "grpo.toml", "asked", seed, init=before, grpo__reward="exact")
        add("grpo-dates", seed, run, before, "dates", beta=0.04)
    for seed in arguments.seeds:
        before = folder / f"answers-{seed}"
        for beta in arguments.betas:
            settings = {"init": before, "objective__beta": beta}
            run = trained(f"dpo-{beta:g}", "dpo.toml", "pairs", seed, **settings)
            add(f"dpo-{beta:g}", seed, run, before, "answers", beta=beta)


def question(draw: random.Random) -> tuple[str, str, str]:
    """Return a question, its short answer and its long one."""
    names, colours = draw.sample(NAMES, 2), draw.sample(COLOURS, 2)
    asked = draw.randrange(2)
    facts = " and ".join(f"{n} likes {c}" for n, c in zip(names, colours, strict=True))
    long = f"{names[asked]} likes {colours[asked]}"
    return f"{facts}. What does {names[asked]} like?", colours[asked], long


def date(draw: random.Random) -> tuple[str, str]:
    """Return a date in one of three forms, and in ISO's."""
    day, month, year = draw.randint(1, 28), draw.randint(1, 12), draw.randint(1900, 2030)
    name = month_name[month]
    forms = (f"{day} {name} {year}", f"{name} {day}, {year}", f"{day}.{month}.{year}")
    return draw.choice(forms), f"{year}-{month:02}-{day:02}"


def write_files(folder: Path) -> tuple[dict[str, Path], dict[str, list[tuple[str, str]]]]:
    """Write conversations, preferences and dates; return the files, and new questions to test."""
    folder.mkdir(parents=True, exist_ok=True)
    draw, seen, files = random.Random(0), set(), {}

    def fresh(make: Any) -> Any:
        while (made := make(draw))[0] in seen:
            pass
        seen.add(made[0])
        return made

    def line_of(kind: str) -> dict[str, str]:
        if kind in ("dates", "asked"):
            return dict(zip(("prompt", "answer"), fresh(date), strict=True))
        asked, short, long = fresh(question)
        if kind == "pairs":
            return {"prompt": asked, "chosen": short, "rejected": long}
        return {"prompt": asked, "answer": draw.choice((short, long))}

    for kind, count in COUNTS.items():
        for part in ("train", "valid"):
            file = files[f"{kind}-{part}"] = folder / f"{kind}-{part}.jsonl"
            lines = [line_of(kind) for _ in range(VALID if part == "valid" else count)]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    tested = {"answers": [fresh(question)[:2] for _ in range(TESTED)]}
    return files, tested | {"dates": [fresh(date) for _ in range(TESTED)]}


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
    likeliest = [answer.text for answer in model.generate(prompts, max_length=30, beam=1)]
    return {
        "short": sum(" " not in text for text in texts) / len(texts),
        "right": share_right(texts, questions),
        "greedy_right": share_right(likeliest, questions),
        "kl": mean,
        "kl_error": deviation / len(ratios) ** 0.5,
        "samples": [
            {"prompt": asked, "answer": text}
            for (asked, _), text in zip(questions[:5], texts, strict=False)
        ],
    }  # fmt: skip


def share_right(texts: list[str], questions: list[tuple[str, str]]) -> float:
    """Return the share of the answers that end in the right one."""
    pairs = zip(texts, questions, strict=True)
    return sum(text.endswith(right) for text, (_, right) in pairs) / len(texts)


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
    """Return what each validation of a run measured, and the reward of every tenth update."""
    names = ("loss", "accuracy", "margin", "reward", "kl")
    return [
        {"step": event["step"], **{n: round(event[n], 4) for n in names if n in event}}
        for event in read_events(run)
        if event.get("event") == "validation"
        or ("event" not in event and "reward" in event and event["step"] % 10 == 0)
    ]


if __name__ == "__main__":
    main()
