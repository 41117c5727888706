"""How fast language models write on a processor: beside a peer, with drafts, with known beginnings.

    python benchmarks/speed/text_on_processors.py beside --threads 1 --clock cpu
    python benchmarks/speed/text_on_processors.py drafts --threads 1 --clock cpu
    python benchmarks/speed/text_on_processors.py drafts … --pair BIG SMALL --prompts FILE
    python benchmarks/speed/text_on_processors.py prefixes --threads 1 --clock cpu

`beside`: GPT-2's smallest shape (124 M parameters, random weights, the same for all) reads prompts
of 128 tokens, and writes 32 tokens after prompts of 32. Heedful in float32 and in 8 bits, and
Hugging Face's `generate` in float32 with the faster attention, from the environment of this
program. They take turns; figures are tokens a second, of the clock or of processor time. llama.cpp
is not among them: its Python package has no wheel, only sources.

`drafts`: greedy continuations of code with drafts (`heedful generate --draft`, `--lookup`) and
without, and how many have equal tokens. The models are twelve layers of GPT-2's width with random
weights, drafted by their own first layer. All but the first layer are scaled by a factor, which
decides how often the draft is right. With --pair they are two given ones of one vocabulary, which
go on with the lines of a file (benchmarks/speed/first_layers.py makes a model that drafts).

`prefixes`: the seconds to the first token of a prompt, with 80 or 400 tokens that an earlier prompt
had too, and without.
"""

from __future__ import annotations

import argparse
import inspect
import random
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from generating import CONFIG, SMALL
from harness import Row, finish, new_parser, parse, say
from turns import Turn, Worker, alternate, ratio, summary

READ, WRITTEN, PROMPT = 128, 32, 32
"""Tokens of a prompt that is only read; new tokens, and tokens of the prompt before them."""
SCALES = (0.0, 0.3)
"""Factors of all layers but the first: with 0 the first layer alone decides."""
NEW = 32
SHARED, OWN = (80, 400), 8
"""Tokens that prompts share, and tokens of their own."""
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def beside(arguments: argparse.Namespace, stack: ExitStack) -> tuple[list[Row], dict[str, Any]]:
    """Let Heedful and Hugging Face read and write in turns."""
    folder: Path = arguments.work / "text-on-processors"
    shutil.rmtree(folder, ignore_errors=True)
    config = SMALL if arguments.quick else CONFIG
    read, written, prompt = (8, 4, 4) if arguments.quick else (READ, WRITTEN, PROMPT)
    drawn = random.Random(1)
    long, short = (drawn.choices(range(config["vocab_size"]), k=n) for n in (read, prompt))
    workers: dict[str, Worker] = {}
    tokens: dict[str, list[int]] = {}

    def worker(script: str, name: str) -> Worker:
        workers[name] = Worker(script, folder / f"{name}.log", threads=arguments.threads)
        stack.callback(workers[name].close)
        return workers[name]

    for precision in ("fp32", "int8"):
        export = str(folder / "model") if precision == "fp32" else None
        worker("language_model_generator.py", f"heedful {precision}").ask(
            "begin", config=config, precision=precision, device="cpu", export=export
        )
    peers = {"llama.cpp": "left out: llama-cpp-python has no wheel, only sources"}
    if not arguments.no_peers:
        peers["transformers"] = version("transformers")
        worker("gpt2_generator.py", "huggingface fp32").ask(
            "begin",
            model=str(folder / "model"),
            device="cpu",
            dtype="float32",
            static=False,
            compile=False,
            batches=[[short]],
            new=2,
        )

    def turn(name: str, ids: list[int], new: int) -> Turn:
        def run(number: int) -> float:
            done = workers[name].ask("generate", prompts=[ids], batch=1, new=new)
            tokens[name] = done["ids"][0]
            seconds = done["cpu_seconds" if arguments.clock == "cpu" else "seconds"]
            return float((len(ids) if new == 1 else new) / seconds)

        return run

    rows: list[Row] = []
    facts: dict[str, Any] = {"figures": {}, "equal_tokens": {}}
    for what, ids, new in (("reading", long, 1), ("writing", short, written)):
        turns = {name: turn(name, ids, new) for name in workers}
        for run in turns.values():
            run(0)  # memory is taken, and weights are read for the first time
        figures = alternate(turns, arguments.rounds, say)
        facts["figures"][what] = {name: summary(runs) for name, runs in figures.items()}
        facts["equal_tokens"][what] = {
            name: sum(map(int.__eq__, ids, tokens["heedful fp32"])) / len(ids)
            for name, ids in tokens.items()
        }
        theirs = figures.get("huggingface fp32")
        for name in ("heedful fp32", "heedful int8"):
            row: dict[str, Any] = {"work": f"{what}: {name}", "unit": "tokens/s"}
            row["ours"] = summary(figures[name])
            if theirs is not None:
                row |= {"theirs": summary(theirs), "ratio": ratio(figures[name], theirs)}
            rows.append(row)
    return rows, facts | {"peers": peers}


class Drafting:
    """A model and a smaller one, which write the same prompts in turns.

    Args:
        model: model that decides.
        small: model that drafts.
        prompts: beginnings of texts.
        new: tokens of each text.
        clock: clock in seconds.
    """

    def __init__(self, model: Any, small: Any, prompts: list[str], new: int, clock: Clock) -> None:
        from heedful.search.search_settings import GenerationSettings

        self.model, self.prompts, self.clock = model, prompts, clock
        self.settings = GenerationSettings(max_length=new)
        self.ways = {"draft": {"draft": small}, "lookup": {"lookup": 3}}
        self.texts: dict[str, Any] = {}
        self.accepted: dict[str, float] = {}

    def plain(self, number: int) -> float:
        """Write without drafts; tokens a second."""
        began = self.clock()
        found = self.model.generate(self.prompts, settings=self.settings, batch_size=1)
        return self._rate("plain", found, began)

    def drafted(self, way: str, number: int) -> float:
        """Write with drafts of one kind; tokens a second."""
        from heedful.pipelines.speculative_generation import speculate

        began = self.clock()
        options: Any = self.ways[way]
        found, numbers = speculate(self.model, self.prompts, settings=self.settings, **options)
        self.accepted[way] = round(numbers.acceptance, 3)
        return self._rate(way, found, began)

    def equal(self, way: str) -> str:
        """How many texts have the tokens of those without drafts."""
        pairs = zip(self.texts[way], self.texts["plain"], strict=True)
        return f"{sum(a.tokens == b.tokens for a, b in pairs)} of {len(self.prompts)}"

    def _rate(self, way: str, found: Any, began: float) -> float:
        seconds = self.clock() - began
        self.texts[way] = found
        return float(sum(len(each.tokens) for each in found) / seconds)


def drafts(arguments: argparse.Namespace, stack: ExitStack) -> tuple[list[Row], dict[str, Any]]:
    """Write code with drafts and without, in turns."""
    from heedful import load

    pairs: dict[str, tuple[Any, Any]] = {}
    if arguments.pair:
        prompts = arguments.prompts.read_text(encoding="utf-8").splitlines()
        pairs["given pair"] = (load(arguments.pair[0]), load(arguments.pair[1]))
    else:
        code = [inspect.getsource(module) for module in (argparse, random)]
        # From the middle of a file, where its names have stood before.
        prompts = [text[len(text) // 2 :][:600] for text in code]
        for scale in SCALES[:1] if arguments.quick else SCALES:
            pair = layered_pair(code, scale, arguments.quick)
            pairs[f"12 layers by 1, factor {scale:g}"] = pair
    clock = CLOCKS[arguments.clock]
    rows: list[Row] = []
    facts: dict[str, Any] = {"drafts": {}}
    for name, (model, small) in pairs.items():
        drafting = Drafting(model, small, prompts, 4 if arguments.quick else NEW, clock)
        turns: dict[str, Turn] = {"plain": drafting.plain}
        turns |= {way: partial(drafting.drafted, way) for way in drafting.ways}
        figures = alternate(turns, arguments.rounds, say, settle=0)
        for way in drafting.ways:
            accepted, equal = drafting.accepted[way], drafting.equal(way)
            facts["drafts"][f"{name}: {way}"] = {"accepted_share": accepted, "equal_texts": equal}
            rows.append(
                {
                    "work": f"{name}: {way} / plain",
                    "unit": "tokens/s",
                    "ours": summary(figures[way]),
                    "theirs": summary(figures["plain"]),
                    "ratio": ratio(figures[way], figures["plain"]),
                    "asked": f"accepted {100 * accepted:.0f} %",
                    "met": f"equal {equal}",
                }
            )
    return rows, facts


def layered_pair(code: list[str], scale: float, quick: bool) -> tuple[Any, Any]:
    """Return a model of random weights, and its first layer as a model of its own."""
    import torch

    from heedful.engines.inference.prepare import prepare
    from heedful.interop.architectures.decoders.gpt2 import ARCHITECTURE
    from heedful.models.build import build_model
    from heedful.pipelines.text_generation import GenerationPipeline
    from heedful.text.tokenizer_spec import TokenizerSpec
    from heedful.text.tokenizer_training import train_tokenizer

    words = train_tokenizer(TokenizerSpec(kind="byte-bpe", vocabulary_size=2000), code)
    config = (SMALL if quick else CONFIG) | {"vocab_size": words.size}
    torch.manual_seed(1)
    whole: Any = build_model(ARCHITECTURE.read_config(config, where="config.json"))
    first: Any = build_model(ARCHITECTURE.read_config(config | {"n_layer": 1}, where="config.json"))
    with torch.no_grad():
        for number, block in enumerate(whole.decoder.blocks):
            # What a layer adds is its last map's; scaled, the layers after the first say little.
            for name, weight in block.named_parameters():
                if number and ("output" in name or "down" in name):
                    weight.mul_(scale)
    kept = {name: value for name, value in whole.state_dict().items() if name in first.state_dict()}
    first.load_state_dict(kept)
    made = [
        prepare(each.eval(), "fp32", torch.device("cpu"), donate=True) for each in (whole, first)
    ]
    big, small = (GenerationPipeline(each, words) for each in made)
    return big, small


def prefixes(arguments: argparse.Namespace, stack: ExitStack) -> tuple[list[Row], dict[str, Any]]:
    """Read prompts whose beginning is known, and others, in turns."""
    import torch

    from heedful.engines.inference.prefix_cache import PrefixCache
    from heedful.engines.inference.prepare import prepare
    from heedful.interop.architectures.decoders.gpt2 import ARCHITECTURE
    from heedful.models.build import build_model
    from heedful.pipelines.text_generation import generate

    config = SMALL if arguments.quick else CONFIG
    torch.manual_seed(1)
    spec = ARCHITECTURE.read_config(config, where="config.json")
    model: Any = prepare(build_model(spec).eval(), "fp32", torch.device("cpu"), donate=True)
    drawn = random.Random(1)

    def ids(count: int) -> list[int]:
        return drawn.choices(range(config["vocab_size"]), k=count)

    clock = CLOCKS[arguments.clock]
    answers: dict[tuple[int, int], Any] = {}

    def first_token(prompts: list[list[int]], cache: PrefixCache | None, number: int) -> float:
        began = clock()
        with torch.inference_mode():
            (found,) = generate(model, [prompts[number]], max_length=1, prefixes=cache)
        seconds = clock() - began
        wanted = found.tokens + found.token_scores
        key = (len(prompts[0]), number)
        assert answers.setdefault(key, wanted) == wanted, "the cache changed an answer"
        return 1 / seconds

    rows: list[Row] = []
    facts: dict[str, Any] = {"seconds": {}, "cache_mb": {}}
    for shared in SHARED:
        beginning, cache = ids(shared), PrefixCache(1 << 30)
        prompts = [[*beginning, *ids(OWN)] for _ in range(arguments.rounds)]
        with torch.inference_mode():
            generate(model, [[*beginning, *ids(OWN)]], max_length=1, prefixes=cache)
        turns: dict[str, Turn] = {
            "known": partial(first_token, prompts, cache),
            "new": partial(first_token, prompts, None),
        }
        figures = alternate(turns, arguments.rounds, say, settle=0)
        name = f"{shared} shared tokens of {shared + OWN}"
        facts["cache_mb"][name] = round(cache.bytes / 1e6, 1)
        facts["seconds"][name] = {
            each: summary([1 / rate for rate in runs]) for each, runs in figures.items()
        }
        rows.append(
            {
                "work": f"{name}: known / new",
                "unit": "first tokens/s",
                "ours": summary(figures["known"]),
                "theirs": summary(figures["new"]),
                "ratio": ratio(figures["known"], figures["new"]),
            }
        )
    return rows, facts


def main() -> None:
    """Run a part and write what came out."""
    parser = new_parser(__doc__)
    parser.add_argument("part", choices=["beside", "drafts", "prefixes"])
    parser.add_argument(
        "--pair", nargs=2, metavar=("BIG", "SMALL"), help="a model and one that drafts"
    )
    parser.add_argument("--prompts", type=Path, help="beginnings of texts for --pair, one a line")
    parser.add_argument(
        "--clock",
        choices=list(CLOCKS),
        default="wall",
        help="seconds of the clock, or of processor time where other work waits beside (wall)",
    )
    arguments = parse(parser)
    if arguments.clock == "cpu" and arguments.threads > 1:
        parser.error("processor time adds up over threads: measure it with --threads 1")
    if (arguments.pair is None) != (arguments.prompts is None):
        parser.error("--pair and --prompts belong together")
    import torch

    torch.set_num_threads(arguments.threads)
    parts = {"beside": beside, "drafts": drafts, "prefixes": prefixes}
    with ExitStack() as stack:
        rows, facts = parts[arguments.part](arguments, stack)
    peers = facts.pop("peers", {})
    threads = "" if arguments.threads == 1 else f"-{arguments.threads}-threads"
    pair = "-pair" if arguments.pair else ""
    finish(arguments, f"speed-text-{arguments.part}{pair}{threads}", rows, facts, peers=peers)


if __name__ == "__main__":
    main()
