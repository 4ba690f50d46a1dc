// andrea_library_info: what this build contains, for people and scripts without TensorRT.
#include <string>

#include "fields.h"

#if !defined(ANDREA_ARCHITECTURES)
#define ANDREA_ARCHITECTURES "unknown"
#endif

namespace andrea {
namespace {

std::string quoted(const std::string& text) {
    return '"' + text + '"';
}

std::string describe(const Op& op) {
    const nvinfer1::PluginField field = describe_field(op);
    const bool is_float = field.type == nvinfer1::PluginFieldType::kFLOAT32;
    return "{\"name\": " + quoted(op.name) + ", \"version\": " + quoted(kPluginVersion) +
           ", \"namespace\": " + quoted(kPluginNamespace) +
           ", \"inputs\": " + quoted(op.input_names) +
           ", \"outputs\": " + std::to_string(op.outputs) + ", \"fields\": {" + quoted(field.name) +
           ": " + quoted(is_float ? "float32" : "string") + "}}";
}

std::string describe_library() {
    std::string plugins;
    for (const Op& op : kOps) {
        plugins += (plugins.empty() ? "" : ", ") + describe(op);
    }
    return "{\"kernels_version\": " + std::to_string(ANDREA_KERNELS_VERSION) +
           ", \"architectures\": " + quoted(ANDREA_ARCHITECTURES) + ", \"tensorrt_headers\": " +
           quoted(std::to_string(NV_TENSORRT_MAJOR) + "." + std::to_string(NV_TENSORRT_MINOR) +
                  "." + std::to_string(NV_TENSORRT_PATCH)) +
           ", \"types\": [\"float32\", \"float16\", \"bfloat16\"], \"max_width\": " +
           std::to_string(ANDREA_MAX_WIDTH) + ", \"plugins\": [" + plugins + "]}";
}

}  // namespace
}  // namespace andrea

const char* andrea_library_info() noexcept {
    try {
        static const std::string text = andrea::describe_library();
        return text.c_str();
    } catch (...) {
        return "{}";
    }
}
