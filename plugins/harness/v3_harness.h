/* Drives a plugin of a TensorRT plugin library through the V3 interfaces, without TensorRT.
 *
 * v3_open walks the way of a builder and then of a runtime: getCreators, createPlugin (build),
 * types, shapes, formats, configuration, clone, serialized fields; then, with everything of the
 * build phase destroyed, createPlugin (runtime) from those fields, attachToContext, onShapeChange.
 * v3_enqueue runs the result, on host or device memory, whichever the library works on; on a
 * device it may be captured into a CUDA graph.
 */
#ifndef ANDREA_V3_HARNESS_H
#define ANDREA_V3_HARNESS_H

#include <stddef.h>
#include <stdint.h>

#define V3_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char* name;
    int32_t type; /* nvinfer1::PluginFieldType */
    const void* data;
    int32_t length;
} v3_field;

typedef struct {
    int32_t type; /* nvinfer1::DataType */
    int32_t rank;
    int64_t extents[9]; /* one more than TensorRT allows, to see it refused */
    uint32_t dynamic;   /* bit i: axis i is a wildcard while building */
} v3_tensor;

typedef struct v3_plugin v3_plugin;

/* NULL when a step failed: v3_log then names the step and holds what the plugin said. */
V3_API v3_plugin* v3_open(const char* library, const char* op, const v3_field* fields,
                          int32_t field_count, const v3_tensor* inputs, int32_t input_count,
                          int32_t output_count);

/* What enqueue returned: 0 is success. */
V3_API int32_t v3_enqueue(v3_plugin* plugin, const void* const* inputs, void* const* outputs,
                          void* stream);

/* The runtime half again for other extents; 0 is success. */
V3_API int32_t v3_reshape(v3_plugin* plugin, const v3_tensor* inputs, int32_t input_count);

V3_API const char* v3_identity(v3_plugin* plugin); /* timing-cache id */
V3_API void v3_close(v3_plugin* plugin);

/* Everything said since the last call, one line each. Valid until the next call. */
V3_API const char* v3_log(void);

#ifdef __cplusplus
}
#endif

#endif
