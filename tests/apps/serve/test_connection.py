"""Bytes of a connection: a head and its body leave together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from heedful.apps.serve.connection import GatheredWrites


class Recorder:
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[bytes | str] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def close(self) -> None:
        self.calls.append("close")
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> str:
        return name


def run(talk: Coroutine[Any, Any, None]) -> None:
    """Run in a thread of its own: a browser's driver may keep a loop in this one."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, talk).result()


async def gathered(recorder: Recorder) -> GatheredWrites:
    return GatheredWrites(cast(Any, recorder), asyncio.get_running_loop())


def test_writes_of_one_turn_leave_together_and_in_order() -> None:
    async def talk() -> None:
        writer = await gathered(recorder)
        for data in (b"head", b"", b"body"):
            writer.write(data)
        await asyncio.sleep(0)
        writer.write(b"next")
        await asyncio.sleep(0)
        assert writer.get_extra_info("peername") == "peername"

    recorder = Recorder()
    run(talk())
    assert recorder.calls == [b"headbody", b"next"]


def test_what_waits_is_written_before_the_end_and_nothing_after_it() -> None:
    async def talk() -> None:
        writer = await gathered(recorder)
        writer.write(b"last")
        writer.close()
        writer.write(b"too late")
        await asyncio.sleep(0)

    recorder = Recorder()
    run(talk())
    assert recorder.calls == [b"last", "close"]
