/* AES in CBC mode (FIPS 197, NIST SP 800-38A section 6.2), by tables of 256 words.
 *
 * Words are big-endian. `schedule`: rounds + 1 round keys of 4 words; for decryption that of the
 * equivalent inverse cipher (FIPS 197 section 5.3.5). `tables`: the 256 words of the first column
 * of a round, then the 256 bytes of the last round's substitution, one per word. Decryption depends
 * on the block before only, so a work-item computes one block; encryption is a chain, so a work-item
 * computes one message.
 */
static inline uint swapped(uint x)
{
    return x << 24 | (x & 0xff00u) << 8 | (x >> 8 & 0xff00u) | x >> 24;
}

#define FIRST(x) ((x) >> 24)
#define SECOND(x) ((x) >> 16 & 0xffu)
#define THIRD(x) ((x) >> 8 & 0xffu)
#define FOURTH(x) ((x) & 0xffu)
#define ROUND(a, b, c, d, k)                                                              \
    (table[FIRST(a)] ^ rotate(table[SECOND(b)], 24u) ^ rotate(table[THIRD(c)], 16u)       \
     ^ rotate(table[FOURTH(d)], 8u) ^ schedule[k])
#define LAST(a, b, c, d, k)                                                               \
    ((table[256 + FIRST(a)] << 24 | table[256 + SECOND(b)] << 16                          \
      | table[256 + THIRD(c)] << 8 | table[256 + FOURTH(d)]) ^ schedule[k])

__kernel void encrypt(__global const uint *data, __global const uint *vectors,
                      __global const uint *schedule, __global const uint *tables, int rounds,
                      int messages, int blocks, __global uint *result)
{
    __local uint table[512];
    for (int x = get_local_id(0); x < 512; x += get_local_size(0)) table[x] = tables[x];
    barrier(CLK_LOCAL_MEM_FENCE);
    const int message = get_global_id(0);
    if (message >= messages) return;
    uint a = swapped(vectors[message * 4]), b = swapped(vectors[message * 4 + 1]);
    uint c = swapped(vectors[message * 4 + 2]), d = swapped(vectors[message * 4 + 3]);
    for (int block = 0; block < blocks; block++) {
        const ulong at = ((ulong)message * blocks + block) * 4;
        a ^= swapped(data[at]) ^ schedule[0];
        b ^= swapped(data[at + 1]) ^ schedule[1];
        c ^= swapped(data[at + 2]) ^ schedule[2];
        d ^= swapped(data[at + 3]) ^ schedule[3];
        for (int round = 1; round < rounds; round++) {
            const uint e = ROUND(a, b, c, d, round * 4), f = ROUND(b, c, d, a, round * 4 + 1);
            const uint g = ROUND(c, d, a, b, round * 4 + 2), h = ROUND(d, a, b, c, round * 4 + 3);
            a = e;
            b = f;
            c = g;
            d = h;
        }
        const uint e = LAST(a, b, c, d, rounds * 4), f = LAST(b, c, d, a, rounds * 4 + 1);
        const uint g = LAST(c, d, a, b, rounds * 4 + 2), h = LAST(d, a, b, c, rounds * 4 + 3);
        a = e;
        b = f;
        c = g;
        d = h;
        result[at] = swapped(a);
        result[at + 1] = swapped(b);
        result[at + 2] = swapped(c);
        result[at + 3] = swapped(d);
    }
}

__kernel void decrypt(__global const uint *data, __global const uint *vectors,
                      __global const uint *schedule, __global const uint *tables, int rounds,
                      int messages, int blocks, __global uint *result)
{
    __local uint table[512];
    for (int x = get_local_id(0); x < 512; x += get_local_size(0)) table[x] = tables[x];
    barrier(CLK_LOCAL_MEM_FENCE);
    const ulong block = get_global_id(0);
    if (block >= (ulong)messages * blocks) return;
    const ulong at = block * 4;
    uint a = swapped(data[at]) ^ schedule[0], b = swapped(data[at + 1]) ^ schedule[1];
    uint c = swapped(data[at + 2]) ^ schedule[2], d = swapped(data[at + 3]) ^ schedule[3];
    for (int round = 1; round < rounds; round++) {
        const uint e = ROUND(a, d, c, b, round * 4), f = ROUND(b, a, d, c, round * 4 + 1);
        const uint g = ROUND(c, b, a, d, round * 4 + 2), h = ROUND(d, c, b, a, round * 4 + 3);
        a = e;
        b = f;
        c = g;
        d = h;
    }
    const uint e = LAST(a, d, c, b, rounds * 4), f = LAST(b, a, d, c, rounds * 4 + 1);
    const uint g = LAST(c, b, a, d, rounds * 4 + 2), h = LAST(d, c, b, a, rounds * 4 + 3);
    const ulong message = block / blocks;
    /* the block before, or the message's initialization vector */
    if (block % blocks) {
        result[at] = swapped(e) ^ data[at - 4];
        result[at + 1] = swapped(f) ^ data[at - 3];
        result[at + 2] = swapped(g) ^ data[at - 2];
        result[at + 3] = swapped(h) ^ data[at - 1];
    } else {
        result[at] = swapped(e) ^ vectors[message * 4];
        result[at + 1] = swapped(f) ^ vectors[message * 4 + 1];
        result[at + 2] = swapped(g) ^ vectors[message * 4 + 2];
        result[at + 3] = swapped(h) ^ vectors[message * 4 + 3];
    }
}
