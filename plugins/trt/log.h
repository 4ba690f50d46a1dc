// Messages to whoever loaded the library: TensorRT's logger, or stderr when there is none.
#pragma once

#include <NvInferRuntime.h>

namespace andrea {

void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept;

__attribute__((format(printf, 1, 2))) void log_error(const char* format, ...) noexcept;
__attribute__((format(printf, 1, 2))) void log_warning(const char* format, ...) noexcept;

}  // namespace andrea
