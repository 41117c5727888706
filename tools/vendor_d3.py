"""Take the modules of D3 that the studio draws with from npm, with their licences.

`python tools/vendor_d3.py` fetches the versions that `packages.json` names, compares each archive
with the digest written there, and lays the modules beside it: as they are, with the version in the
name of the file, so that a browser may keep them for ever. For a newer version change it in
`packages.json`, empty its digests, run this, and change the name in `static/draw/d3.js`. Needs npm.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "heedful" / "apps" / "studio" / "static" / "vendor" / "d3"
LIST = FOLDER / "packages.json"
LICENCES = FOLDER / "LICENSES.txt"


def main() -> None:
    """Fetch every package of the list, and write the list again with what was taken."""
    packages = json.loads(LIST.read_text(encoding="utf-8"))
    for old in FOLDER.glob("*.js"):
        old.unlink()
    licences: dict[str, list[str]] = {}
    for package in packages:
        licence = take(package)
        licences.setdefault(licence, []).append(f"{package['name']} {package['version']}")
    texts = [f"{', '.join(names)}\n\n{text}" for text, names in licences.items()]
    LICENCES.write_text(f"\n{'-' * 80}\n\n".join(texts), encoding="utf-8")
    LIST.write_text(json.dumps(packages, indent=2) + "\n", encoding="utf-8")


def take(package: dict[str, Any]) -> str:
    """Write the module of a package beside the list, note its digests, and return its licence."""
    name, version = package["name"], package["version"]
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{name}@{version}", "--pack-destination", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        archive = next(Path(folder).glob("*.tgz"))
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        compare(package, "integrity", f"sha512-{digest}")
        with tarfile.open(archive) as files:
            module = read(files, f"package/dist/{name}.min.js")
            licence = read(files, "package/LICENSE").decode()
    compare(package, "sha256", hashlib.sha256(module).hexdigest())
    package["file"] = f"{name}-{version}.min.js"
    (FOLDER / package["file"]).write_bytes(module)
    print(f"{package['file']:32} {len(module):7,} bytes")
    return licence


def compare(package: dict[str, Any], kind: str, digest: str) -> None:
    """Note a digest, or refuse another one than was noted."""
    if package.get(kind) not in (None, "", digest):
        raise SystemExit(f"{package['name']} {package['version']}: {kind} is {digest}")
    package[kind] = digest


def read(archive: tarfile.TarFile, name: str) -> bytes:
    """Return a file of an archive."""
    file = archive.extractfile(name)
    assert file is not None, name
    return file.read()


if __name__ == "__main__":
    main()
