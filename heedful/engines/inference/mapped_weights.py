"""Weights that processes of one machine share through files mapped into their memory.

A file is named by the digest of its bytes, so equal weights of any model and process are stored
once. The first process writes the file, and all map it copy on write. Files hold weights in the
form in which an engine computes, packed or in 8 bits, because this form, and not that of the
model's own file, is what each process would otherwise hold a copy of.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from heedful.engines.inference.lowering import PackedWeight
from heedful.errors import RunError
from heedful.memory import trim

SMALLEST = 1 << 16
"""Smallest size in bytes of a shared array; a smaller one is not worth a file and its pages."""


def map_weights(engine: nn.Module, folder: Path) -> None:
    """Replace the large weights of an engine by mapped ones of equal content.

    This concerns parameters on the processor and weights packed for kernels in C. Each process
    keeps its own layers packed for oneDNN.

    Args:
        engine: engine with packed layers, before programs take their addresses.
        folder: private folder, because its writers decide what is computed. The time of a file is
            that of the last request for it.

    Raises:
        RunError: when the folder cannot be written, such as for a full disk.
    """

    def mapped(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if array.nbytes < SMALLEST:
            return array
        file = _file_of(array.reshape(-1).view(np.uint8), folder)
        # Copy on write ("c"): a process that wrote by mistake would change only its own pages.
        memory: npt.NDArray[Any] = np.memmap(file, array.dtype, "c", shape=array.shape)
        return memory

    for module in engine.modules():
        packed = getattr(module, "packed", None)
        if isinstance(packed, PackedWeight):
            packed.move(mapped)
    for parameter in engine.parameters():
        if parameter.device.type == "cpu" and parameter.is_contiguous():
            parameter.data = _mapped_tensor(parameter.data, folder)
    trim()  # gives back the replaced copies, which `reuse_freed` would keep


def _mapped_tensor(tensor: Tensor, folder: Path) -> Tensor:
    size = tensor.nbytes
    if size < SMALLEST:
        return tensor
    file = _file_of(tensor.reshape(-1).view(torch.uint8).numpy(), folder)
    memory = torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8)
    return memory.view(tensor.dtype).view(tensor.shape)


def _file_of(content: npt.NDArray[np.uint8], folder: Path) -> Path:
    """Return the file of these bytes; write it if no process has."""
    file = folder / blake2b(content.data, digest_size=20).hexdigest()
    try:
        # The new time tells a cleaner that the file is in use. Setting it also shows, without a
        # race, whether the file exists.
        os.utime(file)
    except FileNotFoundError:
        try:
            with tempfile.NamedTemporaryFile(dir=folder) as out, suppress(FileExistsError):
                out.write(content.data)
                out.flush()
                os.link(out.name, file)  # never replaces a file: all map the first one
        except OSError as error:
            raise RunError(
                f"Cannot write weights that processes share ({error.strerror})",
                where=str(folder),
                remedy="Set TMPDIR to a folder with room, or use one process",
            ) from error
    return file
