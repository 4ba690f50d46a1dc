#include "log.h"

#include <cstdarg>
#include <cstdio>

#include "host_logger.h"

namespace andrea {
namespace {

using nvinfer1::ILogger;

void log(ILogger::Severity severity, const char* format, va_list arguments) noexcept {
    char message[1024];  // on the stack: a message about failing memory needs none
    std::vsnprintf(message, sizeof(message), format, arguments);
    if (!log_to_host(severity, message)) {
        std::fprintf(stderr, "andrea_plugins: %s\n", message);
    }
}

}  // namespace

void log_error(const char* format, ...) noexcept {
    va_list arguments;
    va_start(arguments, format);
    log(ILogger::Severity::kERROR, format, arguments);
    va_end(arguments);
}

void log_warning(const char* format, ...) noexcept {
    va_list arguments;
    va_start(arguments, format);
    log(ILogger::Severity::kWARNING, format, arguments);
    va_end(arguments);
}

}  // namespace andrea
