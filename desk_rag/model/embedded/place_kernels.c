/* Chunk KV from int8 into an fp32 cache: what desk_rag/kv/stitch.py does for a layer of a chunk, in one call. */

#include "vectors.h"

typedef uint16_t half; /* IEEE, 16 bits */

INLINE v16 codes(const int8_t *from) {
    return (v16)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}

INLINE v16 numbers(const half *from) { return (v16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from)); }

/* keys, values int8 [heads, tokens, width]; key_scale, key_zero [heads, groups, width], each group of `span` tokens;
   value_scale [heads, tokens]; cosines, sines [tokens, width / 2]; slots [heads, capacity, width], from the first token's
   on. `width` is a multiple of 32. */
void place_chunk(const int8_t *keys, const half *key_scale, const half *key_zero, const int8_t *values,
                 const half *value_scale, int64_t heads, int64_t tokens, int64_t width, int64_t groups, int64_t span,
                 const float *cosines, const float *sines, float *key_slots, float *value_slots, int64_t capacity) {
    const int64_t middle = width / 2;
    for (int64_t head = 0; head < heads; head++)
        for (int64_t token = 0; token < tokens; token++) {
            const int64_t from = (head * tokens + token) * width, to = (head * capacity + token) * width;
            const half *scale = key_scale + (head * groups + token / span) * width;
            const half *zero = key_zero + (head * groups + token / span) * width;
            for (int64_t i = 0; i < middle; i += 16) {
                v16 low = codes(keys + from + i) * numbers(scale + i) + numbers(zero + i);
                v16 high = codes(keys + from + middle + i) * numbers(scale + middle + i) + numbers(zero + middle + i);
                __m512 cosine = (__m512)load(cosines + token * middle + i), sine = (__m512)load(sines + token * middle + i);
                /* Fused by name where torch fuses, so that the bits are the same. */
                __m512 first = _mm512_fnmadd_ps((__m512)high, sine, _mm512_mul_ps((__m512)low, cosine));
                __m512 second = _mm512_fmadd_ps((__m512)low, sine, _mm512_mul_ps((__m512)high, cosine));
                store(key_slots + to + i, (v16)first);
                store(key_slots + to + middle + i, (v16)second);
            }
            const v16 step = (v16)_mm512_cvtph_ps(_mm256_set1_epi16((int16_t)value_scale[head * tokens + token]));
            for (int64_t i = 0; i < width; i += 16) store(value_slots + to + i, codes(values + from + i) * step);
        }
}
