/* What the kernels share: vectors of 16 numbers, and the configuration of AMX tiles. */

#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#ifdef __AMX_INT8__
#define TILES 1
#else
#define TILES 0
#endif

typedef float v16 __attribute__((vector_size(64), aligned(4)));
typedef int32_t i16v __attribute__((vector_size(64), aligned(4)));
typedef int8_t b16 __attribute__((vector_size(16), aligned(1)));

#define INLINE static inline __attribute__((always_inline))

INLINE v16 load(const float *from) { return *(const v16 *)from; }
INLINE void store(float *to, v16 value) { *(v16 *)to = value; }
INLINE v16 all(float value) { return (v16){} + value; }
INLINE v16 larger(v16 a, v16 b) { return (v16)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE float sum_of(v16 v) { return _mm512_reduce_add_ps((__m512)v); }
INLINE float largest_of(v16 v) { return _mm512_reduce_max_ps((__m512)v); }
INLINE int32_t whole_sum_of(i16v v) { return _mm512_reduce_add_epi32((__m512i)v); }

#define MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to whole numbers */

/* 2^x, with a relative error of 2e-7; 0 for large negative numbers. */
INLINE v16 power_of_two(v16 x) {
    v16 whole = (v16)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    v16 rest = x - whole;
    v16 power = all(1.34004e-3f);
    power = power * rest + 9.67604e-3f;
    power = power * rest + 5.550327e-2f;
    power = power * rest + 2.4022107e-1f;
    power = power * rest + 6.9314721e-1f;
    power = power * rest + 1.0f;
    return (v16)_mm512_scalef_ps((__m512)power, (__m512)whole);
}

#define LOG2_E 1.44269504f
INLINE v16 exponential(v16 x) { return power_of_two(x * LOG2_E); }

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
