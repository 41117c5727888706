"""A corpus that needs no download: what CLDR knows about writing dates, times, prices, measures.

Training, validation and test pairs share no date, no minute of the day, no amount and no duration;
a source text occurs once in the whole corpus, so it has one translation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from babel.core import Locale

from heedful.data.demo_items import PARTS, DemoItem, ItemMaker, Part
from heedful.data.demo_locales import find_locale
from heedful.errors import DataError, RunError

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class DemoCorpus:
    """Generated pairs of two locales (named as CLDR does: `en`, `pt_BR`)."""

    source: str
    target: str
    train: tuple[DemoItem, ...]
    valid: tuple[DemoItem, ...]
    test: tuple[DemoItem, ...]

    def kinds(self) -> dict[str, int]:
        """How many training pairs there are of each kind, most frequent first."""
        return dict(Counter(item.kind for item in self.train).most_common())


def generate_demo(
    source: str = "en",
    target: str = "fr",
    *,
    pairs: int = 50_000,
    held_out: int = 1000,
    seed: int = 1,
    progress: Progress | None = None,
) -> DemoCorpus:
    """Write dates, times, prices, measures and durations in two locales.

    Args:
        source, target: names of locales.
        pairs: number of training pairs.
        held_out: number of pairs to validate with, and as many again to test with.
        seed: of the draws; the same arguments give the same corpus.
        progress: called now and then with the pairs made and the pairs wanted.

    Raises:
        DataError: on an unknown locale, one without the data needed, or two that write all alike.
    """
    locales = find_locale(source), find_locale(target)
    if locales[0] == locales[1]:
        raise DataError(
            f"Source and target are the same locale, {locales[0]}",
            remedy="Choose two different ones, such as --from en --to fr",
        )
    wanted: dict[Part, int] = {"test": held_out, "valid": held_out, "train": pairs}
    total = sum(wanted.values())
    seen: set[str] = set()
    parts: dict[Part, tuple[DemoItem, ...]] = {}
    for part in PARTS:
        items: list[DemoItem] = []
        for item in islice(_fresh(ItemMaker(*locales, part, seed), seen), wanted[part]):
            items.append(item)
            if progress is not None and len(seen) % 500 == 0:
                progress(len(seen), total)
        parts[part] = tuple(items)
        _check_differ(items, *locales)
    if progress is not None:
        progress(total, total)
    return DemoCorpus(str(locales[0]), str(locales[1]), **parts)


def write_demo(corpus: DemoCorpus, folder: Path) -> dict[Part, tuple[Path, Path]]:
    """Write aligned files `train.en`, `train.fr`, `valid.en` … into a folder.

    Returns:
        The paths of source and target for each part.

    Raises:
        RunError: when they cannot be written.
    """
    paths: dict[Part, tuple[Path, Path]] = {}
    items: dict[Part, tuple[DemoItem, ...]] = {
        "train": corpus.train,
        "valid": corpus.valid,
        "test": corpus.test,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part, pairs in items.items():
            paths[part] = folder / f"{part}.{corpus.source}", folder / f"{part}.{corpus.target}"
            _write_lines(paths[part][0], [item.source for item in pairs])
            _write_lines(paths[part][1], [item.target for item in pairs])
    except OSError as error:
        raise RunError(
            f"The generated pairs cannot be written: {error.strerror}",
            where=str(error.filename or folder),
            remedy="Choose another folder with --out, or make room",
        ) from None
    return paths


def _fresh(maker: ItemMaker, seen: set[str]) -> Iterator[DemoItem]:
    """Items whose source text has not occurred; they are noted in `seen`."""
    while True:
        item = maker.make()
        if item is not None and item.source not in seen:
            seen.add(item.source)
            yield item


def _check_differ(items: list[DemoItem], source: Locale, target: Locale) -> None:
    if items and all(item.source == item.target for item in items):
        raise DataError(
            f"The locales {source} and {target} write everything alike",
            remedy="Choose two that differ, such as --from en --to fr",
        )


def _write_lines(path: Path, lines: list[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)
