/* Products of fp32 rows with int8 matrices that have a scale per row of outputs; sums are whole numbers. */

#pragma once
#include "matrix.h"

#define FINE 254.0f /* steps of the second number of an activation in one step of the first */

#if LANES == 16
#include "products_vnni.h"
#else
#include "products_avx2.h"
#endif
