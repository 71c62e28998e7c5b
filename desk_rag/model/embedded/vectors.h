/* What the kernels share: vectors of LANES numbers, 16 with AVX-512 and 8 with AVX2, and the configuration of AMX tiles. */

#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#ifdef __AMX_INT8__
#define TILES 1
#else
#define TILES 0
#endif
#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t half; /* a number in 16 bits: IEEE, or bfloat16 in bert_kernels.c */

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec value) { *(vec *)to = value; }
INLINE vec all(float value) { return (vec){} + value; }

#define MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to whole numbers */

#if LANES == 16

#define FUSED(a, b, c) ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c))) /* a * b + c, rounded once */
#define FUSED_MINUS(a, b, c) ((vec)_mm512_fnmadd_ps((__m512)(a), (__m512)(b), (__m512)(c))) /* c - a * b */
#define PRODUCT(a, b) ((vec)_mm512_mul_ps((__m512)(a), (__m512)(b)))
INLINE vec larger(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE float sum_of(vec v) { return _mm512_reduce_add_ps((__m512)v); }
INLINE float largest_of(vec v) { return _mm512_reduce_max_ps((__m512)v); }
INLINE vec nearest(vec x) {
    return (vec)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* x * 2^whole. */
INLINE vec scaled_by_power(vec x, vec whole) { return (vec)_mm512_scalef_ps((__m512)x, (__m512)whole); }
INLINE vec from_bytes(const int8_t *from) {
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
INLINE vec from_halves(const half *from) { return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from)); }
INLINE vec all_of_half(half value) { return (vec)_mm512_cvtph_ps(_mm256_set1_epi16((int16_t)value)); }
#define NUMBERED ((vec){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})

/* Transpose 16 numbers of up to 16 rows; rows that are not there become 0. Strides are in numbers. */
INLINE void turn(float *to, int64_t to_stride, const float *from, int64_t stride, int64_t rows) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = i < rows ? _mm512_loadu_ps(from + i * stride) : _mm512_setzero_ps();
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            __m512d low = (__m512d)b[i + j], high = (__m512d)b[i + j + 2];
            a[i + 2 * j] = (__m512)_mm512_unpacklo_pd(low, high);
            a[i + 2 * j + 1] = (__m512)_mm512_unpackhi_pd(low, high);
        }
    for (int i = 0; i < 4; i++) {
        __m512 first = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), second = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        __m512 third = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        __m512 fourth = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
        _mm512_storeu_ps(to + i * to_stride, _mm512_shuffle_f32x4(first, third, 0x88));
        _mm512_storeu_ps(to + (i + 8) * to_stride, _mm512_shuffle_f32x4(first, third, 0xdd));
        _mm512_storeu_ps(to + (i + 4) * to_stride, _mm512_shuffle_f32x4(second, fourth, 0x88));
        _mm512_storeu_ps(to + (i + 12) * to_stride, _mm512_shuffle_f32x4(second, fourth, 0xdd));
    }
}

#else

#define FUSED(a, b, c) ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define FUSED_MINUS(a, b, c) ((vec)_mm256_fnmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define PRODUCT(a, b) ((vec)_mm256_mul_ps((__m256)(a), (__m256)(b)))
INLINE vec larger(vec a, vec b) { return (vec)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE float sum_of(vec v) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
INLINE float largest_of(vec v) {
    __m128 most = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}
INLINE vec nearest(vec x) {
    return (vec)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* x * 2^whole, for `whole` up to 127; 0 below -126. */
INLINE vec scaled_by_power(vec x, vec whole) {
    ivec exponent = __builtin_convertvector(larger(whole, all(-127.0f)), ivec) + 127;
    return x * (vec)(exponent << 23);
}
INLINE vec from_bytes(const int8_t *from) {
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}
INLINE vec from_halves(const half *from) { return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }
INLINE vec all_of_half(half value) { return (vec)_mm256_cvtph_ps(_mm_set1_epi16((int16_t)value)); }
#define NUMBERED ((vec){0, 1, 2, 3, 4, 5, 6, 7})

/* Transpose 8 numbers of up to 8 rows, as above. */
INLINE void turn(float *to, int64_t to_stride, const float *from, int64_t stride, int64_t rows) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = i < rows ? _mm256_loadu_ps(from + i * stride) : _mm256_setzero_ps();
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            __m256d low = (__m256d)b[i + j], high = (__m256d)b[i + j + 2];
            a[i + 2 * j] = (__m256)_mm256_unpacklo_pd(low, high);
            a[i + 2 * j + 1] = (__m256)_mm256_unpackhi_pd(low, high);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}

#endif

/* 2^x, with a relative error of 2e-7; 0 for large negative numbers. */
INLINE vec power_of_two(vec x) {
    vec whole = nearest(x);
    vec rest = x - whole;
    vec power = all(1.34004e-3f);
    power = power * rest + 9.67604e-3f;
    power = power * rest + 5.550327e-2f;
    power = power * rest + 2.4022107e-1f;
    power = power * rest + 6.9314721e-1f;
    power = power * rest + 1.0f;
    return scaled_by_power(power, whole);
}

#define LOG2_E 1.44269504f
INLINE vec exponential(vec x) { return power_of_two(x * LOG2_E); }

/* x * Phi(x) to 2e-5: between -4.5 and 4.5 Phi(x) - 0.5 is x times a polynomial of its square. */
INLINE vec gelu(vec x) {
    vec near = larger(smaller(x, all(4.5f)), all(-4.5f)), square = near * near;
    vec p = all(8.66131914e-14f);
    p = p * square - 1.08620847e-11f;
    p = p * square + 6.14836293e-10f;
    p = p * square - 2.09841886e-08f;
    p = p * square + 4.8892889e-07f;
    p = p * square - 8.38307642e-06f;
    p = p * square + 0.000111300644f;
    p = p * square - 0.00117768196f;
    p = p * square + 0.00996180158f;
    p = p * square - 0.0664847195f;
    p = p * square + 0.398941815f;
    return x * (near * p + 0.5f);
}

#if TILES
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} TileConfig;

/* Use whole tiles; returns the thread's configuration before, which other libraries believe to be theirs. */
static TileConfig whole_tiles(void) {
    TileConfig before, mine = {.palette = 1};
    for (int i = 0; i < 8; i++) mine.bytes[i] = 64, mine.rows[i] = 16;
    __asm__ volatile("sttilecfg %0" : "=m"(before));
    __asm__ volatile("ldtilecfg %0" : : "m"(mine));
    return before;
}

static void restore_tiles(TileConfig before) {
    if (before.palette)
        __asm__ volatile("ldtilecfg %0" : : "m"(before));
    else
        __asm__ volatile("tilerelease");
}
#endif
