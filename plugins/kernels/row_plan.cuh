// Which kernel serves which row, for the ops that work row by row.
//
// Reasons for the table below
// - A row in one warp's registers is read once from memory and summed by shuffles alone: no
//   barrier, no shared memory, and rows of different warps never wait for each other. The limit is
//   8 packs a lane (32 registers of data): more would cost the occupancy that hides the latency.
// - Packs per lane follow the common model widths exactly (768 halves: 3; 768 floats: 6;
//   1024 halves: 4; a block for 3072 halves: 3), so that no lane carries registers or predicated
//   loads for nothing.
// - Above that a block shares the row: 4 packs a thread keep 64 bytes in flight for each, and the
//   block grows with the row, up to 512 threads: 1024 would leave 64 registers a thread, and 4
//   packs with their gamma and beta already spill there.
// - Rows beyond 2048 packs (16,384 halves, 8,192 floats) are read three times, the second and
//   third time from cache: models do not have them, and more packs a thread would cost every
//   architecture a kernel.
// - A block of warps has 4 rows: small blocks start and finish at different times, which keeps the
//   loads of some rows under the stores of others.
// - Without 16-byte alignment a pack is one element. Such rows are rare: few kernels serve them.
#pragma once

#include "pack.cuh"
#include "team.cuh"

namespace andrea {

// An Op is a struct of kernel arguments (inverse_width saves the kernels a division, which would
// bring a subroutine along) with two device functions, held<Team, N, PACKS>(row) and
// streamed<Team, N>(row); `first_row` lets one call be split over several launches.
template <typename Op, typename Team, int N, int PACKS>
__global__ void __launch_bounds__(Team::kMaxThreads) held_row_kernel(Op op) {
    const Team team;
    const int64_t row = op.first_row + team.row();
    if (row < op.rows) {
        op.template held<Team, N, PACKS>(team, row);
    }
}

template <typename Op, int N>
__global__ void __launch_bounds__(BlockTeam::kMaxThreads) streamed_row_kernel(Op op) {
    const BlockTeam team;
    op.template streamed<BlockTeam, N>(team, op.first_row + team.row());
}

template <typename Op>
struct RowPlan {
    bool is_vector;  // 16-byte packs or single elements
    int max_packs;   // the widest row this plan serves
    dim3 block;      // (lanes, rows) for a warp per row, (threads) for a block per row
    void (*kernel)(Op);
};

template <typename Op, int V = kVector<typename Op::Element>>
const RowPlan<Op>* find_row_plan(int64_t width, bool is_vector) {
    static const RowPlan<Op> kPlans[] = {
        {true, 32, dim3(32, 4), held_row_kernel<Op, WarpTeam, V, 1>},
        {true, 64, dim3(32, 4), held_row_kernel<Op, WarpTeam, V, 2>},
        {true, 96, dim3(32, 4), held_row_kernel<Op, WarpTeam, V, 3>},
        {true, 128, dim3(32, 4), held_row_kernel<Op, WarpTeam, V, 4>},
        {true, 192, dim3(32, 4), held_row_kernel<Op, WarpTeam, V, 6>},
        {true, 256, dim3(32, 4), held_row_kernel<Op, WarpTeam, V, 8>},
        {true, 384, dim3(128), held_row_kernel<Op, BlockTeam, V, 3>},
        {true, 512, dim3(128), held_row_kernel<Op, BlockTeam, V, 4>},
        {true, 1024, dim3(256), held_row_kernel<Op, BlockTeam, V, 4>},
        {true, 2048, dim3(512), held_row_kernel<Op, BlockTeam, V, 4>},
        {true, ANDREA_MAX_WIDTH, dim3(512), streamed_row_kernel<Op, V>},

        {false, 256, dim3(32, 4), held_row_kernel<Op, WarpTeam, 1, 8>},
        {false, 1024, dim3(128), held_row_kernel<Op, BlockTeam, 1, 8>},
        {false, 4096, dim3(512), held_row_kernel<Op, BlockTeam, 1, 8>},
        {false, ANDREA_MAX_WIDTH, dim3(512), streamed_row_kernel<Op, 1>},
    };
    const int64_t packs = is_vector ? width / V : width;
    for (const RowPlan<Op>& plan : kPlans) {
        if (plan.is_vector == is_vector && packs <= plan.max_packs) {
            return &plan;
        }
    }
    return nullptr;
}

template <typename Op>
andrea_status launch_rows(Op op, void* stream) {
    if (op.rows < 0 || op.width < 1 || op.width > ANDREA_MAX_WIDTH || !(op.epsilon > 0.0f)) {
        return kInvalidValue;
    }
    op.inverse_width = 1.0f / static_cast<float>(op.width);
    const bool is_vector = op.width % kVector<typename Op::Element> == 0 && op.is_aligned();
    const RowPlan<Op>& plan = *find_row_plan<Op>(op.width, is_vector);
    for (; op.first_row < op.rows; op.first_row += kMaxGrid * plan.block.y) {
        const int64_t blocks = ceil_div(op.rows - op.first_row, plan.block.y);
        const dim3 grid(static_cast<unsigned>(blocks < kMaxGrid ? blocks : kMaxGrid));
        const andrea_status status = launch(plan.kernel, grid, plan.block, stream, op);
        if (status != kSuccess) {
            return status;
        }
    }
    return kSuccess;
}

}  // namespace andrea
