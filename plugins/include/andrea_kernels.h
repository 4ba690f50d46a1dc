/* The kernels of andrea-export as a C interface: what the TensorRT plugins, the tests, the
 * benchmarks and any other program call.
 *
 * Every function queues its work on `stream` (a cudaStream_t; NULL is the default stream) and
 * returns at once. Nothing is allocated, nothing is synchronised and no state is kept, so calls
 * may be captured into a CUDA graph and made from any number of threads.
 *
 * Tensors are dense and row-major, `rows` x `width`, all of one type. Statistics and functions are
 * computed in float32 whatever that type is. Same input, same bits out: there are no atomics.
 * An output may be the same buffer as an activation input (x or r), or else must not overlap it.
 * Addresses divisible by 16 with a width divisible by 16 / sizeof(type) take the fast path;
 * any other address of the type's own alignment and any other width works too.
 *
 * Limits: rows >= 0, 1 <= width <= 65536 (andrea_gelu: any count >= 0), epsilon > 0.
 */
#ifndef ANDREA_KERNELS_H
#define ANDREA_KERNELS_H

#include <stdint.h>

#if defined(__GNUC__)
#define ANDREA_API __attribute__((visibility("default")))
#else
#define ANDREA_API
#endif

#ifdef __cplusplus
#define ANDREA_NOEXCEPT noexcept
extern "C" {
#else
#define ANDREA_NOEXCEPT
#endif

#define ANDREA_KERNELS_VERSION 1
#define ANDREA_MAX_WIDTH 65536

typedef enum { ANDREA_FLOAT32 = 0, ANDREA_FLOAT16 = 1, ANDREA_BFLOAT16 = 2 } andrea_dtype;
typedef enum { ANDREA_GELU_ERF = 0, ANDREA_GELU_TANH = 1 } andrea_gelu_form;

/* 0 is success. Anything else is a cudaError_t; wrong arguments give cudaErrorInvalidValue (1). */
typedef int andrea_status;

/* y = gamma * (x - mean) / sqrt(variance + epsilon) + beta, per row, population variance.
 * Memory traffic: 2 elements per element (x read, y written). */
ANDREA_API andrea_status andrea_layer_norm(andrea_dtype dtype, const void* x, const void* gamma,
                                           const void* beta, void* y, int64_t rows, int64_t width,
                                           float epsilon, void* stream) ANDREA_NOEXCEPT;

/* s = x + r rounded to the tensors' type, y = layer_norm of that rounded s.
 * Memory traffic: 4 elements per element (x and r read, s and y written). */
ANDREA_API andrea_status andrea_add_layer_norm(andrea_dtype dtype, const void* x, const void* r,
                                               const void* gamma, const void* beta, void* y,
                                               void* s, int64_t rows, int64_t width, float epsilon,
                                               void* stream) ANDREA_NOEXCEPT;

/* y = x * Phi(x), exactly (ERF) or with the tanh approximation (TANH).
 * Memory traffic: 2 elements per element. */
ANDREA_API andrea_status andrea_gelu(andrea_dtype dtype, andrea_gelu_form form, const void* x,
                                     void* y, int64_t count, void* stream) ANDREA_NOEXCEPT;

/* y = gelu(x + bias), the sum kept in float32.
 * Memory traffic: 2 elements per element. */
ANDREA_API andrea_status andrea_bias_gelu(andrea_dtype dtype, andrea_gelu_form form, const void* x,
                                          const void* bias, void* y, int64_t rows, int64_t width,
                                          void* stream) ANDREA_NOEXCEPT;

/* The text for a status, never NULL, owned by the library. */
ANDREA_API const char* andrea_status_string(andrea_status status) ANDREA_NOEXCEPT;

/* What the library contains, as JSON: architectures, types, and every plugin with its fields.
 * Owned by the library. */
ANDREA_API const char* andrea_library_info(void) ANDREA_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* ANDREA_KERNELS_H */
