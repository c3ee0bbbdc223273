/* Smith-Waterman scores of one query with every subject of a packed database, for a card (scan.py).
 *
 * A work-item aligns two subjects, side by side in one 32-bit word of two 16-bit scores. It passes
 * over the subjects once for TILE residues of the query, whose scores stay in registers; between
 * two tiles only the lowest row is stored. A group shares the tile's profile: the score of every
 * letter with every row. On NVIDIA cards the words are computed by the DPX functions (in hardware
 * from sm_90 on, by the compiler's replacement before), elsewhere by vectors of two.
 *
 * A tile adds at most TILE steps of the best pair to the score that it began with. A subject at or
 * above LIMIT after a tile is left with its score, and the caller computes it again with 32 bits.
 */
#define PITCH (TILE + 8) /* of a letter's row in the profile: eight letters in a row of other banks */
#define PAIRS (GROUP / 2) /* of subjects in a group of the database */

#ifdef __CUDACC__
typedef uint pair;
#define BOTH(x) (((uint)(x) & 0xffffu) * 0x10001u)
#define ADD_MOST(a, b, c) __viaddmax_s16x2(a, b, c)
#define ADD_MOST_0(a, b, c) __viaddmax_s16x2_relu(a, b, c)
#define MOST(a, b) __vmaxs2(a, b)
#define MINUS(a, b) __vsub2(a, b)
#define FIRST(both) ((short)((both) & 0xffffu))
#define SECOND(both) ((short)((both) >> 16))
#define EACH_ROW _Pragma("unroll")
/* eight rows of a letter at once; `r` is a constant in the unrolled loop */
#define SCORES(r) __byte_perm(WORD(lefts, r), WORD(rights, r), (r) % 2 ? 0x7632 : 0x5410)
#define WORD(v, r) ((r) % 8 < 2 ? v.x : (r) % 8 < 4 ? v.y : (r) % 8 < 6 ? v.z : v.w)
#define FETCH(r)                                  \
    if ((r) % 8 == 0) {                           \
        lefts = *(const uint4 *)(left + (r));     \
        rights = *(const uint4 *)(right + (r));   \
    }
#define FETCHED uint4 lefts, rights;
#else
typedef short2 pair;
#define BOTH(x) ((short2)(x))
#define ADD_MOST(a, b, c) max((a) + (b), c)
#define ADD_MOST_0(a, b, c) max(max((a) + (b), c), (short2)(0))
#define MOST(a, b) max(a, b)
#define MINUS(a, b) ((a) - (b))
#define FIRST(both) ((both).x)
#define SECOND(both) ((both).y)
#define EACH_ROW
#define SCORES(r) ((short2)(left[r], right[r]))
#define FETCH(r)
#define FETCHED
#endif

__kernel void scan_pairs(__global const uchar *residues, __global const int *starts,
                         __global const int *columns, int first, int groups,
                         __global const uchar *query, int length, __global const short *matrix,
                         __global pair *rows, __global short *scores)
{
    __local short profile[LETTERS * PITCH] __attribute__((aligned(16)));
    const int item = get_local_id(0), items = get_local_size(0);
    const int task = get_global_id(0);
    const int group = first + task / PAIRS, side = task % PAIRS;
    const int width = task < groups * PAIRS ? columns[group] : 0;
    __global const uchar *subjects = residues + (width ? starts[group] + 2 * side : 0);
    /* the lowest row of the last tile: scores and gaps of each column, pairs side by side */
    __global pair *row = rows + (width ? starts[group] - starts[first] + side : 0);
    pair best = BOTH(0);
    int over = 0;
    for (int base = 0; base < length; base += TILE) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int x = item; x < LETTERS * TILE; x += items) {
            const int letter = x / TILE, at = x % TILE;
            profile[letter * PITCH + at] =
                base + at < length ? matrix[query[base + at] * LETTERS + letter] : (short)-1000;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (over) continue;
        pair here, opened, score[TILE], gap[TILE], corner = BOTH(0);
        EACH_ROW
        for (int r = 0; r < TILE; r++) {
            score[r] = BOTH(0);
            gap[r] = BOTH(UNREACHED);
        }
        for (int c = 0; c < width; c++) {
            __local const short *left = profile + subjects[c * GROUP] * PITCH;
            __local const short *right = profile + subjects[c * GROUP + 1] * PITCH;
            pair diagonal = corner, above = BOTH(UNREACHED);
            corner = BOTH(0);
            if (base) {
                corner = row[c * GROUP];
                above = row[c * GROUP + PAIRS];
            }
            FETCHED
            EACH_ROW
            for (int r = 0; r < TILE; r++) {
                FETCH(r)
                here = ADD_MOST_0(diagonal, SCORES(r), MOST(gap[r], above));
                diagonal = score[r];
                score[r] = here;
                best = MOST(best, here);
                opened = MINUS(here, BOTH(GAP_OPEN));
                gap[r] = ADD_MOST(gap[r], BOTH(-GAP_EXTEND), opened);
                above = ADD_MOST(above, BOTH(-GAP_EXTEND), opened);
            }
            row[c * GROUP] = here;
            row[c * GROUP + PAIRS] = above;
        }
        over = FIRST(best) >= LIMIT || SECOND(best) >= LIMIT;
    }
    if (width) {
        scores[group * GROUP + 2 * side] = FIRST(best);
        scores[group * GROUP + 2 * side + 1] = SECOND(best);
    }
}
