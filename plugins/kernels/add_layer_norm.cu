// AddLayerNorm: s = x + r rounded to T, y = LayerNorm(s).
//
// Bytes per element: 4 * sizeof(T) (x and r read, s and y written), against 5 for an add followed
// by a LayerNorm: s never comes back from memory.
// Launch shape: as LayerNorm's (row_plan.cuh).
#include "row.cuh"
#include "row_plan.cuh"

namespace andrea {
namespace {

template <typename T>
struct AddLayerNorm {
    using Element = T;

    // Plain pointers, not __restrict__: s may be x or r, and y the other one.
    const T* x;
    const T* r;
    const T* gamma;
    const T* beta;
    T* y;
    T* s;
    int64_t rows;
    int64_t width;
    float epsilon;
    int64_t first_row = 0;
    float inverse_width = 0.0f;

    bool is_aligned() const {
        return andrea::is_aligned(x) && andrea::is_aligned(r) && andrea::is_aligned(gamma) &&
               andrea::is_aligned(beta) && andrea::is_aligned(y) && andrea::is_aligned(s);
    }

    template <typename Team, int N, int PACKS>
    __device__ __forceinline__ void held(const Team& team, int64_t row) const {
        const int packs = static_cast<int>(width) / N;
        RowSlice<T, N, PACKS> slice;
        RowSlice<T, N, PACKS> residual;
        slice.load(team, x + row * width, packs);
        residual.load(team, r + row * width, packs);
        Affine<T, N, PACKS> affine;
        affine.prefetch(team, gamma, beta, packs);
        // The rounded sum is what gets normalised: the next layer reads s, not a wider secret.
        slice.add(team, residual, packs);
        slice.store(team, s + row * width, packs);
        const Moments moments = slice.moments(team, packs, inverse_width, epsilon);
        affine.store(team, gamma, beta, packs, slice, moments, y + row * width);
    }

    // s is written first and then read back, by the same thread: x or r may be overwritten by it.
    template <typename Team, int N>
    __device__ __forceinline__ void streamed(const Team& team, int64_t row) const {
        const int packs = static_cast<int>(width) / N;
        const int64_t start = row * width;
        for (int pack = team.member(); pack < packs; pack += team.size()) {
            const int64_t at = start + pack * N;
            store_pack(s + at, add(load_pack<T, N>(x + at), load_pack<T, N>(r + at)));
        }
        const Moments moments =
            streamed_moments<T, N>(team, s + start, packs, inverse_width, epsilon);
        streamed_store<T, N>(team, s + start, gamma, beta, packs, moments, y + start);
    }
};

template <typename T>
andrea_status run(const void* x, const void* r, const void* gamma, const void* beta, void* y,
                  void* s, int64_t rows, int64_t width, float epsilon, void* stream) {
    return launch_rows(
        AddLayerNorm<T>{static_cast<const T*>(x), static_cast<const T*>(r),
                        static_cast<const T*>(gamma), static_cast<const T*>(beta),
                        static_cast<T*>(y), static_cast<T*>(s), rows, width, epsilon},
        stream);
}

}  // namespace
}  // namespace andrea

andrea_status andrea_add_layer_norm(andrea_dtype dtype, const void* x, const void* r,
                                    const void* gamma, const void* beta, void* y, void* s,
                                    int64_t rows, int64_t width, float epsilon,
                                    void* stream) noexcept {
    using namespace andrea;
    switch (dtype) {
        case ANDREA_FLOAT32:
            return run<float>(x, r, gamma, beta, y, s, rows, width, epsilon, stream);
        case ANDREA_FLOAT16:
            return run<__half>(x, r, gamma, beta, y, s, rows, width, epsilon, stream);
        case ANDREA_BFLOAT16:
            return run<__nv_bfloat16>(x, r, gamma, beta, y, s, rows, width, epsilon, stream);
    }
    return kInvalidValue;
}
