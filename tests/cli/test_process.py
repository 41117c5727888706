"""The end of the command line's own process: its status, and what others have yet to do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

WORK = """
import atexit, sys
from heedful.cli import main as module

class Kept:
    def __del__(self):
        print("freed", flush=True)

def main():
    global kept
    kept = Kept()
    atexit.register(print, "at exit")
    print("done", end=" ")
    {end}

module.main = main
sys.exit(module.run())
"""


def ended(end: str, **streams: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WORK.format(end=end)],
        text=True,
        check=False,
        env={name: word for name, word in os.environ.items() if name != "PYTHONUNBUFFERED"},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


@pytest.mark.parametrize("status", [0, 1, 130])
def test_all_is_said_and_nothing_is_taken_apart(status: int) -> None:
    done = ended(f"return {status}")
    assert (done.returncode, done.stdout, done.stderr) == (status, "done at exit\n", "")


def test_threads_come_to_their_end() -> None:
    work = "import threading, time"
    later = "threading.Thread(target=lambda: (time.sleep(0.3), print('later'))).start()"
    done = ended(f"{work}; {later}; return 3")
    assert (done.returncode, done.stdout) == (3, "done later\nat exit\n")


def test_what_ends_it_otherwise_is_told_by_python() -> None:
    done = ended("raise SystemExit(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "done at exit\nfreed\n", "")
    done = ended("1 / 0")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_what_cannot_be_written_is_told_by_python() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = ended("return 0", stdout=full.fileno())
    assert done.returncode > 0
    assert "No space left" in done.stderr


def test_output_is_utf8_in_a_locale_that_lacks_letters(tmp_path) -> None:
    old = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "heedful", "translate"]
    done = subprocess.run(
        [*command, "en-de", "The doors are for you."], capture_output=True, check=False, env=old
    )
    assert done.returncode == 0, done.stderr
    assert "für" in done.stdout.decode("utf-8")
    # A name of bytes that are no text is still printed, and not an error of its own.
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")
    done = subprocess.run(
        [*command, "en-de", "-i", name], capture_output=True, check=False, env=old
    )
    assert done.returncode == 2, done.stderr
    assert b"No such file" in done.stderr
