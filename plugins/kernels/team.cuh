// A team is the group of threads that shares one row: a warp, or a whole block.
//
// sum() gives every member the same bits, so the row is normalised by one mean and one deviation.
// The adding order is fixed by the thread index: results do not depend on scheduling.
#pragma once

#include "device.cuh"

namespace andrea {

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int lane = kWarp / 2; lane > 0; lane /= 2) {
        value += __shfl_xor_sync(kFullWarp, value, lane);
    }
    return value;
}

__device__ __forceinline__ float2 warp_sum(float2 value) {
    return make_float2(warp_sum(value.x), warp_sum(value.y));
}

// threadIdx.x is the lane, threadIdx.y the row inside the block: no lane ever waits for another
// row.
struct WarpTeam {
    static constexpr int kMaxThreads = 128;
    __device__ __forceinline__ int64_t row() const {
        return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
    }
    __device__ __forceinline__ int member() const { return static_cast<int>(threadIdx.x); }
    __device__ __forceinline__ int size() const { return kWarp; }

    template <int STEP, typename V>
    __device__ __forceinline__ V sum(V value) const {
        return warp_sum(value);
    }
};

struct BlockTeam {
    static constexpr int kMaxThreads = 512;
    __device__ __forceinline__ int64_t row() const { return blockIdx.x; }
    __device__ __forceinline__ int member() const { return static_cast<int>(threadIdx.x); }
    __device__ __forceinline__ int size() const { return static_cast<int>(blockDim.x); }

    // STEP numbers the sums of a kernel: each has its own shared memory, so that one barrier is
    // enough (a slow warp may still be reading the last sum while a fast one writes the next).
    template <int STEP, typename V>
    __device__ __forceinline__ V sum(V value) const {
        __shared__ V partial[kMaxThreads / kWarp];
        const int lane = member() % kWarp;
        const int warps = size() / kWarp;
        value = warp_sum(value);
        if (lane == 0) {
            partial[member() / kWarp] = value;
        }
        __syncthreads();
        return warp_sum(lane < warps ? partial[lane] : V{});
    }
};

}  // namespace andrea
