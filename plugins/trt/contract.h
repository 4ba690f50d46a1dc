// What an op accepts: numbers of tensors, types and shapes. Every check says what it saw and what
// it wanted through the logger, and returns false.
#pragma once

#include "op.h"

namespace andrea {

// A shape whose dynamic axes are kDynamic, whichever TensorRT structure it came from.
inline constexpr int64_t kDynamic = -1;
struct Shape {
    int32_t rank;
    int64_t extents[nvinfer1::Dims::MAX_DIMS];
};
Shape to_shape(const nvinfer1::Dims& dims) noexcept;
Shape to_shape(const nvinfer1::DimsExprs& dims) noexcept;

bool check_counts(const Op& op, int32_t inputs, int32_t outputs) noexcept;
bool check_types(const Op& op, const nvinfer1::DataType* inputs) noexcept;
bool check_shapes(const Op& op, const Shape* inputs) noexcept;

bool is_supported(nvinfer1::DataType type) noexcept;
const char* type_name(nvinfer1::DataType type) noexcept;
andrea_dtype to_dtype(nvinfer1::DataType type) noexcept;

}  // namespace andrea
