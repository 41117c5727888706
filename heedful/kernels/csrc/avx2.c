// Kernels for x86-64 processors with AVX2 and FMA.

#define LANES 8
#define HAS_AMX 0
#define KERNELS kernels_avx2
#define KERNELS_NAME "AVX2"
#include "kernels.h"
