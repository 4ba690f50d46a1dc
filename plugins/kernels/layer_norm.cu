// LayerNorm: y = gamma * (x - mean) / sqrt(variance + epsilon) + beta.
//
// Bytes per element: 2 * sizeof(T) (x read once, y written once; gamma and beta come from cache).
// Launch shape: one warp per row, 4 rows a block, while a row fits into a warp's registers; one
// block of 128 to 512 threads per row above (row_plan.cuh has the table and its reasons).
#include "row.cuh"
#include "row_plan.cuh"

namespace andrea {
namespace {

template <typename T>
struct LayerNorm {
    using Element = T;

    // Plain pointers, not __restrict__: y may be x, and is written only after x was read.
    const T* x;
    const T* gamma;
    const T* beta;
    T* y;
    int64_t rows;
    int64_t width;
    float epsilon;
    int64_t first_row = 0;
    float inverse_width = 0.0f;

    bool is_aligned() const {
        return andrea::is_aligned(x) && andrea::is_aligned(gamma) && andrea::is_aligned(beta) &&
               andrea::is_aligned(y);
    }

    template <typename Team, int N, int PACKS>
    __device__ __forceinline__ void held(const Team& team, int64_t row) const {
        const int packs = static_cast<int>(width) / N;
        RowSlice<T, N, PACKS> slice;
        slice.load(team, x + row * width, packs);
        Affine<T, N, PACKS> affine;
        affine.prefetch(team, gamma, beta, packs);
        const Moments moments = slice.moments(team, packs, inverse_width, epsilon);
        affine.store(team, gamma, beta, packs, slice, moments, y + row * width);
    }

    template <typename Team, int N>
    __device__ __forceinline__ void streamed(const Team& team, int64_t row) const {
        const int packs = static_cast<int>(width) / N;
        const T* in = x + row * width;
        const Moments moments = streamed_moments<T, N>(team, in, packs, inverse_width, epsilon);
        streamed_store<T, N>(team, in, gamma, beta, packs, moments, y + row * width);
    }
};

template <typename T>
andrea_status run(const void* x, const void* gamma, const void* beta, void* y, int64_t rows,
                  int64_t width, float epsilon, void* stream) {
    return launch_rows(
        LayerNorm<T>{static_cast<const T*>(x), static_cast<const T*>(gamma),
                     static_cast<const T*>(beta), static_cast<T*>(y), rows, width, epsilon},
        stream);
}

}  // namespace
}  // namespace andrea

andrea_status andrea_layer_norm(andrea_dtype dtype, const void* x, const void* gamma,
                                const void* beta, void* y, int64_t rows, int64_t width,
                                float epsilon, void* stream) noexcept {
    using namespace andrea;
    switch (dtype) {
        case ANDREA_FLOAT32:
            return run<float>(x, gamma, beta, y, rows, width, epsilon, stream);
        case ANDREA_FLOAT16:
            return run<__half>(x, gamma, beta, y, rows, width, epsilon, stream);
        case ANDREA_BFLOAT16:
            return run<__nv_bfloat16>(x, gamma, beta, y, rows, width, epsilon, stream);
    }
    return kInvalidValue;
}
