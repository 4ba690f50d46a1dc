#include "host_logger.h"

#include <dlfcn.h>

#include <atomic>

namespace andrea {

// ILogger and ILoggerFinder are the interfaces used here that are not the same in TensorRT 10 and
// 11: 11 made them versioned, so other methods stand before the one that counts. Called through the
// headers of the other version, findLogger finds nothing and log says nothing. So both layouts are
// written down, and the version of the library that loads us decides.
//
// Not in an unnamed namespace: nothing in this library derives from these classes, and a compiler
// that knows that nobody else can either makes "pure virtual method called" of their calls.
class PlainLogger {
  public:
    virtual void log(nvinfer1::ILogger::Severity severity, const char* message) noexcept = 0;

  protected:
    ~PlainLogger() = default;
};
class PlainFinder {
  public:
    virtual PlainLogger* findLogger() = 0;

  protected:
    ~PlainFinder() = default;
};
class VersionedLogger : public nvinfer1::IVersionedInterface {
  public:
    virtual void log(nvinfer1::ILogger::Severity severity, const char* message) noexcept = 0;
};
class VersionedFinder : public nvinfer1::IVersionedInterface {
  public:
    virtual VersionedLogger* findLogger() = 0;
};

namespace {

using nvinfer1::ILoggerFinder;
using Severity = nvinfer1::ILogger::Severity;
using GetNumber = int32_t (*)();

enum class Layout { kUnknown, kPlain, kVersioned, kAsInHeaders };

std::atomic<ILoggerFinder*> g_finder{nullptr};
std::atomic<Layout> g_layout{Layout::kUnknown};

// Seen in 10.14 and 10.16, in 11.0 to 11.4, and in TensorRT-RTX 1.7, which counts from 1.
Layout layout_of(int32_t major, int32_t minor) noexcept {
    if (major >= 11 || (major == 1 && minor >= 7)) {
        return Layout::kVersioned;
    }
    return major == 10 ? Layout::kPlain : Layout::kUnknown;
}

// The finder's virtual table lies in the library that it comes from; that tells its version.
Layout examine(const ILoggerFinder* finder) noexcept {
    Dl_info info;
    if (dladdr(*reinterpret_cast<void* const*>(finder), &info) == 0) {
        return Layout::kUnknown;
    }
    void* library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) {
        return Layout::kUnknown;
    }
    const auto major = reinterpret_cast<GetNumber>(dlsym(library, "getInferLibMajorVersion"));
    const auto minor = reinterpret_cast<GetNumber>(dlsym(library, "getInferLibMinorVersion"));
    // A finder that is not TensorRT's was compiled by somebody who has these headers, as we have.
    const bool is_tensorrt = major != nullptr && minor != nullptr;
    const Layout layout = is_tensorrt ? layout_of(major(), minor()) : Layout::kAsInHeaders;
    dlclose(library);  // RTLD_NOLOAD counted one more user; it stays loaded for the others
    return layout;
}

template <typename Finder>
bool log_through(ILoggerFinder* finder, Severity severity, const char* message) {
    auto* logger = reinterpret_cast<Finder*>(finder)->findLogger();
    if (logger == nullptr) {
        return false;
    }
    logger->log(severity, message);
    return true;
}

}  // namespace

void set_logger_finder(ILoggerFinder* finder) noexcept {
    g_layout.store(finder != nullptr ? examine(finder) : Layout::kUnknown);
    g_finder.store(finder);
}

bool log_to_host(Severity severity, const char* message) noexcept {
    ILoggerFinder* finder = g_finder.load();
    try {
        switch (g_layout.load()) {
            case Layout::kPlain:
                return log_through<PlainFinder>(finder, severity, message);
            case Layout::kVersioned:
                return log_through<VersionedFinder>(finder, severity, message);
            case Layout::kAsInHeaders:
                return log_through<ILoggerFinder>(finder, severity, message);
            case Layout::kUnknown:
                return false;
        }
    } catch (...) {  // findLogger is not declared noexcept; its failure must not end the process
    }
    return false;
}

}  // namespace andrea
