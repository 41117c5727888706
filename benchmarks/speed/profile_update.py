"""Where a GPU's time goes in an update: milliseconds by kernel.

    python benchmarks/speed/profile_update.py gpt2
    python benchmarks/speed/profile_update.py nanogpt --nanogpt CLONE
    python benchmarks/speed/profile_update.py big --data DIR

`gpt2` is the language model of gpt2.py, `nanogpt` its peer; `big` and `tiny` are presets on
Multi30k, compiled; `packed` is `big` with pairs in rows of 512. Profiling slows the host, so the
table gives what the device did: it says where to look, and gpu.py how fast it is.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpus import run_settings
from gpt2 import PIECES, RECIPE, WINDOWS, optimizer_of, shape_of
from harness import new_parser, parse, say
from training import PRESETS

sys.path.insert(0, str(Path(__file__).resolve().parent / "workers"))

UPDATES = 6
WARM_UP = 40  # shapes come again: graphs are recorded at their second time


class Profile:
    """Collects what the device does until it is finished."""

    def __init__(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        self._profile.start()
        self._began = time.perf_counter()

    def finish(self, name: str, folder: Path) -> None:
        """Write milliseconds by kernel into a file, and say the largest."""
        import torch

        torch.cuda.synchronize()
        passed = 1000 * (time.perf_counter() - self._began) / UPDATES
        self._profile.stop()
        taken: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        for event in self._profile.events() or ():
            if event.device_type.name == "CUDA":
                taken[event.name[:110]] += event.device_time / 1000 / UPDATES
                calls[event.name[:110]] += 1
        lines = [
            f"{name}: an update took {passed:.1f} ms while profiled, the device {taken.total():.2f}"
        ]
        for kernel, each in taken.most_common(60):
            lines.append(f"{each:8.3f} ms {calls[kernel] / UPDATES:7.1f} {kernel}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        say("\n".join(lines[:25]))


def profile_calls(name: str, work: Callable[[], None], folder: Path) -> None:
    """Profile work that makes `UPDATES` updates, after doing it once to warm up."""
    work()
    profile = Profile()
    work()
    profile.finish(name, folder)


def profile_gpt2(folder: Path) -> None:
    """Heedful's language model of nanoGPT's recipe, compiled."""
    import language_model_trainer as ours

    from heedful.events import Events
    from heedful.models.shape import TranslatorShape
    from heedful.models.shape_to_spec import causal_lm_spec

    length = RECIPE["context"]
    spec = causal_lm_spec(TranslatorShape(**shape_of(RECIPE)), PIECES, length)
    how = ("none", "bf16", "cuda", optimizer_of(RECIPE))
    updater = ours.new_updater(spec, WINDOWS, length, *how, Events())
    batch = ours.new_batch(WINDOWS, length, PIECES)
    updater.compile(batch, 0, Events(), asked_for=True, one_shape=True)

    def some() -> None:
        for step in range(1, UPDATES + 1):
            updater.launch([batch], step, 1e-4)

    profile_calls("gpt2", some, folder)


def profile_nanogpt(clone: Path, folder: Path) -> None:
    """nanoGPT's own model, compiled as its script does."""
    import characters_trainer as peer
    import torch

    model, optimizer = peer.build(str(clone.resolve()), peer.Recipe(**RECIPE), PIECES, "cuda")
    forward: Any = torch.compile(model)
    ids = torch.randint(PIECES, (WINDOWS, RECIPE["context"]), device="cuda")

    def some() -> None:
        for _ in range(UPDATES):
            with torch.autocast("cuda", torch.bfloat16):
                loss = forward(ids, ids)[1]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), peer.CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    profile_calls("nanogpt", some, folder)


def profile_run(what: str, data: Path, work: Path, folder: Path) -> None:
    """A training run on Multi30k; the process ends with the profile."""
    from heedful.events import Event, Events, Metric
    from heedful.train.run import run_training
    from heedful.train.run_config import resolve_settings

    class Watch:
        """Profiles some updates, and ends the process then: a run would save and choose."""

        updates = 0
        profile: Profile | None = None

        def handle(self, event: Event) -> None:
            """Count the updates."""
            if not isinstance(event, Metric) or event.kind != "train":
                return
            self.updates += 1
            if self.updates == WARM_UP:
                self.profile = Profile()
            elif self.updates == WARM_UP + UPDATES:
                assert self.profile is not None
                self.profile.finish(what, folder)
                sys.stderr.flush()
                os._exit(0)

        def close(self) -> None:
            """Nothing to finish."""

    tokens = 4096 if what == "tiny" else 25_000
    changes = run_settings(data, work / "cache", "bf16", device="cuda", batch_tokens=tokens)
    changes["compile"] = "on"
    if what == "packed":
        changes["data"] |= {"packed_length": 512, "max_length": 256}
    settings = resolve_settings(PRESETS["tiny" if what == "tiny" else "big"], None, changes)
    run = work / f"profile-{what}-{time.time():.0f}"
    run_training(run, settings, events=Events([Watch()]))


def main() -> None:
    """Profile what is asked for."""
    parser = new_parser(__doc__)
    parser.add_argument(
        "what", choices=["gpt2", "nanogpt", "big", "tiny", "packed"], help="what is trained"
    )
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT, for nanogpt")
    arguments = parse(parser)
    import torch

    if not torch.cuda.is_available():
        say("skipped: there is no CUDA GPU here")
        return
    folder = (arguments.results or arguments.work) / "profile-update"
    if arguments.what == "gpt2":
        profile_gpt2(folder)
    elif arguments.what == "nanogpt":
        if arguments.nanogpt is None:
            parser.error("nanogpt needs --nanogpt CLONE")
        profile_nanogpt(arguments.nanogpt, folder)
    else:
        profile_run(arguments.what, arguments.data, arguments.work, folder)


if __name__ == "__main__":
    main()
