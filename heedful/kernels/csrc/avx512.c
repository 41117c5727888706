// Kernels for x86-64 processors with AVX-512 (F, BW, VL, DQ) and VNNI.

#define LANES 16
#define HAS_AMX 0
#define KERNELS kernels_avx512
#define KERNELS_NAME "AVX-512 VNNI"
#include "kernels.h"
