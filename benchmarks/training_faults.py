"""Faults of training by several processes: how soon they are noticed, and what they change.

    python benchmarks/training_faults.py kills|sharded|launcher|hang|cable|disk [--kills 100]

Every mode trains a tiny translator of letters, made here, once undisturbed and then with faults,
and compares every value of every update and validation, and the published weights, bit for bit.

kills     processes are killed (SIGKILL) at random moments: while they start, train, write a
          checkpoint, validate. Four fifths hit two copies, a fifth four shards. Goes on
          from the kills in RESULTS until there were --kills of them.
sharded   the same of two shards, each of which writes its own part of every checkpoint.
launcher  the process that started the others is killed; then the run is resumed.
hang      one process is stopped (SIGSTOP): each in turn while they train, then the first while it
          validates alone; the others notice and all start anew.
cable     two hosts (network namespaces; needs root and `ip`), whose cable is cut and mended, with
          one run directory for both and with one each.
disk      the folder of checkpoints is a full disk (tmpfs; needs root); then there is space.

Writes RESULTS/training-faults/MODE.json and table.md, with a row for each mode that was run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from machine import describe_machine
from tables import markdown_table

STEPS = 120
PATIENCE = 600.0
"""Seconds that anything here may take before the benchmark gives up."""

TIMEOUT = 20
"""Seconds for `parallel.timeout`."""

VALIDATE = 10
"""Updates between two validations."""

NETWORK, CABLE = "10.77.0", "cable0"
"""Of the two hosts: the addresses' beginning, and the interface at each end."""

TCP_RETRIES = 6
"""Of the kernel, which gives a connection up after about 25 seconds then, not 15 minutes: torchrun
waits that long for an answer from the first host."""

AGENTS = 120
"""Seconds that torchrun may take to end by itself."""

SMALL_DISK = "40M"
"""Room for two checkpoints of 16 MB."""

COPIES = ("--processes", "2")
SHARDS = ("--processes", "4", "--parallel.shard", "2")
SHARDED = ("--processes", "2", "--parallel.shard", "2", "--checkpoint.sharded", "true")
KILLED: dict[str, dict[str, tuple[Sequence[str], float]]] = {
    "kills": {"copies": (COPIES, 0.8), "shards": (SHARDS, 1.0)},
    "sharded": {"sharded": (SHARDED, 1.0)},
}
"""Modes that kill processes: plans by name, each until this share of the kills are done."""
BACKGROUND = ("--checkpoint.background", "true")


@dataclass
class Toy:
    """A corpus of letters, and runs that learn to write them backwards in capitals.

    Args:
        folder: of everything.
    """

    folder: Path

    def make(self) -> None:
        """Write the corpus."""
        draw = random.Random(1)
        for name, count in (("train", 400), ("valid", 12)):
            lines = [draw.choices("abcdefgh", k=draw.randint(3, 12)) for _ in range(count)]
            for side, told in (("source", lines), ("target", [row[::-1] for row in lines])):
                text = "".join(" ".join(row) + "\n" for row in told)
                path = self.folder / f"{name}.{side}"
                path.write_text(text.upper() if side == "target" else text, encoding="utf-8")

    def arguments(self, run: Path, *more: str, steps: int = STEPS) -> list[str]:
        """The command after `python`: smooth functions, so that few losses are near a kink."""
        pairs = {
            kind: [str(self.folder / f"{kind}.{side}") for side in ("source", "target")]
            for kind in ("train", "valid")
        }
        return [
            *("-m", "heedful", "train", str(run), "--preset", "tiny"),
            *("--train", *pairs["train"], "--valid", *pairs["valid"]),
            *("--max-steps", str(steps), "--validation.every-steps", str(VALIDATE)),
            *("--checkpoint.every-steps", "5", "--tokenizer.vocabulary-size", "40"),
            *("--data.batch-tokens", "256", "--precision", "fp32", "--optimizer.accumulate", "2"),
            *("--model.norm-placement", "pre", "--model.activation", "gelu", *more),
        ]

    def start(self, run: Path, *more: str, before: Sequence[str] = (), **options: Any) -> Started:
        """Start a run; what it says goes to a file beside it."""
        words = [*before, sys.executable, *self.arguments(run, *more, **options)]
        return started(words, run, run.with_suffix(".log"))

    def finish(self, run: Path, *more: str) -> None:
        """Train to the end."""
        process = self.start(run, *more)
        status = process.wait()
        assert status == 0, process.said()


@dataclass
class Started:
    """A command that runs.

    Args:
        process: of the command.
        run: its directory.
        log: file of what it says.
    """

    process: subprocess.Popen[bytes]
    run: Path
    log: Path
    since: float = field(default_factory=time.monotonic)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def until(self, come: Callable[[], object], *, pause: float = 0.002) -> bool:
        """Wait for something; False when the command ended before."""
        deadline = time.monotonic() + PATIENCE
        while not come():
            if not self.running:
                return bool(come())
            assert time.monotonic() < deadline, self.said()
            time.sleep(pause)
        return True

    def workers(self) -> dict[int, int]:
        """Process numbers by rank of the processes that train."""
        found = {}
        for child in descendants(self.process.pid):
            try:
                told = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ranks = [each for each in told if each.startswith(b"RANK=")]
            if ranks and is_alive(child):
                found[int(ranks[0].removeprefix(b"RANK="))] = child
        return found

    def lines(self) -> int:
        """Whole lines of metrics.jsonl."""
        try:
            return (self.run / "metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def last(self) -> dict[str, Any]:
        """The last line of metrics.jsonl; empty if it is not whole."""
        try:
            with (self.run / "metrics.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
                last = json.loads(file.read().splitlines()[-1])
        except (OSError, ValueError, IndexError):
            return {}
        return last if isinstance(last, dict) else {}

    def validates(self) -> bool:
        """True while it validates after an update."""
        last = self.last()
        return "event" not in last and last.get("step", 1) % VALIDATE == 0

    def made(self) -> tuple[int, int]:
        """Identity and size of metrics.jsonl: a new start writes a new one."""
        try:
            status = (self.run / "metrics.jsonl").stat()
        except OSError:
            return 0, 0
        return status.st_ino, status.st_size


def started(words: Sequence[str], run: Path, log: Path) -> Started:
    """Start a command whose output is added to a file."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    root = str(Path(__file__).resolve().parents[1])
    environment["PYTHONPATH"] = root
    with log.open("ab") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env=environment)
    return Started(process, run, log)


def descendants(process: int) -> list[int]:
    """Numbers of the processes below one."""
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
    except OSError:
        return []
    children = [int(each) for each in text.split()]
    return children + [below for child in children for below in descendants(child)]


def is_alive(process: int) -> bool:
    """True until a process has ended, also if nobody has asked for its status yet."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def compare(run: Path, like: Path) -> dict[str, int]:
    """Compare the values of two runs, and their published weights, bit for bit."""
    ours, others = values(run), values(like)
    assert len(others) > STEPS, "the undisturbed run is not whole"
    differences = sum(ours.get(key) != others.get(key) for key in ours.keys() | others.keys())
    digests = [
        hashlib.sha256((each / "model" / "model.safetensors").read_bytes()).digest()
        for each in (run, like)
    ]
    return {"compared": len(others), "differences": differences + (digests[0] != digests[1])}


def values(run: Path) -> dict[tuple[int, str, int], dict[str, float]]:
    """What metrics.jsonl says of every update and validation, but for times."""
    found: dict[tuple[int, str, int], dict[str, float]] = {}
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        kind = record.get("event", "update")
        if kind not in ("update", "validation"):
            continue
        timeless = {name: value for name, value in record.items() if "second" not in name}
        again = sum(key[:2] == (record["step"], kind) for key in found)  # never, in a good run
        found[record["step"], kind, again] = timeless
    return found


def kills(toy: Toy, mode: str, count: int, done: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Kill processes at random moments until there were so many kills.

    Args:
        toy: to train.
        mode: of `KILLED`.
        count: of kills, those done before included.
        done: what came of them.

    Yields:
        What came of all, after each run.
    """
    records: list[dict[str, Any]] = list(done.get("each", []))
    result = Counter({name: done.get(name, 0) for name in ("runs", "compared", "differences")})
    result.update({name: done.get(name, 0) for name in ("damaged", "tracebacks")})
    for name, (plan, part) in KILLED[mode].items():
        share = int(count * part)
        like = toy.folder / name
        toy.finish(like, *plan)
        while len(records) < share:
            run = toy.folder / f"{name}-{result['runs']}"
            more = (*plan, "--restarts", "1000", *(BACKGROUND if result["runs"] % 2 else ()))
            process = toy.start(run, *more)
            draw = random.Random(result["runs"])
            records += kill_some(process, int(plan[1]), share - len(records), draw, name)
            assert process.wait() == 0, process.said()
            said = process.said()
            result.update(runs=1, **compare(run, like))
            result.update(damaged=said.count("is damaged"), tracebacks=said.count("Traceback"))
            yield summary(records, result)


def summary(records: list[dict[str, Any]], result: Counter[str]) -> dict[str, Any]:
    """Figures of all kills: how many, of what, and how soon they were made up for."""
    seconds = [each["recovery_seconds"] for each in records if each["recovery_seconds"]]
    return {
        "kills": len(records),
        "moments": dict(Counter(each["moment"] for each in records)),
        "plans": dict(Counter(each["plan"] for each in records)),
        "half_written": sum(each["half_written"] for each in records),
        **result,
        "recovery_seconds": {"median": round(median(seconds), 1), "largest": max(seconds)},
        "each": records,
    }


class NextStart:
    """The start that comes next: it writes a new metrics.jsonl, which grows by its first update.

    Args:
        process: the run.
    """

    def __init__(self, process: Started) -> None:
        self.process = process
        self.at = time.monotonic()
        self.before, _ = process.made()
        self.kept: int | None = None

    def trains(self) -> bool:
        """True from the first update on."""
        inode, size = self.process.made()
        if inode in (0, self.before):
            return False
        self.kept = size if self.kept is None else self.kept
        return size > self.kept

    def recovery(self) -> float | None:
        """Seconds until the first update; None when the command ends without one."""
        if not self.process.until(self.trains):
            return None
        return round(time.monotonic() - self.at, 2)


def kill_some(
    process: Started, size: int, most: int, draw: random.Random, plan: str
) -> list[dict[str, Any]]:
    """Kill processes of a run until it ends or there were enough; say what came of each."""
    records: list[dict[str, Any]] = []
    known: set[int] = set()
    start = NextStart(process)
    while len(records) < most:
        workers = new_workers(process, size, known)
        if workers is None:
            break
        moment = draw.choice(("start", "training", "saving", "validation"))
        if moment == "start":
            limit = time.monotonic() + draw.uniform(0, 4)
            process.until(
                lambda limit=limit, start=start: time.monotonic() > limit or start.trains()
            )
            moment = "training" if start.trains() else "start"
        if moment != "start":
            seconds = start.recovery()
            if records:
                records[-1]["recovery_seconds"] = seconds
            if seconds is None or not wait_for(process, moment, draw):
                break
        rank = draw.randrange(size)
        half = any((process.run / "checkpoints").glob(".temporary-write*"))
        try:
            os.kill(workers[rank], signal.SIGKILL)
        except ProcessLookupError:  # the run is over
            break
        start, known = NextStart(process), set(workers.values())
        records.append({"plan": plan, "moment": moment, "rank": rank, "half_written": half})
        records[-1]["recovery_seconds"] = None
    if records and records[-1]["recovery_seconds"] is None:
        records[-1]["recovery_seconds"] = start.recovery()
    return records


def new_workers(process: Started, size: int, known: set[int]) -> dict[int, int] | None:
    """Wait until all processes have been started anew; None when the command ends."""
    found: dict[int, int] = {}

    def come() -> bool:
        found.clear()
        found.update(process.workers())
        return len(found) == size and not known & set(found.values())

    return found if process.until(come, pause=0.01) else None


def wait_for(process: Started, moment: str, draw: random.Random) -> bool:
    """Wait for a moment of training; False when the command ends before."""
    checkpoints = process.run / "checkpoints"
    if moment == "training":
        time.sleep(draw.uniform(0, 1.5))
        return process.running
    if moment == "saving":
        writes = process.until(lambda: any(checkpoints.glob(".temporary-write*")), pause=0.0)
        time.sleep(draw.uniform(0, 0.03))  # about as long as it takes
        return writes

    comes = process.until(process.validates, pause=0.0)
    time.sleep(draw.uniform(0, 0.1))
    return comes


def launcher(toy: Toy, rounds: int = 5) -> dict[str, Any]:
    """Kill the launcher, wait until its processes are gone, and resume."""
    draw = random.Random(3)
    like = toy.folder / "copies"
    toy.finish(like, *COPIES)
    result: Counter[str] = Counter()
    seconds = []
    for number in range(rounds):
        run = toy.folder / f"launcher-{number}"
        process = toy.start(run, *COPIES)
        wanted = draw.randint(6, STEPS - 20)
        assert process.until(lambda process=process, wanted=wanted: process.lines() > wanted)
        workers = list(process.workers().values())
        process.process.kill()
        at = time.monotonic()
        process.wait()
        while any(map(is_alive, workers)):
            assert time.monotonic() < at + PATIENCE, "they go on without the launcher"
            time.sleep(0.01)
        seconds.append(round(time.monotonic() - at, 2))
        toy.finish(run, *COPIES, "--resume")
        result.update(compare(run, like))
    return {"kills": rounds, **counts(result), "seconds_until_all_are_gone": seconds}


def hang(toy: Toy) -> dict[str, Any]:
    """Stop one process, each in turn and in a validation; the others notice, and all start anew."""
    like = toy.folder / "copies"
    toy.finish(like, *COPIES)
    result: Counter[str] = Counter()
    each = []
    for rank, moment in ((0, "training"), (1, "training"), (0, "validation")):
        run = toy.folder / f"hang-{rank}-{moment}"
        process = toy.start(run, *COPIES, "--parallel.timeout", str(TIMEOUT))
        assert process.until(lambda process=process: process.lines() > 20)
        workers = process.workers()
        start = NextStart(process)
        if moment == "validation":
            assert process.until(process.validates, pause=0.0)
        os.kill(workers[rank], signal.SIGSTOP)
        start.at = time.monotonic()
        assert moment == "training" or process.validates(), "it was stopped too late"
        assert process.until(lambda process=process: "lost the " in process.said())
        noticed = time.monotonic() - start.at
        recovered = start.recovery()
        assert process.wait() == 0, process.said()
        result.update(compare(run, like))
        reason = next(line for line in process.said().splitlines() if "lost the " in line)
        each.append(
            {"rank": rank, "moment": moment, "noticed_seconds": round(noticed, 1)}
            | {"recovery_seconds": recovered, "reason": reason}
            | {"traceback": "Traceback" in process.said()}
        )
    return {"timeout_seconds": TIMEOUT, "hangs": len(each), **counts(result), "each": each}


def counts(result: Counter[str]) -> dict[str, int]:
    """What was compared and what differed, zeros too."""
    return {name: result[name] for name in ("compared", "differences")}


@contextmanager
def two_hosts() -> Iterator[Callable[[str], None]]:
    """Two network namespaces with a cable between them; gives a function to set it up or down."""
    names = [f"heedful-{os.getpid()}-{end}" for end in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names[0], *f"link add {CABLE} type veth peer name {CABLE} netns".split(), names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"{NETWORK}.{number}/24", "dev", CABLE)
            ip("-n", name, "link", "set", CABLE, "up")
            ip("netns", "exec", name, "sysctl", "-qw", f"net.ipv4.tcp_retries2={TCP_RETRIES}")
        yield lambda state: ip("-n", names[1], "link", "set", CABLE, state)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def cable(toy: Toy) -> dict[str, Any]:
    """Cut the cable between two hosts in the middle of a run, mend it, and resume."""
    result: Counter[str] = Counter()
    each = []
    with two_hosts() as set_cable:
        for name in ("shared", "apart"):
            like = toy.folder / f"cable-{name}-like"
            finish_both(toy, like, name)
            run = toy.folder / f"cable-{name}"
            hosts = both(toy, run, name)
            assert hosts[0].until(lambda hosts=hosts: hosts[0].lines() > 40), hosts[0].said()
            set_cable("down")
            at = time.monotonic()
            for host in hosts:
                host.until(lambda host=host: reason(host.said()) != "none")
            noticed = time.monotonic() - at
            while any(host.running for host in hosts) and time.monotonic() < at + AGENTS:
                time.sleep(0.1)
            ended = time.monotonic() - at
            left = [host.process.pid for host in hosts if host.running]
            for process in left:  # as Ctrl-C would
                os.kill(process, signal.SIGINT)
            statuses = [host.wait() for host in hosts]
            set_cable("up")
            each.append({"run_directory": name, "noticed_seconds": round(noticed, 1)})
            each[-1] |= {"ended_seconds": round(ended, 1), "launchers_left": len(left)}
            each[-1] |= {"statuses": statuses, "reasons": [reason(host.said()) for host in hosts]}
            finish_both(toy, run, name, resume=True)
            result.update(compare(run, like))
    return {"timeout_seconds": TIMEOUT, "cuts": len(each), **counts(result), "each": each}


def both(toy: Toy, run: Path, name: str, *, resume: bool = False) -> list[Started]:
    """Start a run on both hosts, each with a directory of its own if `name` is "apart".

    A host that does not have the run's directory cannot resume it: the first host says so to it.
    """
    hosts = []
    for number, end in enumerate("ab"):
        namespace = f"heedful-{os.getpid()}-{end}"
        mine = run.with_name(run.name + "-other") if name == "apart" and number else run
        own = ["--resume"] * (resume and (name == "shared" or number == 0))
        train = toy.arguments(mine, "--parallel.timeout", str(TIMEOUT), *own)
        words = [
            *("ip", "netns", "exec", namespace, "env", f"GLOO_SOCKET_IFNAME={CABLE}"),
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
            *("--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "faults"),
            *("--rdzv-conf", f"is_host={1 - number}"),  # one name for both: this machine's
            *("--rdzv-endpoint", f"{NETWORK}.1:29477", "--local-addr", f"{NETWORK}.{number + 1}"),
            *train,
        ]
        hosts.append(started(words, run, toy.folder / f"{run.name}-{end}.log"))
    return hosts


def finish_both(toy: Toy, run: Path, name: str, **options: bool) -> None:
    """Train to the end on both hosts."""
    hosts = both(toy, run, name, **options)
    statuses = [host.wait() for host in hosts]
    assert statuses == [0, 0], "\n".join(host.said() for host in hosts)


def reason(text: str) -> str:
    """The line in which a process says why it ended."""
    found = [line for line in text.splitlines() if line.startswith("Process ")]
    return found[0] if found else "none"


def disk(toy: Toy) -> dict[str, Any]:
    """Fill the disk of the checkpoints, make space, and resume."""
    result: Counter[str] = Counter()
    like = toy.folder / "copies"
    toy.finish(like, *COPIES)
    each = []
    for name, more in (("at once", ()), ("in the background", BACKGROUND)):
        run = toy.folder / f"disk-{name[:2]}"
        folder = run / "checkpoints"
        folder.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "none", str(folder)]
        subprocess.run(mount, check=True)
        try:
            process = toy.start(run, *COPIES, *more)
            status = process.wait()
            said = process.said()
            lines = [line for line in said.splitlines() if "disk is full" in line]
            torn = sum(1 for _ in folder.glob(".temporary*"))
            left = sorted(path.name for path in folder.glob("step-*"))
            seconds = round(time.monotonic() - process.since, 1)
            subprocess.run(["mount", "-o", "remount,size=500M", str(folder)], check=True)
            toy.finish(run, *COPIES, *more, "--resume")
            result.update(compare(run, like))
            damaged = process.said().count("is damaged")
        finally:
            subprocess.run(["umount", str(folder)], check=True)
        each.append({"written": name, "status": status, "seconds": seconds, "reasons": lines})
        each[-1] |= {"half_written": torn, "left": left, "damaged": damaged}
        each[-1]["tracebacks"] = said.count("Traceback")
    return {"full_disks": len(each), **counts(result), "each": each}


MODES: dict[str, Callable[[Toy], dict[str, Any]]] = {
    "launcher": launcher,
    "hang": hang,
    "cable": cable,
    "disk": disk,
}


def main() -> None:
    """Run one mode, and write what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=[*KILLED, *MODES])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    mode, results = arguments.mode, arguments.results / "training-faults"
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{mode}.json"
    with tempfile.TemporaryDirectory() as name:
        toy = Toy(Path(name))
        toy.make()
        if mode in MODES:
            write(results, mode, mode, MODES[mode](toy), toy)
            return
        done = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for found in kills(toy, mode, arguments.kills, done):
            write(results, mode, f"{mode} --kills {found['kills']}", found, toy)


def write(results: Path, mode: str, command: str, found: dict[str, Any], toy: Toy) -> None:
    """Write the figures of a mode, and the table of all modes."""
    record = {
        "benchmark": f"training-faults, {mode}",
        "command": f"python benchmarks/training_faults.py {command}",
        "date": date.today().isoformat(),
        "machine": describe_machine(),
        "load": round(os.getloadavg()[0], 1),
        **found,
    }
    text = json.dumps(record, indent=1).replace(str(toy.folder), "DIR")
    (results / f"{mode}.json").write_text(text + "\n", encoding="utf-8")
    rows = table(results)
    (results / "table.md").write_text(rows, encoding="utf-8")
    print(rows, file=sys.stderr, flush=True)


def table(folder: Path) -> str:
    """A row for each mode whose figures are there."""
    rows = [("fault", "times", "values compared", "differences", "seconds")]
    for mode, (fault, number, seconds) in ROWS.items():
        path = folder / f"{mode}.json"
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            times = [str(found[each]) for each in (number, "compared", "differences")]
            rows.append((fault, *times, seconds(found)))
    return markdown_table(rows)


def _recovery(found: dict[str, Any]) -> str:
    seconds = found["recovery_seconds"]
    return f"{seconds['median']} to the next update, at most {seconds['largest']}"


ROWS: dict[str, tuple[str, str, Callable[[dict[str, Any]], str]]] = {
    "kills": ("a process is killed", "kills", _recovery),
    "sharded": ("a process that writes its part of checkpoints is killed", "kills", _recovery),
    "launcher": (
        "the launcher is killed",
        "kills",
        lambda found: f"at most {max(found['seconds_until_all_are_gone'])} until all are gone",
    ),
    "hang": (
        "a process hangs",
        "hangs",
        lambda found: (
            f"at most {max(each['noticed_seconds'] for each in found['each'])} until "
            f"it is noticed, {max(each['recovery_seconds'] for each in found['each'])} to the next "
            f"update (parallel.timeout = {found['timeout_seconds']})"
        ),
    ),
    "cable": (
        "the cable between two hosts is cut",
        "cuts",
        lambda found: (
            f"at most {max(each['ended_seconds'] for each in found['each'])} until both "
            f"end (parallel.timeout = {found['timeout_seconds']})"
        ),
    ),
    "disk": ("the disk is full", "full_disks", lambda found: "the run ends at once"),
}


if __name__ == "__main__":
    main()
