// Every function of the subset that computes.
__kernel void mathematics(__global float *y, __global const float *x) {
    float a = x[0], b = x[1];
    y[0] = acos(b) + acosh(2 * a) + asin(b) + asinh(a) + atan(a) + atan2(a, b) + atanh(b) + cbrt(a);
    y[1] = cos(a) + cosh(a) + cospi(b) + erf(a) + erfc(a) + exp(b) + exp2(b) + exp10(b) + expm1(b);
    y[2] = floor(a) + fma(a, b, a) + fmax(a, b) + fmin(a, b) + fmod(a, b) + hypot(a, b) + ilogb(a);
    y[3] = log(a) + log2(a) + log10(a) + log1p(a) + logb(a) + mad(a, b, a) + pow(a, b) + powr(a, b);
    y[4] = remainder(a, b) + rint(a) + round(a) + rsqrt(a) + sin(a) + sinh(a) + sinpi(b) + sqrt(a);
    y[5] = native_exp(b) + native_log(a) + native_sqrt(a) + native_sin(a) + native_cos(a);
    y[6] = mix(a, b, 0.25f) + sign(a) + step(a, b) + degrees(a) + radians(a) + clamp(a, 0.0f, 1.0f);
    y[7] = isfinite(a) + 2 * isinf(a) + 4 * isnan(a) + (nextafter(a, b) < a ? 8 : 0);
    y[8] = as_float(as_int(a)) + as_float(as_uint(b)) + convert_float(convert_int(a)) + convert_uint(b);
    y[9] = (float)as_double(as_long(2.5)) + (float)as_double(as_ulong(0.5));
    y[10] = tan(a) + tanh(a) + tgamma(a) + trunc(a) + ceil(a) + copysign(a, b) + fabs(a) + fdim(a, b);
    y[11] = ldexp(a, 2) + lgamma(a) + native_recip(a) + native_divide(a, b);
}

__kernel void integers(__global int *y, __global const int *x) {
    int a = x[0], b = x[1];
    uint u = 40u;
    volatile __global int *p = y + 10;
    y[0] = min(a, b); y[1] = max(a, b); y[2] = clamp(a, -1, 1); y[3] = abs(b);
    y[4] = popcount(u); y[5] = clz(u); y[6] = mul24(a, b); y[7] = mad24(a, b, a);
    y[8] = mul_hi(a << 30, b); y[9] = (int)rotate(u, 31u);
    barrier(CLK_GLOBAL_MEM_FENCE);
    atomic_add(p, 5); atomic_sub(p, 2); atomic_inc(p); atomic_dec(p + 1); atomic_min(p + 2, -3);
    atomic_max(p + 3, 9); atomic_or(p + 4, 6); atomic_and(p + 4, 3); atomic_xor(p + 4, 1);
    atomic_xchg(p + 5, 77); atomic_cmpxchg(p + 6, 0, 88);
}
