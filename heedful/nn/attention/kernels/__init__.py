"""Kernels of attention, by the names that they are asked for by."""

from heedful.nn.attention.kernels import (
    chunked,
    decode,
    flex,
    matmul,
    native,
    reference,
    ring,
    sdpa,
    varlen,
)
from heedful.nn.attention.kernels.request import Kernel

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (reference, native, matmul, sdpa, chunked, decode, flex, varlen, ring)
}
