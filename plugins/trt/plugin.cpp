#include "plugin.h"

#include <cstdio>
#include <new>

#include "contract.h"
#include "fields.h"
#include "log.h"

namespace andrea {
namespace {

using namespace nvinfer1;

constexpr int32_t kOk = 0;
constexpr int32_t kFailed = 1;

}  // namespace

Plugin::Plugin(const Op& op, const Settings& settings) noexcept
    : op_(op), settings_(settings), field_(write_field(op_, settings_)), fields_{1, &field_} {
    // %a, because two epsilons that print alike in decimal must not share a timing.
    if (op_.attribute == Attribute::kEpsilon) {
        std::snprintf(identity_, sizeof(identity_), "%s epsilon=%a", kPluginVersion,
                      static_cast<double>(settings_.epsilon));
    } else {
        std::snprintf(identity_, sizeof(identity_), "%s approximate=%.*s", kPluginVersion,
                      static_cast<int>(field_.length), static_cast<const char*>(field_.data));
    }
}

IPluginCapability* Plugin::getCapabilityInterface(PluginCapabilityType type) noexcept {
    switch (type) {
        case PluginCapabilityType::kCORE:
            return static_cast<IPluginV3OneCore*>(this);
        case PluginCapabilityType::kBUILD:
            return static_cast<IPluginV3OneBuild*>(this);
        case PluginCapabilityType::kRUNTIME:
            return static_cast<IPluginV3OneRuntime*>(this);
    }
    return nullptr;
}

IPluginV3* Plugin::clone() noexcept {
    Plugin* copy = new (std::nothrow) Plugin(*this);
    if (copy == nullptr) {
        log_error("%s: out of memory", op_.name);
    }
    return copy;
}

IPluginV3* Plugin::attachToContext(IPluginResourceContext*) noexcept {
    return clone();
}

const PluginFieldCollection* Plugin::getFieldsToSerialize() noexcept {
    return &fields_;
}

int32_t Plugin::getOutputDataTypes(DataType* outputs, int32_t output_count, const DataType* inputs,
                                   int32_t input_count) const noexcept {
    if (!check_counts(op_, input_count, output_count) || !check_types(op_, inputs)) {
        return kFailed;
    }
    for (int32_t i = 0; i < output_count; ++i) {
        outputs[i] = inputs[0];
    }
    return kOk;
}

int32_t Plugin::getOutputShapes(const DimsExprs* inputs, int32_t input_count, const DimsExprs*,
                                int32_t, DimsExprs* outputs, int32_t output_count,
                                IExprBuilder&) noexcept {
    if (!check_counts(op_, input_count, output_count)) {
        return kFailed;
    }
    Shape shapes[kMaxInputs];
    for (int32_t i = 0; i < input_count; ++i) {
        shapes[i] = to_shape(inputs[i]);
    }
    if (!check_shapes(op_, shapes)) {
        return kFailed;
    }
    for (int32_t i = 0; i < output_count; ++i) {
        outputs[i] = inputs[0];
    }
    return kOk;
}

// Asked again and again while TensorRT looks for a combination: "no" is an answer, not an error.
bool Plugin::supportsFormatCombination(int32_t position, const DynamicPluginTensorDesc* tensors,
                                       int32_t input_count, int32_t output_count) noexcept {
    if (input_count != op_.inputs() || output_count != op_.outputs) {
        return false;
    }
    const PluginTensorDesc& tensor = tensors[position].desc;
    return tensor.format == TensorFormat::kLINEAR && is_supported(tensor.type) &&
           tensor.type == tensors[0].desc.type;
}

int32_t Plugin::configurePlugin(const DynamicPluginTensorDesc* inputs, int32_t input_count,
                                const DynamicPluginTensorDesc*, int32_t output_count) noexcept {
    if (!check_counts(op_, input_count, output_count)) {
        return kFailed;
    }
    DataType types[kMaxInputs];
    Shape shapes[kMaxInputs];
    for (int32_t i = 0; i < input_count; ++i) {
        types[i] = inputs[i].desc.type;
        shapes[i] = to_shape(inputs[i].desc.dims);
    }
    return check_types(op_, types) && check_shapes(op_, shapes) ? kOk : kFailed;
}

int32_t Plugin::onShapeChange(const PluginTensorDesc* inputs, int32_t input_count,
                              const PluginTensorDesc*, int32_t output_count) noexcept {
    if (!check_counts(op_, input_count, output_count)) {
        return kFailed;
    }
    DataType types[kMaxInputs];
    Shape shapes[kMaxInputs];
    for (int32_t i = 0; i < input_count; ++i) {
        types[i] = inputs[i].type;
        shapes[i] = to_shape(inputs[i].dims);
    }
    return check_types(op_, types) && check_shapes(op_, shapes) ? kOk : kFailed;
}

// Rows and width come from this call's own descriptions: the plugin remembers nothing between
// calls. onShapeChange has checked them.
int32_t Plugin::enqueue(const PluginTensorDesc* input_descs, const PluginTensorDesc*,
                        const void* const* inputs, void* const* outputs, void*,
                        cudaStream_t stream) noexcept {
    const Dims& dims = input_descs[0].dims;
    int64_t rows = 1;
    for (int32_t i = 0; i + 1 < dims.nbDims; ++i) {
        rows *= dims.d[i];
    }
    const int64_t width = dims.nbDims > 0 ? dims.d[dims.nbDims - 1] : 1;
    const Call call = {to_dtype(input_descs[0].type), inputs, outputs, rows, width, stream};
    const andrea_status status = op_.launch(call, settings_);
    if (status != 0) {
        log_error("%s: the kernel could not be launched for %lld x %lld %s: %s", op_.name,
                  static_cast<long long>(rows), static_cast<long long>(width),
                  type_name(input_descs[0].type), andrea_status_string(status));
        return kFailed;
    }
    return kOk;
}

}  // namespace andrea
