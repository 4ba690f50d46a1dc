#include "op.h"

namespace andrea {
namespace {

andrea_status layer_norm(const Call& call, const Settings& settings) noexcept {
    return andrea_layer_norm(call.dtype, call.inputs[0], call.inputs[1], call.inputs[2],
                             call.outputs[0], call.rows, call.width, settings.epsilon, call.stream);
}

andrea_status add_layer_norm(const Call& call, const Settings& settings) noexcept {
    return andrea_add_layer_norm(call.dtype, call.inputs[0], call.inputs[1], call.inputs[2],
                                 call.inputs[3], call.outputs[0], call.outputs[1], call.rows,
                                 call.width, settings.epsilon, call.stream);
}

andrea_status gelu(const Call& call, const Settings& settings) noexcept {
    return andrea_gelu(call.dtype, settings.form, call.inputs[0], call.outputs[0],
                       call.rows * call.width, call.stream);
}

andrea_status bias_gelu(const Call& call, const Settings& settings) noexcept {
    return andrea_bias_gelu(call.dtype, settings.form, call.inputs[0], call.inputs[1],
                            call.outputs[0], call.rows, call.width, call.stream);
}

}  // namespace

const Op kOps[kOpCount] = {
    {"AndreaLayerNorm", "X, gamma, beta", 1, 2, 1, Attribute::kEpsilon, layer_norm},
    {"AndreaAddLayerNorm", "X, R, gamma, beta", 2, 2, 2, Attribute::kEpsilon, add_layer_norm},
    {"AndreaGelu", "X", 1, 0, 1, Attribute::kApproximate, gelu},
    {"AndreaBiasGelu", "X, bias", 1, 1, 1, Attribute::kApproximate, bias_gelu},
};

const char* attribute_name(Attribute attribute) noexcept {
    return attribute == Attribute::kEpsilon ? "epsilon" : "approximate";
}

}  // namespace andrea
