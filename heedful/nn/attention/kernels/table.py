"""Kernels of attention by name."""

from heedful.nn.attention.kernels import chunked, reference, ring, sdpa
from heedful.nn.attention.kernels.decode import Decode
from heedful.nn.attention.kernels.flex import Flex
from heedful.nn.attention.kernels.matmul import Matmul
from heedful.nn.attention.kernels.request import Kernel

# `decode` selects keys, and `matmul` attends to them.
_MATMUL = Matmul()

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (reference, _MATMUL, sdpa, chunked, Decode(_MATMUL), Flex(), ring)
}
