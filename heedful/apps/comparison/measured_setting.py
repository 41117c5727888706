"""Speed and memory of one setting of a translator, measured in the calling process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_WARM_UP = 16  # sentences translated before timing begins


def measure_setting(task: Mapping[str, Any]) -> dict[str, Any]:
    """Translate sentences together, then some of them alone.

    Args:
        task: `model`, `precision`, `beam`, `shortlist` (a file, or None), `batch_tokens`, `texts`,
            the number of texts translated `alone`, and texts to be `scored`, or None.

    Returns:
        `seconds` for all texts, those of each text `alone`, `peak_memory_bytes`, `load_seconds`,
        and `translations` of the texts to be scored.

    Raises:
        UserError: when the model, precision or shortlist does not exist.
    """
    from heedful.interop.model_loading import load_any
    from heedful.pipelines.translation import TranslationPipeline

    start = time.perf_counter()
    pipeline = TranslationPipeline.load(
        task["model"],
        precision=task["precision"],
        shortlist=task["shortlist"] or False,
        read=load_any,
    )
    loaded = time.perf_counter() - start
    texts: list[str] = task["texts"]
    options = {"beam": task["beam"], "batch_tokens": task["batch_tokens"]}
    step = max(1, len(texts) // _WARM_UP)
    pipeline.translate(texts[::step], **options)
    start = time.perf_counter()
    pipeline.translate(texts, **options)
    seconds = time.perf_counter() - start
    alone = texts[:: max(1, len(texts) // task["alone"])][: task["alone"]]
    for text in alone[:3]:
        pipeline.translate([text], **options)
    waits = []
    for text in alone:
        start = time.perf_counter()
        pipeline.translate([text], **options)
        waits.append(time.perf_counter() - start)
    answer: dict[str, Any] = {
        "seconds": seconds,
        "alone": waits,
        "load_seconds": loaded,
        "peak_memory_bytes": _peak(),
    }
    if task["scored"] is not None:  # after peak memory is read, which all texts may exceed
        answer["translations"] = list(map(str, pipeline.translate(task["scored"], **options)))
    return answer


def _peak() -> int:
    """Return the largest resident size of this process's own memory.

    Linux's `getrusage` counts the memory of the process that started this one, too, until the
    program was loaded.
    """
    from heedful.memory import peak_memory_bytes

    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return peak_memory_bytes()
