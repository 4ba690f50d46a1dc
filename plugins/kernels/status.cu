// The text for a status code.
#include "device.cuh"

const char* andrea_status_string(andrea_status status) noexcept {
#if defined(ANDREA_HOST)
    return andrea::host::status_string(status);
#else
    return cudaGetErrorString(static_cast<cudaError_t>(status));
#endif
}
