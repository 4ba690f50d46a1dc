// One plugin class for all ops: what an op is, it reads from kOps.
//
// The object has no state besides its settings, so clones are copies, contexts need no resources
// of their own, and every method may be called from any thread.
#pragma once

#include "op.h"

namespace andrea {

class Plugin final : public nvinfer1::IPluginV3,
                     public nvinfer1::IPluginV3OneCore,
                     public nvinfer1::IPluginV3OneBuild,
                     public nvinfer1::IPluginV3OneRuntime {
  public:
    Plugin(const Op& op, const Settings& settings) noexcept;
    Plugin(const Plugin& other) noexcept : Plugin(other.op_, other.settings_) {}
    Plugin& operator=(const Plugin&) = delete;

    // IPluginV3
    nvinfer1::IPluginCapability* getCapabilityInterface(
        nvinfer1::PluginCapabilityType type) noexcept override;
    nvinfer1::IPluginV3* clone() noexcept override;

    // IPluginV3OneCore
    const char* getPluginName() const noexcept override { return op_.name; }
    const char* getPluginVersion() const noexcept override { return kPluginVersion; }
    const char* getPluginNamespace() const noexcept override { return kPluginNamespace; }

    // IPluginV3OneBuild
    int32_t getNbOutputs() const noexcept override { return op_.outputs; }
    int32_t getOutputDataTypes(nvinfer1::DataType* outputs, int32_t output_count,
                               const nvinfer1::DataType* inputs,
                               int32_t input_count) const noexcept override;
    int32_t getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count,
                            const nvinfer1::DimsExprs* shape_inputs, int32_t shape_input_count,
                            nvinfer1::DimsExprs* outputs, int32_t output_count,
                            nvinfer1::IExprBuilder& builder) noexcept override;
    bool supportsFormatCombination(int32_t position,
                                   const nvinfer1::DynamicPluginTensorDesc* tensors,
                                   int32_t input_count, int32_t output_count) noexcept override;
    int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* inputs, int32_t input_count,
                            const nvinfer1::DynamicPluginTensorDesc* outputs,
                            int32_t output_count) noexcept override;
    const char* getTimingCacheID() noexcept override { return identity_; }
    const char* getMetadataString() noexcept override { return identity_; }

    // IPluginV3OneRuntime
    int32_t onShapeChange(const nvinfer1::PluginTensorDesc* inputs, int32_t input_count,
                          const nvinfer1::PluginTensorDesc* outputs,
                          int32_t output_count) noexcept override;
    int32_t enqueue(const nvinfer1::PluginTensorDesc* input_descs,
                    const nvinfer1::PluginTensorDesc* output_descs, const void* const* inputs,
                    void* const* outputs, void* workspace, cudaStream_t stream) noexcept override;
    nvinfer1::IPluginV3* attachToContext(
        nvinfer1::IPluginResourceContext* context) noexcept override;
    const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override;

  private:
    const Op& op_;
    const Settings settings_;
    // TensorRT reads these after the call that returned them: they live as long as the plugin.
    const nvinfer1::PluginField field_;
    const nvinfer1::PluginFieldCollection fields_;
    char identity_[64];
};

}  // namespace andrea
