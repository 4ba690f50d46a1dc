// BiasGELU: y = GELU(x + bias), the sum kept in float32.
//
// Bytes per element: 2 * sizeof(T) (x read, y written; the bias is read once per 4 rows, from
// cache). Launch shape: blocks of 256 threads as (columns, rows). A thread owns one pack column of
// 4 rows, so it converts its bias once, never divides an index by the width, and has 64 bytes in
// flight. The columns of a block are the smallest power of two that covers the row, up to a warp:
// narrow rows then still fill whole warps.
#include "gelu_math.cuh"
#include "pack.cuh"

namespace andrea {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 4;

// blockIdx.x counts rows, which can be many; blockIdx.y columns, at most 65536 / 32. y may be x.
template <typename T, GeluForm FORM, int N>
__global__ void __launch_bounds__(kThreads)
    bias_gelu_kernel(const T* x, const T* bias, T* y, int64_t rows, int64_t width,
                     int64_t first_block) {
    const int64_t column = static_cast<int64_t>(blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (column >= width) {
        return;
    }
    const int64_t first_row = (first_block + blockIdx.x) * (blockDim.y * kRows) + threadIdx.y;
    const Pack<T, N> bias_pack = load_pack<T, N>(bias + column);
    Pack<T, N> held[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        const int64_t row = first_row + i * blockDim.y;
        if (row < rows) {
            held[i] = load_pack<T, N>(x + row * width + column);
        }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        const int64_t row = first_row + i * blockDim.y;
        if (row < rows) {
            float out[N];
#pragma unroll
            for (int j = 0; j < N; ++j) {
                out[j] = gelu<FORM>(to_float(held[i].values[j]) + to_float(bias_pack.values[j]));
            }
            store_pack(y + row * width + column, round_pack<T, N>(out));
        }
    }
}

template <typename T, GeluForm FORM>
andrea_status run(const void* x, const void* bias, void* y, int64_t rows, int64_t width,
                  void* stream) {
    if (rows < 0 || width < 1 || width > ANDREA_MAX_WIDTH) {
        return kInvalidValue;
    }
    const bool is_vector =
        width % kVector<T> == 0 && is_aligned(x) && is_aligned(bias) && is_aligned(y);
    const auto kernel =
        is_vector ? bias_gelu_kernel<T, FORM, kVector<T>> : bias_gelu_kernel<T, FORM, 1>;
    const int64_t packs = is_vector ? width / kVector<T> : width;
    unsigned columns = 1;
    while (columns < kWarp && columns < packs) {
        columns *= 2;
    }
    const dim3 block(columns, kThreads / columns);
    const int64_t blocks = ceil_div(rows, block.y * kRows);
    for (int64_t first = 0; first < blocks; first += kMaxGrid) {
        const int64_t some = blocks - first < kMaxGrid ? blocks - first : kMaxGrid;
        const dim3 grid(static_cast<unsigned>(some),
                        static_cast<unsigned>(ceil_div(packs, columns)));
        const andrea_status status =
            launch(kernel, grid, block, stream, static_cast<const T*>(x),
                   static_cast<const T*>(bias), static_cast<T*>(y), rows, width, first);
        if (status != kSuccess) {
            return status;
        }
    }
    return kSuccess;
}

// float32 results show more than the fit gives; half precision cannot.
template <typename T, GeluForm ERF>
andrea_status run(andrea_gelu_form form, const void* x, const void* bias, void* y, int64_t rows,
                  int64_t width, void* stream) {
    switch (form) {
        case ANDREA_GELU_ERF:
            return run<T, ERF>(x, bias, y, rows, width, stream);
        case ANDREA_GELU_TANH:
            return run<T, GeluForm::kTanh>(x, bias, y, rows, width, stream);
    }
    return kInvalidValue;
}

}  // namespace
}  // namespace andrea

andrea_status andrea_bias_gelu(andrea_dtype dtype, andrea_gelu_form form, const void* x,
                               const void* bias, void* y, int64_t rows, int64_t width,
                               void* stream) noexcept {
    using namespace andrea;
    switch (dtype) {
        case ANDREA_FLOAT32:
            return run<float, GeluForm::kErf>(form, x, bias, y, rows, width, stream);
        case ANDREA_FLOAT16:
            return run<__half, GeluForm::kErfFit>(form, x, bias, y, rows, width, stream);
        case ANDREA_BFLOAT16:
            return run<__nv_bfloat16, GeluForm::kErfFit>(form, x, bias, y, rows, width, stream);
    }
    return kInvalidValue;
}
