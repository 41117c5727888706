"""Batches of similar lengths, threads that share them, and the base class of all pipelines."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from heedful.errors import ConfigError, DataError, RunError
from heedful.memory import ran_out, release

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")

SHORTEST = 8
"""Length in tokens that shorter sentences count as.

A step costs about the same for one word as for a few, and the logits take the same memory.
"""


def plan_batches(
    lengths: Sequence[int], *, width: int, batch_tokens: int, batch_size: int | None
) -> list[list[int]]:
    """Group sentences into batches, longest first; results do not depend on the grouping.

    Args:
        lengths: number of tokens of each sentence.
        width: number of hypotheses of a sentence, such as the beam.
        batch_tokens: maximum number of positions of a batch: sentences × longest × width, padding
            counted; a sentence that is longer forms a batch of its own.
        batch_size: sentences in a batch; `batch_tokens` is then ignored.

    Returns:
        Indices of the sentences of each batch.

    Raises:
        ConfigError: when a size of batches is below 1.
    """
    for name, size in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if size is not None and size < 1:
            raise ConfigError("A batch holds at least 1", where=f"{name} = {size}")
    # Longest first: a lack of memory shows in the first batch, not in the last.
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        longest = max(lengths[order[start]], SHORTEST)
        # The first sentence of a batch is its longest, so all others are padded to its length.
        size = batch_size or max(1, batch_tokens // (longest * width))
        batches.append(order[start : start + size])
        start += size
    return batches


def check_is_list(items: Sequence[object], name: str) -> None:
    """Refuse a single string where a list is needed.

    Args:
        items: argument of a pipeline.
        name: its name, for the error.

    Raises:
        DataError: when it is a string.
    """
    # A string is also a sequence of strings: its characters would be taken for texts.
    if isinstance(items, str):
        raise _single(name)


def _single(name: str) -> DataError:
    return DataError(f"{name} is a single string", remedy="Give a list of strings")


def list_of_texts(
    items: Iterable[object], name: str, *, kinds: tuple[type, ...] = (str,)
) -> list[Any]:
    """Return texts as a list.

    Args:
        items: argument of a pipeline.
        name: its name, for the error.
        kinds: types of an item; a text may also be given as a pair or as words.

    Raises:
        DataError: when it is a string, or holds something that is no text.
    """
    if not isinstance(items, Iterable):
        raise DataError(
            f"{name} is an object of the type {type(items).__name__!r}",
            remedy="Give a list of strings",
        )
    if isinstance(items, str):
        raise _single(name)
    texts = list(items)
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, kinds):
            raise DataError(
                f"The item is no text, but an object of the type {type(text).__name__!r}",
                where=f"{name}, item {number}",
                remedy="Give a list of strings",
            )
    return texts


class BatchQueue:
    """A queue of batches, from which several threads take one at a time.

    When memory runs out, the batch is returned and later taken in halves. The batches after it,
    which are about as large, are split into as many parts.

    Args:
        batches: indices of the items of each batch.
        warn: receiver of a sentence when a batch was split; Python's warnings if unset.
        place: function from an item's index to its name in errors.
    """

    def __init__(
        self,
        batches: Iterable[Sequence[int]],
        warn: Callable[[str], None] | None = None,
        place: Callable[[int], str] = lambda number: f"item {number + 1}",
    ) -> None:
        # Each batch with the number of parts that its original was split into.
        self._waiting = deque((list(batch), 1) for batch in batches)
        self._parts = 1
        self._warn = warn
        self._place = place
        self._lock = threading.Lock()

    def take(self) -> tuple[list[int], int] | None:
        """Take the next batch, with the number of parts of its original; None if none is left."""
        with self._lock:
            if not self._waiting:
                return None
            numbers, parts = self._waiting.popleft()
            # Another thread ran out of memory meanwhile: split this batch before it fails too.
            if parts < self._parts:
                size = -(-len(numbers) * parts // self._parts)
                rest = [numbers[i : i + size] for i in range(size, len(numbers), size)]
                # `extendleft` reverses the order, hence `reversed`.
                self._waiting.extendleft((part, self._parts) for part in reversed(rest))
                numbers, parts = numbers[:size], self._parts
            return numbers, parts

    def give_back(self, numbers: list[int], parts: int) -> None:
        """Return a batch for which there was not enough memory.

        Args:
            numbers: indices of its items.
            parts: number of parts, from `take`.

        Raises:
            RunError: when the batch is a single item.
        """
        # The cached blocks of PyTorch's GPU allocator may have no size that a smaller batch needs.
        release()
        if len(numbers) == 1:
            raise RunError(
                "There is not enough memory for one text by itself",
                where=self._place(numbers[0]),
                remedy="Give it in parts, or take a smaller beam or model",
            )
        with self._lock:
            self._waiting.appendleft((numbers, parts))
            # Two threads may return batches of one size: the number of parts doubles only once.
            self._parts = max(self._parts, 2 * parts)
        text = (
            f"Out of memory with {len(numbers)} items at once: the batch was split, and later ones "
            "will be; results stay the same. Lower the batch (--batch-tokens, --batch-size) to "
            "avoid it"
        )
        if self._warn is None:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        else:
            self._warn(text)


def run_batches(
    queue: BatchQueue, work: Callable[[list[int]], Result]
) -> Iterator[tuple[list[int], Result]]:
    """Compute batches until the queue is empty, and split them when memory runs out.

    Args:
        queue: queue of batches, which other threads may share.
        work: function from the indices of a batch's items to its result.

    Yields:
        Indices of the items and the result of each batch.

    Raises:
        RunError: when there is not enough memory for one item.
    """
    while (batch := queue.take()) is not None:
        result: tuple[Result] | None = None
        try:
            result = (work(batch[0]),)
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
        # Memory is released after the `except` block: until it is left, the error keeps the tensors
        # of the failed pass alive.
        if result is None:
            queue.give_back(*batch)
        else:
            yield batch[0], result[0]


def split_on_oom(
    batches: Iterable[Sequence[int]],
    work: Callable[[list[int]], Result],
    warn: Callable[[str], None] | None = None,
    place: Callable[[int], str] = lambda number: f"item {number + 1}",
) -> Iterator[tuple[list[int], Result]]:
    """Compute batches in order, in this thread; arguments as for `BatchQueue` and `run_batches`."""
    return run_batches(BatchQueue(batches, warn, place), work)


MOST_AT_ONCE = 4
"""Maximum number of batches computed at once, as each needs memory of its own."""

_SWITCH = 5e-5
"""Interpreter's switch interval in seconds while several threads compute batches.

A thread that returns from a long operation waits so long for the lock of a thread with many short
operations. Python's default is a hundred times as long, which is the time of a whole step.
"""


def batches_at_once(device: torch.device, batches: int) -> int:
    """Return the number of batches to compute at once: 1 except on the CPU's main thread.

    Args:
        device: device of the model.
        batches: number of batches.
    """
    # A GPU runs one kernel after another, so a second batch would only take memory. A caller in
    # another thread than the main one, such as a server, starts no further threads.
    if device.type != "cpu" or threading.current_thread() is not threading.main_thread():
        return 1
    import torch

    return max(1, min(MOST_AT_ONCE, torch.get_num_threads(), batches))


def in_threads(
    stream: Callable[[], Iterator[Result]],
    count: int,
    within: Callable[[], AbstractContextManager[object]],
) -> Iterator[Result]:
    """Read several streams at once and yield their results in the order of arrival.

    Args:
        stream: factory of a stream, called in the thread that reads it; streams share a queue.
        count: number of streams; a single one is read in this thread.
        within: factory of the context that each new thread enters, such as autocast, which is a
            setting of one thread.
    """
    return stream() if count == 1 else _read_in_threads(stream, count, within)


def _read_in_threads(
    stream: Callable[[], Iterator[Result]],
    count: int,
    within: Callable[[], AbstractContextManager[object]],
) -> Iterator[Result]:
    """Read several streams, each in a thread of its own."""
    import torch

    threads, interval = torch.get_num_threads(), sys.getswitchinterval()
    arrived: SimpleQueue[tuple[Result] | BaseException | None] = SimpleQueue()
    ended = threading.Event()

    def run() -> None:
        torch.set_num_threads(threads // count)  # applies to this thread only
        try:
            with within():
                for result in stream():
                    arrived.put((result,))
                    if ended.is_set():
                        break
            arrived.put(None)
        # A thread's error is raised by the reader, which may stop the others.
        except BaseException as error:
            ended.set()
            arrived.put(error)

    sys.setswitchinterval(_SWITCH)
    pool = ThreadPoolExecutor(count, thread_name_prefix="batch")
    try:
        for _ in range(count):
            pool.submit(run)
        for _ in range(count):
            while (result := arrived.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                yield result[0]
    finally:
        ended.set()  # threads begin no further batch
        pool.shutdown()
        torch.set_num_threads(threads)
        sys.setswitchinterval(interval)


class Shown:
    """Base of all pipelines, which show what they hold and what they do.

    Attributes:
        name: directory or name that it was loaded from; empty for a model in memory.
    """

    name = ""
    verbs: ClassVar[tuple[str, ...]] = ()
    """Methods that do what the model is for."""

    def facts(self) -> dict[str, str]:
        """Return what there is to know at a glance, by name."""
        # 20 ms, only where somebody looks
        from heedful.models.build import build_on_meta
        from heedful.models.model_spec import MODEL_KINDS

        own: Any = self
        # Nothing is computed or made anew, and no changed model refused, by looking.
        held = own._held[0] if isinstance(own._held, tuple) else own._held
        engine = held.last
        spec = engine.spec
        size = sum(each.numel() for each in build_on_meta(spec).parameters())
        precision = own.precision
        return {
            "model": self.name or "in memory",
            "kind": MODEL_KINDS[spec.kind].noun,
            "parameters": f"{size:,}",
            "width": str(spec.width),
            "layers": ", ".join(f"{len(s.blocks)} {name}" for name, s in spec.stacks().items()),
            "precision": "float32, by the definition"
            if precision is None
            else precision.describe(),
            "device": str(next(engine.parameters()).device),
            "does": ", ".join(self.verbs),
        }

    def __repr__(self) -> str:
        facts = self.facts()
        shown = ("kind", "parameters", "device", "does")
        parts = ", ".join(f"{name}: {facts[name]}" for name in shown if name in facts)
        return f"<{type(self).__name__} {facts['model']}; {parts}>"

    def _repr_html_(self) -> str:
        from heedful.pipelines.display import html_table  # for notebooks

        return html_table(list(self.facts().items()))

    def __getattr__(self, name: str) -> Any:
        # Whoever loaded another kind of model than thought reads here what this one does.
        if not vars(self):  # a copy in the making has no verbs yet
            raise AttributeError(name)
        text = f"{type(self).__name__} has no {name!r}; this model can {', '.join(self.verbs)}"
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch.nn.Module, name):
            text += ". A pipeline is no nn.Module, its .model is one; device= and precision= are "
            text += "arguments of heedful.load"
        raise AttributeError(text, name=name, obj=self)
