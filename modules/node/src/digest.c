/* MD5, SHA-1 and SHA-2 over one buffer: what `crypto.createHash` needs. */
#include <stdlib.h>
#include <string.h>
#include "glue.h"

typedef void compress_fn(void *state, const uint8_t *block);

static inline uint32_t rotl(uint32_t x, int n) { return x << n | x >> (32 - n); }
static inline uint32_t rotr(uint32_t x, int n) { return x >> n | x << (32 - n); }
static inline uint64_t rotr64(uint64_t x, int n) { return x >> n | x << (64 - n); }
static inline uint32_t big32(const uint8_t *p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }
static inline uint64_t big64(const uint8_t *p) { return (uint64_t)big32(p) << 32 | big32(p + 4); }
static inline uint32_t little32(const uint8_t *p) { return (uint32_t)p[3] << 24 | p[2] << 16 | p[1] << 8 | p[0]; }

static const uint32_t md5_k[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501, 0x698098d8, 0x8b44f7af,
    0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821, 0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa,
    0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8, 0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8,
    0x676f02d9, 0x8d2a4c8a, 0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665, 0xf4292244, 0x432aff97,
    0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1, 0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1,
    0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391};
static const uint8_t md5_shift[16] = {7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21};

static void md5_compress(void *state, const uint8_t *block)
{
    uint32_t *s = state, a = s[0], b = s[1], c = s[2], d = s[3];
    for (int i = 0; i < 64; i++) {
        uint32_t f;
        int g;
        switch (i / 16) {
        case 0: f = (b & c) | (~b & d); g = i; break;
        case 1: f = (d & b) | (~d & c); g = (5 * i + 1) % 16; break;
        case 2: f = b ^ c ^ d; g = (3 * i + 5) % 16; break;
        default: f = c ^ (b | ~d); g = 7 * i % 16;
        }
        f += a + md5_k[i] + little32(block + 4 * g);
        a = d, d = c, c = b;
        b += rotl(f, md5_shift[i / 16 * 4 + i % 4]);
    }
    s[0] += a, s[1] += b, s[2] += c, s[3] += d;
}

static void sha1_compress(void *state, const uint8_t *block)
{
    uint32_t *s = state, w[80], a = s[0], b = s[1], c = s[2], d = s[3], e = s[4];
    for (int i = 0; i < 80; i++)
        w[i] = i < 16 ? big32(block + 4 * i) : rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20 ? ((b & c) | (~b & d)) + 0x5a827999
                   : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                   : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                            : (b ^ c ^ d) + 0xca62c1d6;
        uint32_t t = rotl(a, 5) + f + e + w[i];
        e = d, d = c, c = rotl(b, 30), b = a, a = t;
    }
    s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e;
}

/* SHA-256's constants are the upper halves of the first 64 of these. */
static const uint64_t sha512_k[80] = {
    0x428a2f98d728ae22, 0x7137449123ef65cd, 0xb5c0fbcfec4d3b2f, 0xe9b5dba58189dbbc, 0x3956c25bf348b538, 0x59f111f1b605d019,
    0x923f82a4af194f9b, 0xab1c5ed5da6d8118, 0xd807aa98a3030242, 0x12835b0145706fbe, 0x243185be4ee4b28c, 0x550c7dc3d5ffb4e2,
    0x72be5d74f27b896f, 0x80deb1fe3b1696b1, 0x9bdc06a725c71235, 0xc19bf174cf692694, 0xe49b69c19ef14ad2, 0xefbe4786384f25e3,
    0x0fc19dc68b8cd5b5, 0x240ca1cc77ac9c65, 0x2de92c6f592b0275, 0x4a7484aa6ea6e483, 0x5cb0a9dcbd41fbd4, 0x76f988da831153b5,
    0x983e5152ee66dfab, 0xa831c66d2db43210, 0xb00327c898fb213f, 0xbf597fc7beef0ee4, 0xc6e00bf33da88fc2, 0xd5a79147930aa725,
    0x06ca6351e003826f, 0x142929670a0e6e70, 0x27b70a8546d22ffc, 0x2e1b21385c26c926, 0x4d2c6dfc5ac42aed, 0x53380d139d95b3df,
    0x650a73548baf63de, 0x766a0abb3c77b2a8, 0x81c2c92e47edaee6, 0x92722c851482353b, 0xa2bfe8a14cf10364, 0xa81a664bbc423001,
    0xc24b8b70d0f89791, 0xc76c51a30654be30, 0xd192e819d6ef5218, 0xd69906245565a910, 0xf40e35855771202a, 0x106aa07032bbd1b8,
    0x19a4c116b8d2d0c8, 0x1e376c085141ab53, 0x2748774cdf8eeb99, 0x34b0bcb5e19b48a8, 0x391c0cb3c5c95a63, 0x4ed8aa4ae3418acb,
    0x5b9cca4f7763e373, 0x682e6ff3d6b2b8a3, 0x748f82ee5defb2fc, 0x78a5636f43172f60, 0x84c87814a1f0ab72, 0x8cc702081a6439ec,
    0x90befffa23631e28, 0xa4506cebde82bde9, 0xbef9a3f7b2c67915, 0xc67178f2e372532b, 0xca273eceea26619c, 0xd186b8c721c0c207,
    0xeada7dd6cde0eb1e, 0xf57d4f7fee6ed178, 0x06f067aa72176fba, 0x0a637dc5a2c898a6, 0x113f9804bef90dae, 0x1b710b35131c471b,
    0x28db77f523047d84, 0x32caab7b40c72493, 0x3c9ebe0a15c9bebc, 0x431d67c49c100d4c, 0x4cc5d4becb3e42b6, 0x597f299cfc657e2a,
    0x5fcb6fab3ad6faec, 0x6c44198c4a475817};

static void sha256_compress(void *state, const uint8_t *block)
{
    uint32_t *s = state, w[64], v[8];
    for (int i = 0; i < 64; i++) {
        if (i < 16) {
            w[i] = big32(block + 4 * i);
            continue;
        }
        uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (rotr(x, 7) ^ rotr(x, 18) ^ x >> 3) + w[i - 7] + (rotr(y, 17) ^ rotr(y, 19) ^ y >> 10);
    }
    memcpy(v, s, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = v[7] + (rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6]))
                    + (uint32_t)(sha512_k[i] >> 32) + w[i];
        uint32_t t2 = (rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        s[i] += v[i];
}

static void sha512_compress(void *state, const uint8_t *block)
{
    uint64_t *s = state, w[80], v[8];
    for (int i = 0; i < 80; i++) {
        if (i < 16) {
            w[i] = big64(block + 8 * i);
            continue;
        }
        uint64_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (rotr64(x, 1) ^ rotr64(x, 8) ^ x >> 7) + w[i - 7] + (rotr64(y, 19) ^ rotr64(y, 61) ^ y >> 6);
    }
    memcpy(v, s, sizeof v);
    for (int i = 0; i < 80; i++) {
        uint64_t t1 = v[7] + (rotr64(v[4], 14) ^ rotr64(v[4], 18) ^ rotr64(v[4], 41)) + ((v[4] & v[5]) ^ (~v[4] & v[6]))
                    + sha512_k[i] + w[i];
        uint64_t t2 = (rotr64(v[0], 28) ^ rotr64(v[0], 34) ^ rotr64(v[0], 39)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        s[i] += v[i];
}

typedef struct {
    const char *name;
    compress_fn *compress;
    int block, word, output; /* bytes */
    bool is_big_endian;
    uint64_t initial[8];
} Digest;

static const Digest digests[] = {
    {"md5", md5_compress, 64, 4, 16, false, {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476}},
    {"sha1", sha1_compress, 64, 4, 20, true, {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}},
    {"sha224", sha256_compress, 64, 4, 28, true,
     {0xc1059ed8, 0x367cd507, 0x3070dd17, 0xf70e5939, 0xffc00b31, 0x68581511, 0x64f98fa7, 0xbefa4fa4}},
    {"sha256", sha256_compress, 64, 4, 32, true,
     {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}},
    {"sha384", sha512_compress, 128, 8, 48, true,
     {0xcbbb9d5dc1059ed8, 0x629a292a367cd507, 0x9159015a3070dd17, 0x152fecd8f70e5939, 0x67332667ffc00b31, 0x8eb44a8768581511,
      0xdb0c2e0d64f98fa7, 0x47b5481dbefa4fa4}},
    {"sha512", sha512_compress, 128, 8, 64, true,
     {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
      0x1f83d9abfb41bd6b, 0x5be0cd19137e2179}},
};

static void store(uint8_t *out, uint64_t value, int bytes, bool is_big_endian)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> 8 * (is_big_endian ? bytes - 1 - i : i));
}

static void digest(const Digest *kind, const uint8_t *data, size_t length, uint8_t *out)
{
    union { uint32_t narrow[8]; uint64_t wide[8]; } state;
    for (int i = 0; i < 8; i++) {
        if (kind->word == 4)
            state.narrow[i] = (uint32_t)kind->initial[i];
        else
            state.wide[i] = kind->initial[i];
    }
    size_t whole = length / kind->block * kind->block;
    for (size_t at = 0; at < whole; at += kind->block)
        kind->compress(&state, data + at);
    uint8_t tail[256] = {0};
    size_t rest = length - whole;
    size_t padded = rest + 1 + 2 * kind->word > (size_t)kind->block ? 2 * kind->block : kind->block;
    memcpy(tail, data + whole, rest);
    tail[rest] = 0x80;
    store(tail + padded - 8, (uint64_t)length * 8, 8, kind->is_big_endian);
    for (size_t at = 0; at < padded; at += kind->block)
        kind->compress(&state, tail + at);
    uint8_t full[64];
    for (int i = 0; i < 8; i++)
        store(full + i * kind->word, kind->word == 4 ? state.narrow[i] : state.wide[i], kind->word, kind->is_big_endian);
    memcpy(out, full, kind->output);
}

/* digest(name, bytes) -> Uint8Array, or undefined for an unknown name */
static JSValue native_digest(JSContext *ctx, JSValueConst this_val, int argc, JSValueConst *argv)
{
    size_t length;
    uint8_t *data = JS_GetUint8Array(ctx, &length, argv[1]);
    const char *name = JS_ToCString(ctx, argv[0]);
    if ((!data && length) || !name)
        return JS_EXCEPTION;
    const Digest *kind = NULL;
    for (size_t i = 0; i < sizeof digests / sizeof *digests; i++)
        if (!strcmp(digests[i].name, name))
            kind = &digests[i];
    JS_FreeCString(ctx, name);
    if (!kind)
        return JS_UNDEFINED;
    uint8_t out[64];
    digest(kind, data ? data : (const uint8_t *)"", length, out);
    return JS_NewUint8ArrayCopy(ctx, out, kind->output);
}

void digest_add_bindings(JSContext *ctx, JSValue binding)
{
    BIND(ctx, binding, "digest", native_digest, 2);
}
