#include "fields.h"

#include <cmath>
#include <cstring>
#include <string_view>

#include "log.h"

namespace andrea {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;

struct FormName {
    std::string_view name;
    andrea_gelu_form form;
};
constexpr FormName kForms[] = {{"tanh", ANDREA_GELU_TANH}, {"none", ANDREA_GELU_ERF}};

PluginFieldType field_type(Attribute attribute) {
    return attribute == Attribute::kEpsilon ? PluginFieldType::kFLOAT32 : PluginFieldType::kCHAR;
}

// Every node written by the toolkit carries these two; TensorRT has used them already.
bool is_plugin_lookup(const char* name) {
    return std::strcmp(name, "plugin_namespace") == 0 || std::strcmp(name, "plugin_version") == 0;
}

const PluginField* find_field(const Op& op, const PluginFieldCollection& fields) {
    const char* wanted = attribute_name(op.attribute);
    const PluginField* found = nullptr;
    for (int32_t i = 0; i < fields.nbFields; ++i) {
        const PluginField& field = fields.fields[i];
        if (field.name == nullptr || is_plugin_lookup(field.name)) {
            continue;
        }
        if (std::strcmp(field.name, wanted) == 0) {
            found = &field;
        } else {
            log_warning("%s: ignoring the unknown attribute '%s'; the only one is '%s'", op.name,
                        field.name, wanted);
        }
    }
    return found;
}

bool read_epsilon(const Op& op, const PluginField& field, Settings* settings) {
    if (field.type != PluginFieldType::kFLOAT32 || field.length != 1) {
        log_error("%s: epsilon must be one float32, got %d value(s) of field type %d", op.name,
                  field.length, static_cast<int>(field.type));
        return false;
    }
    std::memcpy(&settings->epsilon, field.data, sizeof(float));
    if (!(settings->epsilon > 0.0f) || !std::isfinite(settings->epsilon)) {
        log_error("%s: epsilon must be positive and finite, got %g", op.name,
                  static_cast<double>(settings->epsilon));
        return false;
    }
    return true;
}

bool read_approximate(const Op& op, const PluginField& field, Settings* settings) {
    if (field.type != PluginFieldType::kCHAR) {
        log_error("%s: approximate must be a string, got field type %d", op.name,
                  static_cast<int>(field.type));
        return false;
    }
    // A string field has a length and no promise of a terminator; some callers count one in.
    std::string_view text(static_cast<const char*>(field.data),
                          field.length > 0 ? static_cast<size_t>(field.length) : 0);
    text = text.substr(0, text.find('\0'));
    for (const FormName& known : kForms) {
        if (text == known.name) {
            settings->form = known.form;
            return true;
        }
    }
    log_error("%s: approximate must be 'tanh' or 'none', got '%.*s'", op.name,
              static_cast<int>(text.size() < 64 ? text.size() : 64), text.data());
    return false;
}

}  // namespace

bool read_fields(const Op& op, const PluginFieldCollection* fields, Settings* settings) noexcept {
    const PluginField* field = fields != nullptr ? find_field(op, *fields) : nullptr;
    if (field == nullptr || field->data == nullptr) {
        log_error("%s: the attribute '%s' is missing", op.name, attribute_name(op.attribute));
        return false;
    }
    return op.attribute == Attribute::kEpsilon ? read_epsilon(op, *field, settings)
                                               : read_approximate(op, *field, settings);
}

PluginField write_field(const Op& op, const Settings& settings) noexcept {
    PluginField field = describe_field(op);
    if (op.attribute == Attribute::kEpsilon) {
        field.data = &settings.epsilon;
        field.length = 1;
        return field;
    }
    for (const FormName& known : kForms) {
        if (settings.form == known.form) {
            field.data = known.name.data();
            field.length = static_cast<int32_t>(known.name.size());
        }
    }
    return field;
}

PluginField describe_field(const Op& op) noexcept {
    return PluginField(attribute_name(op.attribute), nullptr, field_type(op.attribute), 1);
}

}  // namespace andrea
