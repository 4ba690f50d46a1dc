// CUDA's built-ins for kernels compiled by a plain C++ compiler: the tests run the very same kernel
// sources on a machine without a GPU.
//
// Every CUDA thread of a block is a fiber; barriers and shuffles switch between them (fibers.cpp).
// Blocks run one after the other, so __shared__ can be a static variable. What this finds: wrong
// indexes, tails, reductions, missing barriers, misaligned and out-of-bounds accesses. What it
// cannot find: races inside a warp, and bad speed.
//
// <cuda_runtime.h> must not be included beside it: it declares the same names.
#pragma once

#include <vector_functions.h>
#include <vector_types.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#undef __global__
#undef __device__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

inline uint3 threadIdx;
inline uint3 blockIdx;
inline dim3 blockDim;
inline dim3 gridDim;

namespace andrea::host {

// Runs body(context) once for every thread of the grid. Status codes are CUDA's own.
int run_grid(dim3 grid, dim3 block, void (*body)(void*), void* context) noexcept;

template <typename Body>
int run_grid(dim3 grid, dim3 block, Body body) noexcept {
    return run_grid(grid, block, [](void* context) { (*static_cast<Body*>(context))(); }, &body);
}

// Ends the launch with cudaErrorMisalignedAddress or cudaErrorIllegalAddress, as a GPU would.
void check_access(const void* address, size_t bytes) noexcept;

uint64_t exchange(uint64_t value, int lane_mask) noexcept;
void barrier() noexcept;

const char* status_string(int status) noexcept;

}  // namespace andrea::host

inline void __syncthreads() {
    andrea::host::barrier();
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int lane_mask) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    bits = andrea::host::exchange(bits, lane_mask);
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

inline float rsqrtf(float x) {
    return 1.0f / std::sqrt(x);
}

// For the tests.
extern "C" {
// The order in which threads get their turn: 0 ascending, 1 descending, otherwise shuffled by it.
__attribute__((visibility("default"))) void andrea_host_schedule(uint64_t seed);
// Once a buffer is allowed, any access outside all allowed ones ends the launch. NULL forgets all.
__attribute__((visibility("default"))) void andrea_host_allow(const void* base, size_t bytes);
}
