#include "contract.h"

#include "log.h"

namespace andrea {
namespace {

using nvinfer1::DataType;
using nvinfer1::Dims;

struct Type {
    DataType type;
    andrea_dtype dtype;
    const char* name;
};
constexpr Type kTypes[] = {
    {DataType::kFLOAT, ANDREA_FLOAT32, "float32"},
    {DataType::kHALF, ANDREA_FLOAT16, "float16"},
    {DataType::kBF16, ANDREA_BFLOAT16, "bfloat16"},
};

const Type* find_type(DataType type) {
    for (const Type& known : kTypes) {
        if (known.type == type) {
            return &known;
        }
    }
    return nullptr;
}

bool agree(int64_t a, int64_t b) {
    return a == b || a == kDynamic || b == kDynamic;
}

bool check_activation(const Op& op, const Shape& first, const Shape& other, int32_t index) {
    if (other.rank != first.rank) {
        log_error("%s: inputs 0 and %d must have one shape, got %d and %d dimensions", op.name,
                  index, first.rank, other.rank);
        return false;
    }
    for (int32_t axis = 0; axis < first.rank; ++axis) {
        if (!agree(first.extents[axis], other.extents[axis])) {
            log_error("%s: inputs 0 and %d must have one shape, axis %d is %lld and %lld", op.name,
                      index, axis, static_cast<long long>(first.extents[axis]),
                      static_cast<long long>(other.extents[axis]));
            return false;
        }
    }
    return true;
}

bool check_width(const Op& op, const Shape& x) {
    if (x.rank < 1) {
        log_error("%s: X needs at least 1 dimension, got a scalar", op.name);
        return false;
    }
    const int64_t width = x.extents[x.rank - 1];
    if (width == kDynamic) {
        log_error(
            "%s: the last axis of X must be fixed when the engine is built, got a dynamic one",
            op.name);
        return false;
    }
    if (width < 1 || width > ANDREA_MAX_WIDTH) {
        log_error("%s: the last axis of X must be 1 to %d wide, got %lld", op.name,
                  ANDREA_MAX_WIDTH, static_cast<long long>(width));
        return false;
    }
    return true;
}

bool check_vector(const Op& op, const Shape& vector, int64_t width, int32_t index) {
    if (vector.rank != 1 || vector.extents[0] != width) {
        log_error(
            "%s: input %d of (%s) must be [%lld] like the last axis of X, got %d dimension(s), "
            "the first %lld",
            op.name, index, op.input_names, static_cast<long long>(width), vector.rank,
            vector.rank > 0 ? static_cast<long long>(vector.extents[0]) : 0LL);
        return false;
    }
    return true;
}

}  // namespace

Shape to_shape(const Dims& dims) noexcept {
    Shape shape = {dims.nbDims, {}};
    for (int32_t i = 0; i < dims.nbDims && i < Dims::MAX_DIMS; ++i) {
        shape.extents[i] = dims.d[i] < 0 ? kDynamic : dims.d[i];
    }
    return shape;
}

Shape to_shape(const nvinfer1::DimsExprs& dims) noexcept {
    Shape shape = {dims.nbDims, {}};
    for (int32_t i = 0; i < dims.nbDims && i < Dims::MAX_DIMS; ++i) {
        shape.extents[i] = dims.d[i]->isConstant() ? dims.d[i]->getConstantValue() : kDynamic;
    }
    return shape;
}

bool check_counts(const Op& op, int32_t inputs, int32_t outputs) noexcept {
    if (inputs != op.inputs()) {
        log_error("%s: needs %d input(s) (%s), got %d", op.name, op.inputs(), op.input_names,
                  inputs);
        return false;
    }
    if (outputs != op.outputs) {
        log_error("%s: has %d output(s), asked for %d", op.name, op.outputs, outputs);
        return false;
    }
    return true;
}

bool check_types(const Op& op, const DataType* inputs) noexcept {
    if (!is_supported(inputs[0])) {
        log_error("%s: X must be float32, float16 or bfloat16, got %s", op.name,
                  type_name(inputs[0]));
        return false;
    }
    for (int32_t i = 1; i < op.inputs(); ++i) {
        if (inputs[i] != inputs[0]) {
            log_error("%s: all inputs (%s) must have one type, X is %s and input %d is %s", op.name,
                      op.input_names, type_name(inputs[0]), i, type_name(inputs[i]));
            return false;
        }
    }
    return true;
}

bool check_shapes(const Op& op, const Shape* inputs) noexcept {
    const Shape& x = inputs[0];
    if (x.rank < 0 || x.rank > Dims::MAX_DIMS) {
        log_error("%s: X may have up to %d dimensions, got %d", op.name, Dims::MAX_DIMS, x.rank);
        return false;
    }
    for (int32_t i = 1; i < op.activations; ++i) {
        if (!check_activation(op, x, inputs[i], i)) {
            return false;
        }
    }
    if (op.vectors == 0) {
        return true;
    }
    if (!check_width(op, x)) {
        return false;
    }
    for (int32_t i = op.activations; i < op.inputs(); ++i) {
        if (!check_vector(op, inputs[i], x.extents[x.rank - 1], i)) {
            return false;
        }
    }
    return true;
}

bool is_supported(DataType type) noexcept {
    return find_type(type) != nullptr;
}

const char* type_name(DataType type) noexcept {
    const Type* known = find_type(type);
    return known != nullptr ? known->name : "another type";
}

andrea_dtype to_dtype(DataType type) noexcept {
    const Type* known = find_type(type);
    return known != nullptr ? known->dtype : static_cast<andrea_dtype>(-1);
}

}  // namespace andrea
