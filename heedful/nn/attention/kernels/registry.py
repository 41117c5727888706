"""The kernels of attention by name, in the order in which people read of them."""

from __future__ import annotations

from heedful.nn.attention.kernels import (
    chunked,
    decode,
    flex,
    matmul,
    native,
    reference,
    sdpa,
    varlen,
)
from heedful.nn.attention.kernels.request import Kernel

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (reference, native, matmul, sdpa, chunked, decode, flex, varlen)
}
