// Plugin fields: from ONNX attributes or a serialized engine to Settings, and back.
#pragma once

#include "op.h"

namespace andrea {

// False, after saying why, when the op's attribute is missing or has no usable value.
bool read_fields(const Op& op, const nvinfer1::PluginFieldCollection* fields,
                 Settings* settings) noexcept;

// A field that points into `settings`: it is valid as long as they are.
nvinfer1::PluginField write_field(const Op& op, const Settings& settings) noexcept;

// Name and type of the field that the op takes, without a value.
nvinfer1::PluginField describe_field(const Op& op) noexcept;

}  // namespace andrea
