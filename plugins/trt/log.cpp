#include "log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace andrea {
namespace {

using nvinfer1::ILogger;

std::atomic<nvinfer1::ILoggerFinder*> g_finder{nullptr};

void log(ILogger::Severity severity, const char* format, va_list arguments) noexcept {
    char message[1024];  // on the stack: a message about failing memory needs none
    std::vsnprintf(message, sizeof(message), format, arguments);
    ILogger* logger = nullptr;
    try {
        nvinfer1::ILoggerFinder* finder = g_finder.load();
        logger = finder != nullptr ? finder->findLogger() : nullptr;
    } catch (...) {  // findLogger is not declared noexcept; its failure must not end the process
    }
    if (logger != nullptr) {
        logger->log(severity, message);
    } else {
        std::fprintf(stderr, "andrea_plugins: %s\n", message);
    }
}

}  // namespace

void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept {
    g_finder.store(finder);
}

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
