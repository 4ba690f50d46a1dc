// Dimension expressions for getOutputShapes, which TensorRT otherwise makes: constants and
// wildcards are all that the plugins look at.
#pragma once

#include <NvInferRuntime.h>

#include <memory>
#include <vector>

namespace harness {

class Expression final : public nvinfer1::IDimensionExpr, nvinfer1::apiv::VDimensionExpr {
  public:
    Expression(int64_t value, bool is_constant) : value_(value), is_constant_(is_constant) {
        mImpl = this;
    }
    bool isConstant() const override { return is_constant_; }
    int64_t getConstantValue() const override { return value_; }
    bool isSizeTensor() const override { return false; }

  private:
    const int64_t value_;
    const bool is_constant_;
};

class ExpressionBuilder final : public nvinfer1::IExprBuilder, nvinfer1::apiv::VExprBuilder {
  public:
    ExpressionBuilder() { mImpl = this; }

    const nvinfer1::IDimensionExpr* make(int64_t value, bool is_constant) {
        made_.push_back(std::make_unique<Expression>(value, is_constant));
        return made_.back().get();
    }
    const nvinfer1::IDimensionExpr* constant(int64_t value) override { return make(value, true); }
    const nvinfer1::IDimensionExpr* operation(nvinfer1::DimensionOperation,
                                              const nvinfer1::IDimensionExpr&,
                                              const nvinfer1::IDimensionExpr&) override {
        return nullptr;
    }
    const nvinfer1::IDimensionExpr* declareSizeTensor(int32_t, const nvinfer1::IDimensionExpr&,
                                                      const nvinfer1::IDimensionExpr&) override {
        return nullptr;
    }

  private:
    std::vector<std::unique_ptr<Expression>> made_;
};

}  // namespace harness
