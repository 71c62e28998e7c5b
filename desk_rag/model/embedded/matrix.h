/* What is multiplied: a matrix of codes, with a scale per row of outputs. */

#pragma once
#include "vectors.h"

#define WIDEST 1536 /* inputs of a matrix */

typedef struct {
    const uint8_t *codes; /* as pack() lays them out, or pack_wide() */
    const float *scales;  /* [out] */
    const float *bias;    /* [out], or NULL */
    int64_t out, in;
} Matrix;

/* acc + products of two 16-bit codes each, of which one pair is the same for all outputs. */
INLINE ivec dots_of_pairs(ivec acc, ivec codes, int32_t pair) {
#if LANES == 16
    return (ivec)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)codes, _mm512_set1_epi32(pair));
#else
    /* In assembler, because GCC would keep copies of the sums, and those in memory. */
    const ivec pairs = (ivec){} + pair;
#ifdef __AVXVNNI__
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(codes), "x"(pairs));
#else
    __asm__("vpaddd %1, %0, %0" : "+x"(acc) : "x"(_mm256_madd_epi16((__m256i)codes, (__m256i)pairs)));
#endif
    return acc;
#endif
}
