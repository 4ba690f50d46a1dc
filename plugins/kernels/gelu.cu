// GELU: y = x * Phi(x), exact or by the tanh approximation.
//
// Bytes per element: 2 * sizeof(T) (x read, y written).
// Launch shape: blocks of 256 threads, 4 packs of 16 bytes each (16 KiB a block), so that a thread
// has 64 bytes in flight; pack i of a thread is 256 packs after pack i - 1, so that a warp touches
// 512 neighbouring bytes at a time. Elements after the last whole pack go one to a thread.
#include "gelu_math.cuh"
#include "pack.cuh"

namespace andrea {
namespace {

constexpr int kThreads = 256;
constexpr int kPacks = 4;

// N = 1 is the scalar path: one pack per element and no tail. y may be x.
template <typename T, GeluForm FORM, int N>
__global__ void __launch_bounds__(kThreads)
    gelu_kernel(const T* x, T* y, int64_t count, int64_t first_block) {
    const int64_t packs = count / N;
    const int64_t first = (first_block + blockIdx.x) * (kThreads * kPacks) + threadIdx.x;
    Pack<T, N> held[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
        const int64_t pack = first + i * kThreads;
        if (pack < packs) {
            held[i] = load_pack<T, N>(x + pack * N);
        }
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
        const int64_t pack = first + i * kThreads;
        if (pack < packs) {
            float out[N];
#pragma unroll
            for (int j = 0; j < N; ++j) {
                out[j] = gelu<FORM>(to_float(held[i].values[j]));
            }
            store_pack(y + pack * N, round_pack<T, N>(out));
        }
    }
    // Fewer than N elements are left over: the first threads of the first block take them.
    const int64_t tail = packs * N + first;
    if (N > 1 && first < N && tail < count) {
        const float value = to_float(load_pack<T, 1>(x + tail).values[0]);
        store_pack(y + tail, round_pack<T, 1>({gelu<FORM>(value)}));
    }
}

template <typename T, GeluForm FORM>
andrea_status run(const void* x, void* y, int64_t count, void* stream) {
    if (count < 0) {
        return kInvalidValue;
    }
    const bool is_vector = is_aligned(x) && is_aligned(y);
    const auto kernel = is_vector ? gelu_kernel<T, FORM, kVector<T>> : gelu_kernel<T, FORM, 1>;
    const int64_t packs = ceil_div(count, is_vector ? kVector<T> : 1);
    const int64_t blocks = ceil_div(packs, kThreads * kPacks);
    for (int64_t first = 0; first < blocks; first += kMaxGrid) {
        const int64_t some = blocks - first < kMaxGrid ? blocks - first : kMaxGrid;
        const andrea_status status =
            launch(kernel, dim3(static_cast<unsigned>(some)), dim3(kThreads), stream,
                   static_cast<const T*>(x), static_cast<T*>(y), count, first);
        if (status != kSuccess) {
            return status;
        }
    }
    return kSuccess;
}

// float32 results show more than the fit gives; half precision cannot.
template <typename T, GeluForm ERF>
andrea_status run(andrea_gelu_form form, const void* x, void* y, int64_t count, void* stream) {
    switch (form) {
        case ANDREA_GELU_ERF:
            return run<T, ERF>(x, y, count, stream);
        case ANDREA_GELU_TANH:
            return run<T, GeluForm::kTanh>(x, y, count, stream);
    }
    return kInvalidValue;
}

}  // namespace
}  // namespace andrea

andrea_status andrea_gelu(andrea_dtype dtype, andrea_gelu_form form, const void* x, void* y,
                          int64_t count, void* stream) noexcept {
    using namespace andrea;
    switch (dtype) {
        case ANDREA_FLOAT32:
            return run<float, GeluForm::kErf>(form, x, y, count, stream);
        case ANDREA_FLOAT16:
            return run<__half, GeluForm::kErfFit>(form, x, y, count, stream);
        case ANDREA_BFLOAT16:
            return run<__nv_bfloat16, GeluForm::kErfFit>(form, x, y, count, stream);
    }
    return kInvalidValue;
}
