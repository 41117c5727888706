// Kernels for 64-bit Arm processors.

#define LANES 4
#define HAS_AMX 0
#define KERNELS kernels_neon
#define KERNELS_NAME "NEON"
#include "kernels.h"
