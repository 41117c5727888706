"""Sample of the training data, judged before training begins, and the forecast of the run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice

from heedful.apps.cleaning.language_check import guess_languages
from heedful.apps.language_detector import detect_languages, known_languages
from heedful.apps.planning.forecast import Forecast
from heedful.data.corpus_spec import CorpusSpec, DataSpec
from heedful.data.pair_corpus import CorpusReader, corpus_paths
from heedful.data.text_file import file_form
from heedful.errors import ConfigError, DataError
from heedful.events import Events
from heedful.train.run_settings import RunSettings

_SAMPLE = 2000
_LONGEST = 256  # characters of a text; more tell no more
_FEWEST = 20  # texts of a side
_MOST = 0.7
"""Share of wrong texts on both sides past which a corpus is exchanged. Of the first, shortest pairs
of Tatoeba (English with German) 98 % are told right, of toy languages about half."""


def foresee(settings: RunSettings, events: Events, *, resume: bool) -> Events:
    """Look at the data of a translator, and foretell what a training gives.

    Args:
        settings: settings of the run.
        events: receivers of warnings and of the forecast.
        resume: flag of a run that goes on, whose data was looked at.

    Returns:
        The events, which also go to the forecast.

    Raises:
        DataError: when source and target are exchanged.
    """
    if not resume and settings.task == "translation" and os.environ.get("RANK", "0") == "0":
        check_languages(settings.data, events)
    return events.also(Forecast(settings, events))


def check_languages(data: DataSpec, events: Events) -> None:
    """Compare the languages of a sample of each corpus with those its settings or names give.

    Args:
        data: corpora; folders of shards are not read.
        events: receivers of warnings.

    Raises:
        DataError: when source and target are exchanged.
    """
    for corpus in (*data.train, *data.valid):
        if corpus.shards is not None:
            continue
        given = corpus.languages or data.languages
        languages = given or _languages_of_names(corpus)
        if languages is None or languages[0] == languages[1]:
            continue
        try:
            known = known_languages()
        except ConfigError as error:
            # Nobody asked for a check where only names of files tell the languages.
            if given is not None:
                events.warn(f"The languages of the data are not checked: {error}")
            return
        codes = [code.lower().replace("_", "-").partition("-")[0] for code in languages]
        if not set(codes) <= set(known):
            continue
        pairs = [(pair.source, pair.target) for pair in islice(CorpusReader(corpus), _SAMPLE)]
        where = " and ".join(map(str, corpus_paths(corpus)))
        should = f"they should be {codes[0]} and {codes[1]}"
        if _are_exchanged(pairs, codes):
            raise DataError(
                f"Source and target are exchanged: the sources look like {codes[1]} and the "
                f"targets like {codes[0]}, and {should}",
                where=where,
                remedy="Exchange the two files or keys, or correct --data.languages",
            )
        found = guess_languages(pairs) if given is not None else None
        if found is not None and list(found) != codes:
            events.warn(
                f"{where}: the sources look like {found[0]} and the targets like {found[1]}, and "
                f"{should}"
            )


def _are_exchanged(pairs: Sequence[tuple[str, str]], codes: Sequence[str]) -> bool:
    """Return True if most texts of both sides are rather in the other side's language."""
    for side, texts in enumerate(zip(*pairs, strict=True)):
        filled = [text[:_LONGEST] for text in texts if text.strip()]
        # Between two languages short texts can be told apart, too.
        odds = [dict(detect_languages(text)) for text in filled]
        wrong = sum(each[codes[1 - side]] > each[codes[side]] for each in odds)
        if len(filled) < _FEWEST or wrong < _MOST * len(filled):
            return False
    return bool(pairs)


def _languages_of_names(corpus: CorpusSpec) -> tuple[str, str] | None:
    """Return the endings of aligned files, as of train.en and train.de, if they are languages."""
    endings = [file_form(path).removeprefix(".").lower() for path in corpus_paths(corpus)]
    if len(endings) != 2 or not all(len(ending) in (2, 3) for ending in endings):
        return None
    return endings[0], endings[1]
