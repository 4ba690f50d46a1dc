// Pretends to be the TensorRT that loads a plugin library: MAJOR and MINOR say
// which, VERSIONED whether its logger and finder are versioned interfaces, as
// they are since 11.
#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <string>

namespace {

std::string g_said;

#if VERSIONED
using Base = nvinfer1::IVersionedInterface;
#define INTERFACE                                                        \
    nvinfer1::InterfaceInfo getInterfaceInfo() const noexcept override { \
        return {"fake", 1, 0};                                           \
    }
#else
struct Base {};
#define INTERFACE
#endif

struct Logger : Base {
    INTERFACE
    virtual void log(int, const char* message) noexcept { g_said = message; }
    virtual ~Logger() = default;
} g_logger;

struct Finder : Base {
    INTERFACE
    virtual Logger* findLogger() { return &g_logger; }
    virtual ~Finder() = default;
} g_finder;

}  // namespace

extern "C" {

int32_t getInferLibMajorVersion() noexcept {
    return MAJOR;
}
int32_t getInferLibMinorVersion() noexcept {
    return MINOR;
}

// What the library says when its first creator gets no fields.
const char* complaint(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const auto set_finder = reinterpret_cast<void (*)(void*)>(dlsym(library, "setLoggerFinder"));
    using GetCreators = nvinfer1::IPluginCreatorInterface* const* (*)(int32_t&);
    const auto get_creators = reinterpret_cast<GetCreators>(dlsym(library, "getCreators"));
    int32_t count = 0;
    auto* creator = static_cast<nvinfer1::IPluginCreatorV3One*>(get_creators(count)[0]);
    g_said.clear();
    set_finder(&g_finder);
    creator->createPlugin("layer", nullptr, nvinfer1::TensorRTPhase::kBUILD);
    set_finder(nullptr);
    return g_said.c_str();
}
}
