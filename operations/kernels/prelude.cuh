// OpenCL C for a compiler of CUDA C++: what sources of graphs may use (`words.py`), and no more.
typedef unsigned char uchar; typedef unsigned short ushort;
typedef unsigned int uint; typedef unsigned long ulong;
extern __shared__ __align__(16) unsigned char orchgpu_shared[];

#define CLK_LOCAL_MEM_FENCE 1
#define CLK_GLOBAL_MEM_FENCE 2
#define M_PI_F 3.14159274101257f
#define FLT_MAX 3.402823466e+38f
#define FLT_EPSILON 1.192092896e-07f
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define M_PI 3.14159265358979323846
#define M_E_F 2.71828182845904523536f
#define FLT_MIN 1.175494350822287508e-38f
#define DBL_MAX 1.7976931348623158e+308
#define DBL_EPSILON 2.220446049250313e-16
#define LONG_MAX 0x7fffffffffffffffL
#define LONG_MIN (-0x7fffffffffffffffL - 1)
#define ULONG_MAX 0xffffffffffffffffUL
#define HUGE_VALF INFINITY
#define MAXFLOAT FLT_MAX
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)

#define ORCHGPU_PICK(d, v) ((d) == 0 ? (v).x : (d) == 1 ? (v).y : (v).z)
__device__ inline size_t get_local_id(uint d) { return d < 3 ? ORCHGPU_PICK(d, threadIdx) : 0; }
__device__ inline size_t get_group_id(uint d) { return d < 3 ? ORCHGPU_PICK(d, blockIdx) : 0; }
__device__ inline size_t get_local_size(uint d) { return d < 3 ? ORCHGPU_PICK(d, blockDim) : 1; }
__device__ inline size_t get_num_groups(uint d) { return d < 3 ? ORCHGPU_PICK(d, gridDim) : 1; }
__device__ inline size_t get_global_id(uint d) { return get_group_id(d) * get_local_size(d) + get_local_id(d); }
__device__ inline size_t get_global_size(uint d) { return get_num_groups(d) * get_local_size(d); }
__device__ inline size_t get_global_offset(uint) { return 0; }
__device__ inline void barrier(uint fences) { if (fences & CLK_GLOBAL_MEM_FENCE) __threadfence(); __syncthreads(); }
__device__ inline void mem_fence(uint) { __threadfence(); }

template <class T> __device__ inline T mad(T a, T b, T c) { return fma(a, b, c); }
template <class T, class L, class H> __device__ inline T clamp(T x, L low, H high) { return x < (T)low ? (T)low : x > (T)high ? (T)high : x; }
template <class T> __device__ inline T mix(T a, T b, T part) { return a + (b - a) * part; }
template <class T> __device__ inline T sign(T x) { return x > 0 ? (T)1 : x < 0 ? (T)-1 : x; }
template <class T> __device__ inline T step(T edge, T x) { return x < edge ? (T)0 : (T)1; }
template <class T> __device__ inline T degrees(T x) { return x * (T)57.295779513082320877; }
template <class T> __device__ inline T radians(T x) { return x * (T)0.017453292519943295769; }
template <class T> __device__ inline T powr(T x, T y) { return pow(x, y); }
__device__ inline float native_exp(float x) { return __expf(x); }
__device__ inline float native_log(float x) { return __logf(x); }
__device__ inline float native_sqrt(float x) { return __fsqrt_rn(x); }
__device__ inline float native_sin(float x) { return __sinf(x); }
__device__ inline float native_cos(float x) { return __cosf(x); }
__device__ inline float native_recip(float x) { return __frcp_rn(x); }
__device__ inline float native_divide(float x, float y) { return __fdividef(x, y); }

__device__ inline uint popcount(uint x) { return __popc(x); }
__device__ inline int popcount(int x) { return __popc((uint)x); }
__device__ inline ulong popcount(ulong x) { return __popcll(x); }
__device__ inline uint clz(uint x) { return __clz((int)x); }
__device__ inline int clz(int x) { return __clz(x); }
__device__ inline int mul24(int x, int y) { return __mul24(x, y); }
__device__ inline uint mul24(uint x, uint y) { return __umul24(x, y); }
__device__ inline int mad24(int x, int y, int z) { return __mul24(x, y) + z; }
__device__ inline uint mad24(uint x, uint y, uint z) { return __umul24(x, y) + z; }
__device__ inline int mul_hi(int x, int y) { return __mulhi(x, y); }
__device__ inline uint mul_hi(uint x, uint y) { return __umulhi(x, y); }
__device__ inline uint rotate(uint x, uint by) { return __funnelshift_l(x, x, by); }

__device__ inline int as_int(float x) { return __float_as_int(x); }
__device__ inline int as_int(uint x) { return (int)x; }
__device__ inline uint as_uint(float x) { return (uint)__float_as_int(x); }
__device__ inline uint as_uint(int x) { return (uint)x; }
__device__ inline float as_float(int x) { return __int_as_float(x); }
__device__ inline float as_float(uint x) { return __int_as_float((int)x); }
__device__ inline long as_long(double x) { return __double_as_longlong(x); }
__device__ inline long as_long(ulong x) { return (long)x; }
__device__ inline ulong as_ulong(double x) { return (ulong)__double_as_longlong(x); }
__device__ inline ulong as_ulong(long x) { return (ulong)x; }
__device__ inline double as_double(long x) { return __longlong_as_double(x); }
__device__ inline double as_double(ulong x) { return __longlong_as_double((long)x); }
template <class T> __device__ inline int convert_int(T x) { return (int)x; }
template <class T> __device__ inline uint convert_uint(T x) { return (uint)x; }
template <class T> __device__ inline float convert_float(T x) { return (float)x; }

#define ORCHGPU_ATOMIC(name, call) \
  __device__ inline int name(volatile int *p, int x) { return call((int *)p, x); } \
  __device__ inline uint name(volatile uint *p, uint x) { return call((uint *)p, x); }
ORCHGPU_ATOMIC(atomic_add, atomicAdd)
ORCHGPU_ATOMIC(atomic_sub, atomicSub)
ORCHGPU_ATOMIC(atomic_min, atomicMin)
ORCHGPU_ATOMIC(atomic_max, atomicMax)
ORCHGPU_ATOMIC(atomic_and, atomicAnd)
ORCHGPU_ATOMIC(atomic_or, atomicOr)
ORCHGPU_ATOMIC(atomic_xor, atomicXor)
ORCHGPU_ATOMIC(atomic_xchg, atomicExch)
__device__ inline int atomic_inc(volatile int *p) { return atomicAdd((int *)p, 1); }
__device__ inline uint atomic_inc(volatile uint *p) { return atomicAdd((uint *)p, 1u); }
__device__ inline int atomic_dec(volatile int *p) { return atomicSub((int *)p, 1); }
__device__ inline uint atomic_dec(volatile uint *p) { return atomicSub((uint *)p, 1u); }
__device__ inline int atomic_cmpxchg(volatile int *p, int old, int x) { return atomicCAS((int *)p, old, x); }
__device__ inline uint atomic_cmpxchg(volatile uint *p, uint old, uint x) { return atomicCAS((uint *)p, old, x); }
