// Messages to whoever loaded the library: TensorRT's logger, or stderr when there is none.
#pragma once

namespace andrea {

__attribute__((format(printf, 1, 2))) void log_error(const char* format, ...) noexcept;
__attribute__((format(printf, 1, 2))) void log_warning(const char* format, ...) noexcept;

}  // namespace andrea
