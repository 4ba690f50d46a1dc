// The scheduler behind cuda_on_host.h: one fiber per CUDA thread, one block at a time.
//
// A fiber is entered once through makecontext; after that _setjmp/_longjmp switch, because
// swapcontext makes a system call each time (and there are some million switches in a test run).
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "cuda_on_host.h"

namespace andrea::host {
namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidConfiguration = 9;  // the codes of cudaError_t
constexpr int kIllegalAddress = 700;
constexpr int kMisalignedAddress = 716;
constexpr int kLaunchFailure = 719;

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 64 * 1024;

struct Fiber {
    ucontext_t context;
    jmp_buf jump;
    std::unique_ptr<char[]> stack{new char[kStackBytes]};
    bool is_started = false;
    bool is_done = false;
    const uint64_t* waits_for = nullptr;  // runnable once *waits_for is no longer seen
    uint64_t seen = 0;
    uint3 thread;
    int linear = 0;
};

// Lanes deposit values under the parity of the generation, so one rendezvous per shuffle is enough:
// nobody can reach the next but one before everybody has read this one.
struct Warp {
    uint64_t slots[2][kWarp];
    uint64_t generation = 0;
    int arrived = 0;
};

struct Range {
    const char* base;
    size_t bytes;
};

std::mutex g_mutex;
std::vector<std::unique_ptr<Fiber>> g_fibers;
std::vector<Range> g_allowed;
std::vector<Warp> g_warps;
uint64_t g_schedule = 0;

Fiber* g_running = nullptr;
jmp_buf g_scheduler_jump;
uint64_t g_barrier_generation = 0;
int g_arrived = 0;
int g_alive = 0;
int g_threads = 0;
int g_status = kSuccess;
void (*g_body)(void*) = nullptr;
void* g_body_context = nullptr;

void back_to_scheduler() {
    if (_setjmp(g_running->jump) == 0) {
        _longjmp(g_scheduler_jump, 1);
    }
}

void wait_while(const uint64_t* counter, uint64_t value) {
    g_running->waits_for = counter;
    g_running->seen = value;
    back_to_scheduler();
    g_running->waits_for = nullptr;
}

void release_barrier_if_complete() {
    if (g_alive > 0 && g_arrived == g_alive) {
        g_arrived = 0;
        ++g_barrier_generation;
    }
}

void fiber_main() {
    for (;;) {
        g_body(g_body_context);
        g_running->is_done = true;
        --g_alive;
        release_barrier_if_complete();
        back_to_scheduler();
    }
}

void resume(Fiber& fiber) {
    g_running = &fiber;
    threadIdx = fiber.thread;
    if (_setjmp(g_scheduler_jump) == 0) {
        if (fiber.is_started) {
            _longjmp(fiber.jump, 1);
        }
        fiber.is_started = true;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, fiber_main, 0);
        setcontext(&fiber.context);
    }
}

[[noreturn]] void fail(int status) {
    g_status = status;
    _longjmp(g_scheduler_jump, 1);
}

std::vector<int> thread_order(int threads) {
    std::vector<int> order(static_cast<size_t>(threads));
    std::iota(order.begin(), order.end(), 0);
    if (g_schedule == 1) {
        std::reverse(order.begin(), order.end());
    } else if (g_schedule > 1) {
        std::shuffle(order.begin(), order.end(), std::mt19937_64(g_schedule));
    }
    return order;
}

void prepare_block(dim3 block) {
    while (static_cast<int>(g_fibers.size()) < g_threads) {
        g_fibers.push_back(std::make_unique<Fiber>());
    }
    for (int i = 0; i < g_threads; ++i) {
        Fiber& fiber = *g_fibers[static_cast<size_t>(i)];
        const unsigned linear = static_cast<unsigned>(i);
        fiber.linear = i;
        fiber.thread =
            make_uint3(linear % block.x, linear / block.x % block.y, linear / (block.x * block.y));
        fiber.is_done = false;
        fiber.waits_for = nullptr;
    }
    g_warps.assign(static_cast<size_t>((g_threads + kWarp - 1) / kWarp), Warp());
    g_alive = g_threads;
    g_arrived = 0;
}

void run_block(const std::vector<int>& order) {
    while (g_alive > 0) {
        bool has_moved = false;
        for (const int i : order) {
            Fiber& fiber = *g_fibers[static_cast<size_t>(i)];
            const bool is_waiting = fiber.waits_for != nullptr && *fiber.waits_for == fiber.seen;
            if (fiber.is_done || is_waiting) {
                continue;
            }
            has_moved = true;
            resume(fiber);
            if (g_status != kSuccess) {
                return;
            }
        }
        if (!has_moved) {
            g_status = kLaunchFailure;  // threads wait at barriers that others never reach
            return;
        }
    }
}

}  // namespace

void barrier() noexcept {
    const uint64_t generation = g_barrier_generation;
    ++g_arrived;
    release_barrier_if_complete();
    if (g_barrier_generation == generation) {
        wait_while(&g_barrier_generation, generation);
    }
}

uint64_t exchange(uint64_t value, int lane_mask) noexcept {
    const int lane = g_running->linear % kWarp;
    const int first = g_running->linear - lane;
    if (first + kWarp > g_threads) {
        fail(kLaunchFailure);  // a full mask names lanes that this block does not have
    }
    Warp& warp = g_warps[static_cast<size_t>(first / kWarp)];
    const uint64_t generation = warp.generation;
    warp.slots[generation % 2][lane] = value;
    if (++warp.arrived == kWarp) {
        warp.arrived = 0;
        ++warp.generation;
    } else {
        wait_while(&warp.generation, generation);
    }
    return warp.slots[generation % 2][lane ^ lane_mask];
}

void check_access(const void* address, size_t bytes) noexcept {
    if (reinterpret_cast<uintptr_t>(address) % bytes != 0) {
        fail(kMisalignedAddress);
    }
    const char* first = static_cast<const char*>(address);
    const auto holds = [&](const Range& range) {
        return first >= range.base && first + bytes <= range.base + range.bytes;
    };
    if (!g_allowed.empty() && std::none_of(g_allowed.begin(), g_allowed.end(), holds)) {
        fail(kIllegalAddress);
    }
}

int run_grid(dim3 grid, dim3 block, void (*body)(void*), void* context) noexcept {
    const std::lock_guard<std::mutex> lock(g_mutex);
    const uint64_t threads = uint64_t{block.x} * block.y * block.z;
    if (threads == 0 || threads > 1024 || grid.x == 0 || grid.x > 2147483647u || grid.y == 0 ||
        grid.y > 65535 || grid.z == 0 || grid.z > 65535) {
        return kInvalidConfiguration;
    }
    g_threads = static_cast<int>(threads);
    g_body = body;
    g_body_context = context;
    g_status = kSuccess;
    gridDim = grid;
    blockDim = block;
    const std::vector<int> order = thread_order(g_threads);
    for (unsigned z = 0; z < grid.z; ++z) {
        for (unsigned y = 0; y < grid.y; ++y) {
            for (unsigned x = 0; x < grid.x; ++x) {
                blockIdx = make_uint3(x, y, z);
                prepare_block(block);
                run_block(order);
                if (g_status != kSuccess) {
                    g_fibers.clear();  // they stand somewhere inside the kernel
                    return g_status;
                }
            }
        }
    }
    return kSuccess;
}

const char* status_string(int status) noexcept {
    switch (status) {
        case kSuccess:
            return "no error";
        case 1:
            return "invalid argument";
        case kInvalidConfiguration:
            return "invalid configuration argument";
        case kIllegalAddress:
            return "an illegal memory access was encountered";
        case kMisalignedAddress:
            return "misaligned address";
        case kLaunchFailure:
            return "unspecified launch failure";
        default:
            return "unrecognized error code";
    }
}

}  // namespace andrea::host

void andrea_host_schedule(uint64_t seed) {
    andrea::host::g_schedule = seed;
}

void andrea_host_allow(const void* base, size_t bytes) {
    if (base == nullptr) {
        andrea::host::g_allowed.clear();
    } else {
        andrea::host::g_allowed.push_back({static_cast<const char*>(base), bytes});
    }
}
