/* Products of fp32 rows with int8 matrices that have a scale per row of outputs; sums are whole numbers. */

#pragma once
#include "vectors.h"

#define FINE 254.0f /* steps of the second number of an activation in one step of the first */
#define WIDEST 1536 /* inputs of a matrix */

typedef struct {
    const uint8_t *codes; /* as pack() lays them out */
    const float *scales;  /* [out] */
    const float *bias;    /* [out], or NULL */
    int64_t out, in;
} Matrix;

#if LANES == 16
#include "products_vnni.h"
#else
#include "products_avx2.h"
#endif
