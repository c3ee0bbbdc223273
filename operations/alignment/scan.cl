/* Smith-Waterman scores of one query with every subject of a packed database (see scan.py).
 *
 * Subjects lie in groups of GROUP, residue by residue side by side: with LANES == GROUP one work-item
 * computes a whole group in the lanes of a vector (a CPU's way), with LANES == 1 one subject (a
 * card's way: neighbours read neighbouring bytes). A work-item takes every n-th task, n being the
 * number of work-items, and passes over the query once for BLOCK columns of its subjects.
 *
 * The lanes of a vector have 16 bits. One diagonal step adds at most SCORE_MAX, so a block that is
 * entered with a score below LIMIT cannot wrap; a group at or above it is left with its score,
 * and the caller computes its subjects again with LANES == 1, whose scores have 32 bits.
 */
#if LANES == 1
typedef int cell;
#define OVER(best) 0
#define ROW(i, which) scratch[((size_t)(i) * 2 + (which)) * workers + worker]
#define PROFILE(k, letter) ((cell)matrix[(letter) * LETTERS + column##k])
#else
typedef short16 cell;
#define OVER(best) any((best) >= (cell)LIMIT)
#define ROW(i, which) scratch[((size_t)worker * length + (i)) * 2 + (which)]
#define PROFILE(k, letter) (*(const cell *)(profile + ((letter) * BLOCK + (k)) * LANES))
#endif

static inline cell most(cell a, cell b) { return a > b ? a : b; }

#define CELL(k)                                                         \
    here = most(most(diagonal##k + PROFILE(k, letter), most(gap, above##k)), (cell)0); \
    best = most(best, here);                                            \
    opened = here - (cell)GAP_OPEN;                                     \
    gap = most(gap - (cell)GAP_EXTEND, opened);                         \
    above##k = most(above##k - (cell)GAP_EXTEND, opened);               \
    diagonal##k = left;                                                 \
    left = here;

__kernel void scan(__global const uchar *residues, __global const int *starts,
                   __global const int *columns, __global const int *tasks, int count,
                   __global const uchar *query, int length, __global const short *matrix,
                   __global cell *scratch, __global cell *scores)
{
    const int worker = get_global_id(0), workers = get_global_size(0);
    for (int t = worker; t < count; t += workers) {
        const int task = tasks[t];
        const int group = task / (GROUP / LANES), lane = task % (GROUP / LANES);
        __global const uchar *subject = residues + starts[group] + lane;
        cell best = 0;
        for (int i = 0; i < length; i++) {
            ROW(i, 0) = 0;
            ROW(i, 1) = UNREACHED;
        }
        for (int c = 0; c < columns[group] && !OVER(best); c += BLOCK, subject += BLOCK * GROUP) {
#if LANES == 1
            const int column0 = subject[0], column1 = subject[GROUP];
            const int column2 = subject[2 * GROUP], column3 = subject[3 * GROUP];
#else
            short profile[LETTERS * BLOCK * LANES] __attribute__((aligned(64)));
            for (int k = 0; k < BLOCK; k++)
                for (int l = 0; l < LANES; l++) {
                    __global const short *row = matrix + subject[k * GROUP + l] * LETTERS;
                    for (int a = 0; a < LETTERS; a++)
                        profile[(a * BLOCK + k) * LANES + l] = row[a];
                }
#endif
            cell above0 = UNREACHED, above1 = UNREACHED, above2 = UNREACHED, above3 = UNREACHED;
            cell diagonal0 = 0, diagonal1 = 0, diagonal2 = 0, diagonal3 = 0;
            for (int i = 0; i < length; i++) {
                const int letter = query[i];
                cell left = ROW(i, 0), gap = ROW(i, 1), here, opened;
                CELL(0) CELL(1) CELL(2) CELL(3)
                ROW(i, 0) = here;
                ROW(i, 1) = gap;
            }
        }
        scores[task] = best;
    }
}
