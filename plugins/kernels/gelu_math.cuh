// GELU in float32 registers.
//
// Both forms are written as x times a probability that underflows to zero by itself, so the left
// tail keeps its relative accuracy where x / 2 * (1 + tanh u) and x / 2 * (1 + erf) cancel.
// +Inf gives +Inf, -Inf gives NaN (0 * Inf, as the textbook formula does), NaN stays NaN.
#pragma once

#include "device.cuh"

namespace andrea {

// One instruction each, about 2 ulp, subnormal results flushed: every use below adds 1 to the
// result or multiplies it by something of its own size.
__device__ __forceinline__ float fast_exp2(float x) {
#if defined(ANDREA_HOST)
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

__device__ __forceinline__ float fast_reciprocal(float x) {
#if defined(ANDREA_HOST)
    return 1.0f / x;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3): the same number as x/2 * (1 + tanh u), for
// one exponential and one reciprocal. The constants are -2 * sqrt(2/pi) * log2(e) and that times
// 0.044715.
__device__ __forceinline__ float gelu_tanh(float x) {
    const float exponent = x * (-2.3022081985f - 0.1029432396f * (x * x));
    return x * fast_reciprocal(1.0f + fast_exp2(exponent));
}

// x * Phi(x) through erfcf, good to a few float32 roundings.
__device__ __forceinline__ float gelu_erf(float x) {
    return 0.5f * x * erfcf(-0.70710678f * x);
}

// x * Phi(x) for results that will be rounded to 11 bits or fewer. erfcf costs some 30
// instructions an element: more than a multiprocessor can issue while two-byte elements stream
// through it at full memory speed. With t = 1 / (1 + 0.27 z),
//     Phi(-z) = t * 2^(P(t) - z^2 log2(e) / 2),   z >= 0,
// P fitted to 50-digit values of erfc, weighted for the smallest largest error on z in [0, 14]:
// relative error 1.2e-6, against 2.4e-4 for half a unit in the last place of float16.
__device__ __forceinline__ float gelu_erf_fit(float x) {
    const float z = fabsf(x);
    const float t = fast_reciprocal(1.0f + 0.27f * z);
    float p = 0.3956861f;
    p = p * t - 1.35988894f;
    p = p * t + 1.34848177f;
    p = p * t - 0.39059312f;
    p = p * t + 0.80476688f;
    p = p * t + 1.41455842f;
    p = p * t - 3.21300947f;
    const float tail = t * fast_exp2(p - 0.72134752f * (z * z));
    return x * (x > 0.0f ? 1.0f - tail : tail);
}

enum class GeluForm { kErf, kErfFit, kTanh };

template <GeluForm FORM>
__device__ __forceinline__ float gelu(float x) {
    if constexpr (FORM == GeluForm::kTanh) {
        return gelu_tanh(x);
    } else if constexpr (FORM == GeluForm::kErfFit) {
        return gelu_erf_fit(x);
    } else {
        return gelu_erf(x);
    }
}

}  // namespace andrea
