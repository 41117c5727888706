"""What a shortlist saves and costs: `translate` with it and without, in turns.

    python benchmarks/shortlist.py --model RUN --data DIR [--rounds 7] [--per-token 100]

DIR holds multi30k/tok/{train,val}.lc.norm.tok.{en,de}.gz (or set HEEDFUL_DATA); RUN is any
translator that reads it, such as what `python benchmarks/multi30k.py` trained. A shortlist is made
of the training pairs. Then the validation set is translated (beam 5, length penalty 1) in float32
and in 8 bits, with and without: in each round all translate the same sentences, each round begins
with another one. Then the first --alone sentences one at a time. Last, shortlists of other sizes,
with their BLEU in float32. Prints a table and one JSON line, which also goes to
RESULTS/shortlist/result.json. There is no bar: what is asked is what it saves for which BLEU. Where
other programs keep the processor busy, the seconds that it worked tell more than those on the
clock, so both are there.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inside import read_lines
from report import new_parser, parse, say, write_result
from speed.turns import alternate, ratio, summary

from heedful.evaluate.corpus_metrics import corpus_scores
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.lexical_shortlist import make_shortlist
from heedful.search.search_settings import FREQUENT, PER_TOKEN, SearchSettings

PRECISIONS = ("fp32", "int8")
SEARCH = SearchSettings(beam=5, length_penalty=1.0)
CLOCKS = {"per_second": time.perf_counter, "per_processor_second": time.process_time}
OTHER_SIZES = ((20, 100), (50, 100), (200, 100), (100, 500))


class Bench:
    """The model, the corpus, and shortlists of it.

    Args:
        arguments: of the command line.
        folder: for shortlists.
    """

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        corpus = Path(arguments.data) / "multi30k" / "tok"
        self.arguments, self.folder = arguments, folder
        self.train = [corpus / f"train.lc.norm.tok.{side}.gz" for side in ("en", "de")]
        valid = (read_lines(corpus / f"val.lc.norm.tok.{side}.gz") for side in ("en", "de"))
        self.sources, self.references = (lines[: arguments.sentences] for lines in valid)
        self.tokenizers = TranslationPipeline.load(arguments.model, device="cpu").tokenizers

    def made(self, per_token: int, frequent: int) -> tuple[Path, dict[str, Any]]:
        """The file of a shortlist, and what is to be said of it."""
        started, worked = time.perf_counter(), time.process_time()
        made = make_shortlist(*self.train, self.tokenizers, per_token=per_token, frequent=frequent)
        path = self.folder / f"{per_token}-{frequent}.safetensors"
        made.shortlist.write(path)
        encoded = [self.tokenizers.source.encode_batch(self.sources)]
        encoded.append(self.tokenizers.target.encode_batch(self.references))
        coverage, size = made.shortlist.coverage(*encoded)
        return path, {
            "per_token": per_token,
            "frequent": frequent,
            "seconds": round(time.perf_counter() - started, 2),
            "processor_seconds": round(time.process_time() - worked, 2),
            "bytes": path.stat().st_size,
            "vocabulary": made.shortlist.size,
            "list_size": round(size, 1),
            "coverage_percent": round(100 * coverage, 2),
        }

    def bleu(self, found: Sequence[str]) -> float:
        """Of translations of the whole validation set."""
        score = corpus_scores(found, [self.references], ["bleu"], tokenize="none", lowercase=True)
        return round(score["bleu"].score, 2)

    def speeds(
        self, pipelines: dict[str, TranslationPipeline], lines: list[str], batch_size: int | None
    ) -> tuple[dict[str, Any], dict[str, list[str]]]:
        """Sentences a second of each in every round, ratios, and what each said."""
        said: dict[str, list[str]] = {}
        worked: dict[str, list[float]] = {name: [] for name in pipelines}

        def turn(name: str) -> float:
            starts = [clock() for clock in CLOCKS.values()]
            found = pipelines[name].translate(lines, settings=SEARCH, batch_size=batch_size)
            passed, own = (c() - s for c, s in zip(CLOCKS.values(), starts, strict=True))
            worked[name].append(len(lines) / own)
            said[name] = [str(each) for each in found]
            return len(lines) / passed

        for name in pipelines:  # the first time, much is set up
            turn(name)
            worked[name].clear()
        turns = {name: lambda _, name=name: turn(name) for name in pipelines}
        figures = alternate(turns, self.arguments.rounds, say)
        found: dict[str, Any] = {"sentences": len(lines), "batch_size": batch_size}
        for clock, runs in zip(CLOCKS, (figures, worked), strict=True):
            found[clock] = {name: summary(each) for name, each in runs.items()}
            for precision in PRECISIONS:
                pair = (runs[f"{precision} with"], runs[f"{precision} without"])
                found[clock][f"{precision} ratio"] = ratio(*pair)
        return found, said


def measure(bench: Bench) -> dict[str, Any]:
    """Making, speed, BLEU, other sizes."""
    arguments = bench.arguments
    path, made = bench.made(arguments.per_token, arguments.frequent)
    say(f"made: {made}")
    pipelines = {
        f"{precision} {name}": TranslationPipeline.load(
            arguments.model, device="cpu", precision=precision, shortlist=shortlist
        )
        for precision in PRECISIONS
        for name, shortlist in (("without", False), ("with", path))
    }
    batches, said = bench.speeds(pipelines, bench.sources, None)
    alone, _ = bench.speeds(pipelines, bench.sources[: arguments.alone], 1)
    same = {
        precision: sum(
            one == other
            for one, other in zip(
                said[f"{precision} with"], said[f"{precision} without"], strict=True
            )
        )
        / len(bench.sources)
        for precision in PRECISIONS
    }
    found: dict[str, Any] = {
        "made": made,
        "bleu": {name: bench.bleu(texts) for name, texts in said.items()},
        "identical_percent": {name: round(100 * share, 1) for name, share in same.items()},
        "sentences": {"batches": batches, "alone": alone},
        "other_sizes": [],
    }
    for sizes in OTHER_SIZES:
        path, facts = bench.made(*sizes)
        pipeline = TranslationPipeline.load(
            arguments.model, device="cpu", precision="fp32", shortlist=path
        )
        texts = [str(each) for each in pipeline.translate(bench.sources, settings=SEARCH)]
        facts["bleu"] = bench.bleu(texts)
        say(f"other size: {facts}")
        found["other_sizes"].append(facts)
    return found


def show(found: dict[str, Any]) -> None:
    """The medians as a table."""
    say(f"{'':<12}{'':<10}{'without':>10}{'with':>10}{'ratio':>8}{'from':>8}{'to':>8}")
    rows = [(m, c, s[c]) for m, s in found["sentences"].items() for c in CLOCKS]
    for mode, clock, speeds in rows:
        say(f"sentences {clock.replace('_', ' ')}")
        for precision in PRECISIONS:
            each = [speeds[f"{precision} {n}"]["median"] for n in ("without", "with")]
            times = [speeds[f"{precision} ratio"][n] for n in ("median", "lowest", "highest")]
            row = "".join(f"{n:>10.1f}" for n in each) + "".join(f"{n:>8.2f}" for n in times)
            say(f"{mode:<12}{precision:<10}{row}")
    for precision in PRECISIONS:
        each = [found["bleu"][f"{precision} {name}"] for name in ("without", "with")]
        say(f"{'BLEU':<12}{precision:<10}" + "".join(f"{n:>10.2f}" for n in each))


def main() -> None:
    """Measure, and write down what was found."""
    parser = new_parser(__doc__, rounds=7)
    parser.add_argument("--sentences", type=int, default=None)
    parser.add_argument("--alone", type=int, default=60)
    parser.add_argument("--per-token", type=int, default=PER_TOKEN)
    parser.add_argument("--frequent", type=int, default=FREQUENT)
    arguments = parse(parser)
    if arguments is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Bench(arguments, Path(folder)))
    show(found)
    command = "python benchmarks/shortlist.py --model RUN --data DIR"
    command += f" --rounds {arguments.rounds} --alone {arguments.alone}"
    command += f" --threads {arguments.threads}"
    command += f" --per-token {arguments.per_token} --frequent {arguments.frequent}"
    found = {"beam": SEARCH.beam, "length_penalty": SEARCH.length_penalty, **found}
    write_result(arguments.results, "shortlist", command, found)


if __name__ == "__main__":
    main()
