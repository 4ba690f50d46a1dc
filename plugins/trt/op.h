// The four ops as data: everything in which one plugin differs from another.
#pragma once

#include <NvInferRuntime.h>

#include "andrea_kernels.h"

namespace andrea {

inline constexpr char kPluginVersion[] = "1";
inline constexpr char kPluginNamespace[] = "andrea";
inline constexpr int32_t kMaxInputs = 4;
inline constexpr int32_t kMaxOutputs = 2;

// Each op has one attribute.
enum class Attribute { kEpsilon, kApproximate };

struct Settings {
    float epsilon = 0.0f;
    andrea_gelu_form form = ANDREA_GELU_ERF;
};

struct Call {
    andrea_dtype dtype;
    const void* const* inputs;
    void* const* outputs;
    int64_t rows;
    int64_t width;
    void* stream;
};

struct Op {
    const char* name;
    const char* input_names;
    int32_t activations;  // leading inputs, all of the outputs' shape
    int32_t vectors;      // inputs after those, as long as the activations' last axis
    int32_t outputs;
    Attribute attribute;
    andrea_status (*launch)(const Call& call, const Settings& settings) noexcept;

    constexpr int32_t inputs() const { return activations + vectors; }
};

inline constexpr int32_t kOpCount = 4;
extern const Op kOps[kOpCount];

const char* attribute_name(Attribute attribute) noexcept;

}  // namespace andrea
