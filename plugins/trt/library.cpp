// What the shared library shows to TensorRT: one creator per op, found through getCreators.
//
// Neither function needs libnvinfer, so the library links without it and loads into any process
// that has TensorRT: registry.load_library, trtexec --dynamicPlugins, ONNX Runtime's provider.
#include <new>

#include "fields.h"
#include "host_logger.h"
#include "log.h"
#include "plugin.h"

namespace andrea {
namespace {

using namespace nvinfer1;

class Creator final : public IPluginCreatorV3One {
  public:
    explicit Creator(const Op& op) noexcept
        : op_(op), field_(describe_field(op)), fields_{1, &field_} {}
    Creator(const Creator&) = delete;
    Creator& operator=(const Creator&) = delete;

    const char* getPluginName() const noexcept override { return op_.name; }
    const char* getPluginVersion() const noexcept override { return kPluginVersion; }
    const char* getPluginNamespace() const noexcept override { return kPluginNamespace; }
    const PluginFieldCollection* getFieldNames() noexcept override { return &fields_; }

    // The fields are the same in both phases: what an engine stores is what a graph says.
    IPluginV3* createPlugin(const char*, const PluginFieldCollection* fields,
                            TensorRTPhase) noexcept override {
        Settings settings;
        if (!read_fields(op_, fields, &settings)) {
            return nullptr;
        }
        Plugin* plugin = new (std::nothrow) Plugin(op_, settings);
        if (plugin == nullptr) {
            log_error("%s: out of memory", op_.name);
        }
        return plugin;
    }

  private:
    const Op& op_;
    const PluginField field_;
    const PluginFieldCollection fields_;
};

}  // namespace
}  // namespace andrea

extern "C" {

ANDREA_API void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
    andrea::set_logger_finder(finder);
}

ANDREA_API nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
    using andrea::Creator;
    static Creator creators[] = {Creator(andrea::kOps[0]), Creator(andrea::kOps[1]),
                                 Creator(andrea::kOps[2]), Creator(andrea::kOps[3])};
    static nvinfer1::IPluginCreatorInterface* const list[] = {&creators[0], &creators[1],
                                                              &creators[2], &creators[3]};
    static_assert(sizeof(list) / sizeof(list[0]) == andrea::kOpCount);
    count = andrea::kOpCount;
    return list;
}
}
