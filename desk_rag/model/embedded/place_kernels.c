/* Chunk KV from int8 into an fp32 cache: what desk_rag/kv/stitch.py does for a layer of a chunk, in one call. */

#include "vectors.h"

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
            for (int64_t i = 0; i < middle; i += LANES) {
                vec low = from_bytes(keys + from + i) * from_halves(scale + i) + from_halves(zero + i);
                vec high = from_bytes(keys + from + middle + i) * from_halves(scale + middle + i);
                high += from_halves(zero + middle + i);
                vec cosine = load(cosines + token * middle + i), sine = load(sines + token * middle + i);
                /* Fused by name where torch fuses, so that the bits are the same. */
                vec first = FUSED_MINUS(high, sine, PRODUCT(low, cosine));
                vec second = FUSED(low, sine, PRODUCT(high, cosine));
                store(key_slots + to + i, first);
                store(key_slots + to + middle + i, second);
            }
            const vec step = all_of_half(value_scale[head * tokens + token]);
            for (int64_t i = 0; i < width; i += LANES) store(value_slots + to + i, from_bytes(values + from + i) * step);
        }
}
