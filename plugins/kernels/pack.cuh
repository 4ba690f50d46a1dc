// Packs: N neighbouring elements moved by one load or store, 16 bytes on the fast path, one element
// on the scalar path. A kernel is written once and instantiated for both.
#pragma once

#include "device.cuh"

namespace andrea {

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
    T values[N];
};

// Elements of T in 16 bytes, the widest access a thread can make.
template <typename T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

// The same bytes as a type the compiler moves with one instruction: it splits a struct of halves.
template <int BYTES>
struct Word;
template <>
struct Word<16> {
    using type = uint4;
};
template <>
struct Word<4> {
    using type = uint32_t;
};
template <>
struct Word<2> {
    using type = uint16_t;
};

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> load_pack(const T* address) {
    using Wire = typename Word<sizeof(Pack<T, N>)>::type;
#if defined(ANDREA_HOST)
    host::check_access(address, sizeof(Wire));
#endif
    const Wire wire = *reinterpret_cast<const Wire*>(address);
    Pack<T, N> pack;
    memcpy(&pack, &wire, sizeof(wire));
    return pack;
}

template <typename T, int N>
__device__ __forceinline__ void store_pack(T* address, const Pack<T, N>& pack) {
    using Wire = typename Word<sizeof(Pack<T, N>)>::type;
#if defined(ANDREA_HOST)
    host::check_access(address, sizeof(Wire));
#endif
    Wire wire;
    memcpy(&wire, &pack, sizeof(wire));
    *reinterpret_cast<Wire*>(address) = wire;
}

__device__ __forceinline__ float to_float(float value) {
    return value;
}
__device__ __forceinline__ float to_float(__half value) {
    return __half2float(value);
}
// Volatile, so that the compiler converts again after a reduction instead of keeping a whole row as
// floats across it: 48 registers instead of 72 for a LayerNorm 768 wide.
__device__ __forceinline__ float to_float(__nv_bfloat16 value) {
#if defined(ANDREA_HOST)
    return __bfloat162float(value);
#else
    float wide;
    asm volatile("{ mov.b32 %0, {0, %1}; }" : "=f"(wide) : "h"(__bfloat16_as_ushort(value)));
    return wide;
#endif
}

// Two at a time, because one instruction rounds and packs a pair.
__device__ __forceinline__ void round_pair(float low, float high, float* out) {
    out[0] = low;
    out[1] = high;
}
__device__ __forceinline__ void round_pair(float low, float high, __half* out) {
    const __half2 pair = __floats2half2_rn(low, high);
    out[0] = __low2half(pair);
    out[1] = __high2half(pair);
}
__device__ __forceinline__ void round_pair(float low, float high, __nv_bfloat16* out) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    out[0] = __low2bfloat16(pair);
    out[1] = __high2bfloat16(pair);
}

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> round_pack(const float (&values)[N]) {
    Pack<T, N> pack;
    if constexpr (N == 1) {
        T pair[2];
        round_pair(values[0], 0.0f, pair);
        pack.values[0] = pair[0];
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            round_pair(values[i], values[i + 1], pack.values + i);
        }
    }
    return pack;
}

inline bool is_aligned(const void* address) {
    return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

}  // namespace andrea
