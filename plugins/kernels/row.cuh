// One row of a normalisation, held in its team's registers or read again for each step.
//
// Mean and variance: the corrected two-pass algorithm (Chan, Golub & LeVeque 1983). The first sum
// gives a mean that is a few roundings off; the second pass sums the deviations d from it as well
// as their squares, and the sum of d says how far off. With mean 1e4 and deviation 1 in float32
// the plain mean is wrong by about 1e-3, which would be 1e-3 in every output; this one is exact to
// rounding, because x - mean of close numbers is exact.
#pragma once

#include "pack.cuh"
#include "team.cuh"

namespace andrea {

// y = (x - centre - shift) * scale: centre and shift are kept apart so nothing cancels.
struct Moments {
    float centre;
    float shift;
    float scale;
};

__device__ __forceinline__ Moments finish_moments(float centre, float2 sums, float inverse_width,
                                                  float epsilon) {
    const float shift = sums.x * inverse_width;
    const float variance = sums.y * inverse_width - shift * shift;
    // Rounding may leave a little less than nothing. Not fmaxf: it drops a NaN, and a row with an
    // Inf or a NaN in it has to show it everywhere.
    return {centre, shift, rsqrtf((variance < 0.0f ? 0.0f : variance) + epsilon)};
}

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> add(const Pack<T, N>& a, const Pack<T, N>& b) {
    float sum[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
        sum[j] = to_float(a.values[j]) + to_float(b.values[j]);
    }
    return round_pack<T, N>(sum);
}

// The packs of one row that one thread owns: member, member + size, member + 2 * size, ...
// Neighbouring threads touch neighbouring 16 bytes. `packs` (per row) guards the last ones.
template <typename T, int N, int PACKS>
struct RowSlice {
    Pack<T, N> packs[PACKS];

    template <typename Team>
    __device__ __forceinline__ void load(const Team& team, const T* row, int row_packs) {
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            const int pack = team.member() + i * team.size();
            if (pack < row_packs) {
                packs[i] = load_pack<T, N>(row + pack * N);
            }
        }
    }

    template <typename Team>
    __device__ __forceinline__ void store(const Team& team, T* row, int row_packs) const {
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            const int pack = team.member() + i * team.size();
            if (pack < row_packs) {
                store_pack(row + pack * N, packs[i]);
            }
        }
    }

    template <typename Team>
    __device__ __forceinline__ void add(const Team& team, const RowSlice& other, int row_packs) {
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            if (team.member() + i * team.size() < row_packs) {
                packs[i] = andrea::add(packs[i], other.packs[i]);
            }
        }
    }

    template <typename Team>
    __device__ __forceinline__ Moments moments(const Team& team, int row_packs, float inverse_width,
                                               float epsilon) const {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            if (team.member() + i * team.size() < row_packs) {
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    total += to_float(packs[i].values[j]);
                }
            }
        }
        const float centre = team.template sum<0>(total) * inverse_width;

        float2 sums = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            if (team.member() + i * team.size() < row_packs) {
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    const float deviation = to_float(packs[i].values[j]) - centre;
                    sums.x += deviation;
                    sums.y += deviation * deviation;
                }
            }
        }
        return finish_moments(centre, team.template sum<1>(sums), inverse_width, epsilon);
    }
};

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> normalise(const Pack<T, N>& x, const Pack<T, N>& gamma,
                                                const Pack<T, N>& beta, const Moments& m) {
    float y[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const float unit = (to_float(x.values[j]) - m.centre - m.shift) * m.scale;
        y[j] = unit * to_float(gamma.values[j]) + to_float(beta.values[j]);
    }
    return round_pack<T, N>(y);
}

// Gamma and beta of a slice. Up to 4 packs they are asked for together with the row, so that their
// way from the cache is over when the sums are; beyond that they would cost too many registers.
template <typename T, int N, int PACKS>
struct Affine {
    static constexpr bool kIsPrefetched = PACKS * N * sizeof(T) <= 64;
    RowSlice<T, N, kIsPrefetched ? PACKS : 1> gamma_slice;
    RowSlice<T, N, kIsPrefetched ? PACKS : 1> beta_slice;

    template <typename Team>
    __device__ __forceinline__ void prefetch(const Team& team, const T* gamma, const T* beta,
                                             int row_packs) {
        if constexpr (kIsPrefetched) {
            gamma_slice.load(team, gamma, row_packs);
            beta_slice.load(team, beta, row_packs);
        }
    }

    template <typename Team>
    __device__ __forceinline__ void store(const Team& team, const T* gamma, const T* beta,
                                          int row_packs, const RowSlice<T, N, PACKS>& slice,
                                          const Moments& moments, T* out) const {
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            const int pack = team.member() + i * team.size();
            if (pack < row_packs) {
                Pack<T, N> g;
                Pack<T, N> b;
                if constexpr (kIsPrefetched) {
                    g = gamma_slice.packs[i];
                    b = beta_slice.packs[i];
                } else {
                    g = load_pack<T, N>(gamma + pack * N);
                    b = load_pack<T, N>(beta + pack * N);
                }
                store_pack(out + pack * N, normalise(slice.packs[i], g, b, moments));
            }
        }
    }
};

// The same for a row too wide for registers. The second and third reading find it in cache.
template <typename T, int N, typename Team>
__device__ __forceinline__ Moments streamed_moments(const Team& team, const T* row, int row_packs,
                                                    float inverse_width, float epsilon) {
    float total = 0.0f;
    for (int pack = team.member(); pack < row_packs; pack += team.size()) {
        const Pack<T, N> held = load_pack<T, N>(row + pack * N);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            total += to_float(held.values[j]);
        }
    }
    const float centre = team.template sum<0>(total) * inverse_width;

    float2 sums = make_float2(0.0f, 0.0f);
    for (int pack = team.member(); pack < row_packs; pack += team.size()) {
        const Pack<T, N> held = load_pack<T, N>(row + pack * N);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float deviation = to_float(held.values[j]) - centre;
            sums.x += deviation;
            sums.y += deviation * deviation;
        }
    }
    return finish_moments(centre, team.template sum<1>(sums), inverse_width, epsilon);
}

template <typename T, int N, typename Team>
__device__ __forceinline__ void streamed_store(const Team& team, const T* row, const T* gamma,
                                               const T* beta, int row_packs, const Moments& moments,
                                               T* out) {
    for (int pack = team.member(); pack < row_packs; pack += team.size()) {
        const int at = pack * N;
        store_pack(out + at, normalise(load_pack<T, N>(row + at), load_pack<T, N>(gamma + at),
                                       load_pack<T, N>(beta + at), moments));
    }
}

}  // namespace andrea
