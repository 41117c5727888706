"""COMET (Rei 2020): a model that scores a translation beside its source and a reference.

Its package asks for NumPy 1 and transformers 4, so it seldom lies beside Heedful. Its command,
`comet-score`, is called, whichever environment it comes from.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from heedful.errors import ConfigError, RunError

COMET_MODEL = "Unbabel/wmt22-comet-da"

_PROGRAM = "comet-score"
_LAST_LINES = 3  # of what the program says before it fails


def comet_program() -> str:
    """Return the path of COMET's command.

    Raises:
        ConfigError: when it is not installed.
    """
    # Scripts of the environment that runs come first, whether it is activated or not.
    own = shutil.which(_PROGRAM, path=sysconfig.get_path("scripts"))
    program = own or shutil.which(_PROGRAM)
    if program is None:
        raise ConfigError(
            f"COMET is not installed: there is no command {_PROGRAM}",
            where="--metrics comet",
            remedy="Install it in an environment of its own, as it needs older versions of NumPy "
            "and transformers: pipx install unbabel-comet",
        )
    return program


def comet_scores(
    sources: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    reference: Sequence[str],
    *,
    model: str = COMET_MODEL,
    on_gpu: bool = False,
) -> dict[str, list[float]]:
    """Score every translation of several systems.

    Args:
        sources: source texts.
        systems: translations of the sources by the name of the system.
        reference: reference translations.
        model: name of COMET's model, which its package fetches, or the path of a .ckpt file.
        on_gpu: computation on a GPU.

    Returns:
        Scores by the name of the system, as COMET gives them: about 0 to 1, higher is better.

    Raises:
        ConfigError: when COMET is not installed.
        RunError: when it fails, with the last lines that it printed.
    """
    program = comet_program()
    with tempfile.TemporaryDirectory() as folder:
        texts = {"sources": sources, "reference": reference}
        texts |= {f"system{number}": lines for number, lines in enumerate(systems.values())}
        paths = {name: _written(Path(folder) / name, lines) for name, lines in texts.items()}
        result = Path(folder) / "scores.json"
        outputs = [str(path) for name, path in paths.items() if name.startswith("system")]
        command = [program, "-s", str(paths["sources"]), "-r", str(paths["reference"]), "-t"]
        command += [*outputs, "--model", model, "--gpus", str(int(on_gpu))]
        command += ["--to_json", str(result), "--quiet", "--only_system"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode or not result.exists():
            said = "; ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
            raise RunError(
                f"COMET failed: {said or f'exit status {done.returncode}'}",
                where=f"{program} --model {model}",
                remedy="Try the command by itself; it fetches its models from the Hugging Face hub",
            )
        found = json.loads(result.read_text(encoding="utf-8"))
    lists = [[float(each["COMET"]) for each in found[path]] for path in outputs]
    return dict(zip(systems, lists, strict=True))


def _written(path: Path, lines: Sequence[str]) -> Path:
    # COMET reads lines as Python does, which also end at a carriage return.
    text = "".join(f"{line.replace(chr(13), ' ')}\n" for line in lines)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path
