#include "v3_harness.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "expressions.h"

namespace {

using namespace nvinfer1;

class Logger final : public ILogger, public ILoggerFinder {
  public:
    void log(Severity severity, const char* message) noexcept override {
        text += severity <= Severity::kERROR ? "error: " : "warning: ";
        text += message;
        text += '\n';
    }
    ILogger* findLogger() override { return this; }
    std::string text;
};

Logger g_logger;

void require(bool is_met, const char* step) {
    if (!is_met) {
        throw std::runtime_error(step);
    }
}

int64_t field_bytes(const PluginField& field) {
    switch (field.type) {
        case PluginFieldType::kCHAR:
            return field.length;
        case PluginFieldType::kFLOAT32:
            return int64_t{4} * field.length;
        default:
            throw std::runtime_error("getFieldsToSerialize: unexpected field type");
    }
}

// What an engine file does to fields: names and values are copied, the originals may vanish.
class StoredFields {
  public:
    explicit StoredFields(const PluginFieldCollection& fields) {
        for (int32_t i = 0; i < fields.nbFields; ++i) {
            const PluginField& field = fields.fields[i];
            const char* bytes = static_cast<const char*>(field.data);
            names_.push_back(std::make_unique<std::string>(field.name));
            values_.push_back(
                std::make_unique<std::vector<char>>(bytes, bytes + field_bytes(field)));
            fields_.emplace_back(names_.back()->c_str(), values_.back()->data(), field.type,
                                 field.length);
        }
        collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
    }
    const PluginFieldCollection* get() const { return &collection_; }

  private:
    std::vector<std::unique_ptr<std::string>> names_;
    std::vector<std::unique_ptr<std::vector<char>>> values_;
    std::vector<PluginField> fields_;
    PluginFieldCollection collection_;
};

Dims to_dims(const v3_tensor& tensor, bool with_wildcards) {
    Dims dims{};
    dims.nbDims = tensor.rank;
    for (int32_t i = 0; i < std::min(tensor.rank, Dims::MAX_DIMS); ++i) {
        dims.d[i] = with_wildcards && (tensor.dynamic >> i & 1u) != 0 ? -1 : tensor.extents[i];
    }
    return dims;
}

PluginTensorDesc describe(const v3_tensor& tensor, bool with_wildcards) {
    return {to_dims(tensor, with_wildcards), static_cast<DataType>(tensor.type),
            TensorFormat::kLINEAR, 1.0f};
}

template <typename Capability>
Capability& capability(IPluginV3& plugin, PluginCapabilityType type, const char* step) {
    IPluginCapability* found = plugin.getCapabilityInterface(type);
    require(found != nullptr, step);
    return *static_cast<Capability*>(found);
}

IPluginCreatorV3One& find_creator(void* library, const char* op) {
    using GetCreators = IPluginCreatorInterface* const* (*)(int32_t&);
    using SetLoggerFinder = void (*)(ILoggerFinder*);
    const auto set_finder = reinterpret_cast<SetLoggerFinder>(dlsym(library, "setLoggerFinder"));
    const auto get_creators = reinterpret_cast<GetCreators>(dlsym(library, "getCreators"));
    require(set_finder != nullptr && get_creators != nullptr, "dlsym");
    set_finder(&g_logger);
    int32_t count = 0;
    IPluginCreatorInterface* const* creators = get_creators(count);
    for (int32_t i = 0; i < count; ++i) {
        const InterfaceInfo info = creators[i]->getInterfaceInfo();
        require(std::strcmp(info.kind, "PLUGIN CREATOR_V3ONE") == 0 && info.major == 1,
                "getCreators: interface");
        auto& creator = *static_cast<IPluginCreatorV3One*>(creators[i]);
        if (std::strcmp(creator.getPluginName(), op) == 0) {
            return creator;
        }
    }
    throw std::runtime_error("getCreators: no such plugin");
}

void check_core(IPluginV3& plugin, IPluginCreatorV3One& creator) {
    auto& core = capability<IPluginV3OneCore>(plugin, PluginCapabilityType::kCORE, "core");
    require(std::strcmp(core.getPluginName(), creator.getPluginName()) == 0 &&
                std::strcmp(core.getPluginVersion(), creator.getPluginVersion()) == 0 &&
                std::strcmp(core.getPluginNamespace(), creator.getPluginNamespace()) == 0,
            "core: differs from the creator");
}

void check_shapes(IPluginV3OneBuild& build, const std::vector<v3_tensor>& inputs,
                  int32_t output_count) {
    harness::ExpressionBuilder builder;
    std::vector<DimsExprs> shapes(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
        shapes[i].nbDims = inputs[i].rank;
        for (int32_t axis = 0; axis < std::min(inputs[i].rank, Dims::MAX_DIMS); ++axis) {
            shapes[i].d[axis] =
                builder.make(inputs[i].extents[axis], (inputs[i].dynamic >> axis & 1u) == 0);
        }
    }
    std::vector<DimsExprs> outputs(static_cast<size_t>(output_count));
    require(build.getOutputShapes(shapes.data(), static_cast<int32_t>(shapes.size()), nullptr, 0,
                                  outputs.data(), output_count, builder) == 0,
            "getOutputShapes");
    for (const DimsExprs& output : outputs) {
        require(output.nbDims == inputs[0].rank &&
                    std::equal(output.d, output.d + output.nbDims, shapes[0].d),
                "getOutputShapes: an output is not shaped like X");
    }
}

// Takes the combination that the network has, and none in another layout or type.
void check_formats(IPluginV3OneBuild& build, std::vector<DynamicPluginTensorDesc> tensors,
                   int32_t input_count, int32_t output_count) {
    const auto takes = [&](size_t position) {
        return build.supportsFormatCombination(static_cast<int32_t>(position), tensors.data(),
                                               input_count, output_count);
    };
    for (size_t i = 0; i < tensors.size(); ++i) {
        require(takes(i), "supportsFormatCombination");
        const PluginTensorDesc good = tensors[i].desc;
        tensors[i].desc.format = TensorFormat::kCHW32;
        require(!takes(i), "supportsFormatCombination: took a layout that is not linear");
        tensors[i].desc = good;
        tensors[i].desc.type = DataType::kINT32;
        require(!takes(i), "supportsFormatCombination: took int32");
        tensors[i].desc = good;
    }
}

void check_build(IPluginV3OneBuild& build, const std::vector<v3_tensor>& inputs,
                 int32_t output_count) {
    const int32_t input_count = static_cast<int32_t>(inputs.size());
    require(build.getNbOutputs() == output_count, "getNbOutputs");
    std::vector<DataType> types;
    std::vector<DynamicPluginTensorDesc> tensors;
    for (const v3_tensor& input : inputs) {
        types.push_back(static_cast<DataType>(input.type));
        const Dims known = to_dims(input, false);
        tensors.push_back({describe(input, true), known, known, known});
    }
    std::vector<DataType> output_types(static_cast<size_t>(output_count));
    require(
        build.getOutputDataTypes(output_types.data(), output_count, types.data(), input_count) == 0,
        "getOutputDataTypes");
    check_shapes(build, inputs, output_count);
    for (const DataType type : output_types) {
        require(type == types[0], "getOutputDataTypes: an output differs from X");
        tensors.push_back(tensors[0]);
    }
    check_formats(build, tensors, input_count, output_count);
    require(build.configurePlugin(tensors.data(), input_count, tensors.data() + input_count,
                                  output_count) == 0,
            "configurePlugin");
    require(build.getWorkspaceSize(tensors.data(), input_count, tensors.data() + input_count,
                                   output_count) == 0,
            "getWorkspaceSize: no plugin should need one");
    require(build.getTimingCacheID() != nullptr, "getTimingCacheID");
}

}  // namespace

struct v3_plugin {
    std::unique_ptr<IPluginV3> plugin;
    std::unique_ptr<IPluginV3> attached;
    IPluginV3OneRuntime* runtime = nullptr;
    std::vector<PluginTensorDesc> inputs;
    std::vector<PluginTensorDesc> outputs;

    int32_t reshape(const std::vector<v3_tensor>& tensors, size_t output_count) {
        inputs.clear();
        for (const v3_tensor& tensor : tensors) {
            inputs.push_back(describe(tensor, false));
        }
        outputs.assign(output_count, inputs[0]);
        return runtime->onShapeChange(inputs.data(), static_cast<int32_t>(inputs.size()),
                                      outputs.data(), static_cast<int32_t>(output_count));
    }
};

v3_plugin* v3_open(const char* library, const char* op, const v3_field* fields, int32_t field_count,
                   const v3_tensor* inputs, int32_t input_count, int32_t output_count) {
    try {
        void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
        require(handle != nullptr, "dlopen");
        IPluginCreatorV3One& creator = find_creator(handle, op);
        std::vector<PluginField> given;
        for (int32_t i = 0; i < field_count; ++i) {
            given.emplace_back(fields[i].name, fields[i].data,
                               static_cast<PluginFieldType>(fields[i].type), fields[i].length);
        }
        const PluginFieldCollection collection{field_count, given.data()};
        std::unique_ptr<IPluginV3> built(
            creator.createPlugin("layer", &collection, TensorRTPhase::kBUILD));
        require(built != nullptr, "createPlugin (build)");
        check_core(*built, creator);
        const std::vector<v3_tensor> tensors(inputs, inputs + input_count);

        // A builder works on a clone; the original may go first.
        std::unique_ptr<IPluginV3> clone(built->clone());
        require(clone != nullptr && clone != built, "clone");
        built.reset();
        check_core(*clone, creator);
        check_build(capability<IPluginV3OneBuild>(*clone, PluginCapabilityType::kBUILD, "build"),
                    tensors, output_count);
        auto& runtime =
            capability<IPluginV3OneRuntime>(*clone, PluginCapabilityType::kRUNTIME, "runtime");
        const PluginFieldCollection* serialized = runtime.getFieldsToSerialize();
        require(serialized != nullptr, "getFieldsToSerialize");
        const StoredFields stored(*serialized);
        clone.reset();

        auto opened = std::make_unique<v3_plugin>();
        opened->plugin.reset(creator.createPlugin("layer", stored.get(), TensorRTPhase::kRUNTIME));
        require(opened->plugin != nullptr, "createPlugin (runtime)");
        opened->attached.reset(capability<IPluginV3OneRuntime>(
                                   *opened->plugin, PluginCapabilityType::kRUNTIME, "runtime")
                                   .attachToContext(nullptr));
        require(opened->attached != nullptr && opened->attached != opened->plugin,
                "attachToContext");
        opened->runtime = &capability<IPluginV3OneRuntime>(
            *opened->attached, PluginCapabilityType::kRUNTIME, "runtime");
        require(opened->reshape(tensors, static_cast<size_t>(output_count)) == 0, "onShapeChange");
        return opened.release();
    } catch (const std::exception& error) {
        g_logger.text += "failed at: " + std::string(error.what()) + "\n";
        return nullptr;
    }
}

int32_t v3_enqueue(v3_plugin* plugin, const void* const* inputs, void* const* outputs,
                   void* stream) {
    return plugin->runtime->enqueue(plugin->inputs.data(), plugin->outputs.data(), inputs, outputs,
                                    nullptr, static_cast<cudaStream_t>(stream));
}

int32_t v3_reshape(v3_plugin* plugin, const v3_tensor* inputs, int32_t input_count) {
    return plugin->reshape(std::vector<v3_tensor>(inputs, inputs + input_count),
                           plugin->outputs.size());
}

const char* v3_identity(v3_plugin* plugin) {
    return capability<IPluginV3OneBuild>(*plugin->attached, PluginCapabilityType::kBUILD, "build")
        .getTimingCacheID();
}

void v3_close(v3_plugin* plugin) {
    delete plugin;
}

const char* v3_log() {
    static std::string taken;
    taken.swap(g_logger.text);
    g_logger.text.clear();
    return taken.c_str();
}
