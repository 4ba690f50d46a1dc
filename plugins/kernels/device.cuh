// What a kernel file needs from CUDA, or, with ANDREA_HOST, from its stand-in on the CPU.
#pragma once

#include <cstdint>

#include "andrea_kernels.h"

#if defined(ANDREA_HOST)
#include "cuda_on_host.h"
#else
#include <cuda_runtime.h>
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace andrea {

constexpr int kWarp = 32;
constexpr unsigned kFullWarp = 0xffffffffu;

constexpr andrea_status kSuccess = 0;
constexpr andrea_status kInvalidValue = 1;  // cudaErrorInvalidValue

// gridDim.x can hold 2^31 - 1 blocks; the tests build with a tiny limit to see the splitting work.
#if defined(ANDREA_MAX_GRID)
constexpr int64_t kMaxGrid = ANDREA_MAX_GRID;
#else
constexpr int64_t kMaxGrid = 2147483647;
#endif

constexpr int64_t ceil_div(int64_t numerator, int64_t denominator) {
    return (numerator + denominator - 1) / denominator;
}

// Launches through the call that returns its own error: asking for the last error afterwards
// would report, and clear, a failure that belongs to somebody else.
template <typename... Params, typename... Args>
andrea_status launch(void (*kernel)(Params...), dim3 grid, dim3 block, void* stream,
                     Args... args) noexcept {
#if defined(ANDREA_HOST)
    (void)stream;
    return host::run_grid(grid, block, [&] { kernel(args...); });
#else
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = static_cast<cudaStream_t>(stream);
    return static_cast<andrea_status>(cudaLaunchKernelEx(&config, kernel, Params(args)...));
#endif
}

}  // namespace andrea
