// The logger of the TensorRT that loaded this library, whichever version that is.
#pragma once

#include <NvInferRuntime.h>

namespace andrea {

void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept;

// False when there is no logger, or one that is not known how to call.
bool log_to_host(nvinfer1::ILogger::Severity severity, const char* message) noexcept;

}  // namespace andrea
