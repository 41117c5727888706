// Kernels for x86-64 processors with AVX-512, VNNI and AMX (tiles of bfloat16 and 8-bit integers).

#define LANES 16
#define HAS_AMX 1
#define KERNELS kernels_amx
#define KERNELS_NAME "AVX-512 VNNI, AMX"
#include "kernels.h"
