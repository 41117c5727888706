"""One classic script from the studio's modules.

A browser loads no module from `file://`, where every file has an origin of its own. So the export
wraps each module into a function, which runs when another module first asks for it. The functions
of a folder, as text, are the script of a thread.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

_IMPORT = re.compile(r'^import (?:\{(?P<names>[^}]*)\} from )?"(?P<path>[^"]+)";$', re.MULTILINE)
_PASSED_ON = re.compile(r'^export \{(?P<names>[^}]*)\} from "(?P<path>[^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(
    r"^export (?P<rest>(?:async )?(?:function\*?|const|class) (?P<names>\w+|\{[^}]*\}))",
    re.MULTILINE,
)
_LATER = re.compile(r"\bimport\((?=[\"`])")
_LOADERS = re.compile(
    r"^(?:async )?(?:function|const|let|class) (?P<name>load|loaded|loadLater|modules)\b",
    re.MULTILINE,
)
_MODULE_LINE = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)

_LOADER = r""""use strict";
(() => {
const modules = {};
const loaded = {};
const load = (name) => (name in loaded ? loaded[name] : (loaded[name] = modules[name]()));
// A thread of the page can load no modules either: it gets the functions of a folder as text.
heedfulSite.threadSource = (folder, start) => {
  const own = Object.entries(modules).filter(([name]) => name.startsWith(folder));
  const table = own.map(([name, make]) => `${JSON.stringify(name)}: ${make}`).join(",\n");
  const loader = `const loaded = {};\nconst modules = {${table}};\nconst load = ${load};`;
  return `"use strict";\n${loader}\nload(${JSON.stringify(start)});\n`;
};
const loadLater = async (folder, path) => load(new URL(path, `file:///${folder}`).pathname.slice(1));
"""


def bundle(folder: Path, start: str) -> str:
    """Return a classic script that runs a module and all modules of its folder that it may import.

    Args:
        folder: folder of the modules.
        start: name of the module to run, relative to the folder.
    """
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.js"))}
    sources = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    # A script in the head runs by itself, before the bundle.
    modules = [wrap(name, text) for name, text in sources.items() if name != "theme.js"]
    return "".join([_LOADER, *modules, f"load({json.dumps(start)});\n}})();\n"])


def wrap(name: str, text: str) -> str:
    """Return a module as an entry of the table of modules: a function that returns its exports.

    Args:
        name: name of the module, relative to the folder of all modules.
        text: source of the module.

    Raises:
        ValueError: when a line has a form of import or export that no module of the studio uses,
            or takes a name of the loader, which the module would then call in its place.
    """
    folder = posixpath.dirname(name)
    exports: list[str] = []

    def loaded(match: re.Match[str]) -> str:
        other = json.dumps(posixpath.normpath(posixpath.join(folder, match["path"])))
        if match["names"] is None:
            return f"load({other});"
        return f"const {{{match['names'].replace(' as ', ': ')}}} = load({other});"

    def passed_on(match: re.Match[str]) -> str:
        exports.extend(_names(match["names"]))
        return loaded(match)

    def exported(match: re.Match[str]) -> str:
        exports.extend(_names(match["names"].strip("{}")))
        return match["rest"]

    text = _IMPORT.sub(loaded, _PASSED_ON.sub(passed_on, text))
    text = _EXPORT.sub(exported, text)
    text = _LATER.sub(lambda _: f"loadLater({json.dumps(folder and folder + '/')}, ", text)
    if other := _MODULE_LINE.search(text):
        raise ValueError(f"{name}: this form of import or export is unknown: {other[0]}")
    if taken := _LOADERS.search(text):
        raise ValueError(f"{name}: {taken['name']} is a name of the loader; choose another")
    own = f"return {{ {', '.join(exports)} }};\n"
    return f"modules[{json.dumps(name)}] = () => {{\n{text}\n{own}}};\n"


def _names(listed: str) -> list[str]:
    return [each.strip() for each in listed.split(",") if each.strip()]
