// Every way to declare memory and to ask where one is; one source for all backends.
#define STEP 2
typedef float real;
__constant float WEIGHTS[3] = {1.0f, 2.0f, 4.0f};
typedef struct { int whole; float part; } pair_t;

static inline float weighted(__constant float *w, __global const float *x, __local float *l, real k) {
    return w[0] * x[0] + w[STEP] * l[0] * k;
}

__kernel void scale(__global float *y, __global const float *x, const float k) {
    y[get_global_id(0)] = k * x[get_global_id(0)];
}

__kernel void add(__global float *y, __global const float *w, const uint n) {
    if (get_global_id(0) < n) y[get_global_id(0)] += w[get_global_id(0)];
}

__kernel void group_sum(__global const float *x, __global float *sums, __local float *part) {
    part[get_local_id(0)] = x[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) == 0) {
        float sum = 0.0f;
        for (uint i = 0; i < get_local_size(0); i++) sum += part[i];
        sums[get_group_id(0)] = sum;
    }
}

__kernel void where(__global int *y) {
    size_t x = get_global_id(0), w = get_global_size(0), h = get_global_size(1);
    size_t at = x + w * (get_global_id(1) + h * get_global_id(2)) + get_global_offset(0);
    y[at] = (int)(get_local_id(0) + 10 * get_local_id(1) + 100 * get_local_id(2)
        + 1000 * get_group_id(0) + 10000 * get_group_id(1) + 100000 * get_group_id(2)
        + 1000000 * get_num_groups(0) + 10000000 * get_num_groups(1) + 100000000 * get_num_groups(2));
}

__kernel __attribute__((reqd_work_group_size(8, 1, 1)))
void spaces(__global int *at, __global float *out, __constant float *given, __local float *part,
            __local int *whole, const int n) {
    __local float tile[8];
    __local float *alias = part;
    pair_t both;
    size_t i = get_global_id(0), j = get_local_id(0);
    both.whole = 3;
    both.part = 0.5f;
    tile[j] = given[j];
    alias[j] = (float)i;
    whole[j] = (int)get_group_id(0);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    mem_fence(CLK_LOCAL_MEM_FENCE);
    at[i] = 10 * whole[7 - j] + both.whole;
    out[i] = part[7 - j] + tile[7 - j] + weighted(WEIGHTS, (__global const float *)at, tile, both.part) + n;
}

__kernel void scalars(__global double *y, int i, uint u, long l, ulong w, float f, double d) {
    y[0] = i; y[1] = u; y[2] = (double)l; y[3] = (double)w; y[4] = f; y[5] = d;
}
