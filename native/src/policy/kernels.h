// The arithmetic of a forward pass in float32, compiled for several instruction sets and chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "support/cpu.h"

namespace rl4sys::policy {

/// Rows of matrices and vectors of activations are padded to this many numbers.
constexpr std::size_t kLanes = 16;

constexpr std::size_t padded(std::size_t count) noexcept { return (count + kLanes - 1) / kLanes * kLanes; }

enum class Function : std::uint8_t { identity, tanh, relu, elu, silu, gelu, leaky_relu };

/// Pointers to vectors are aligned to 64 bytes and have `padded` lengths.
struct Kernels {
    /// out = bias + sum over i of x[i] * rows[i], with `inputs` rows of `outputs` numbers each.
    void (*dense)(const float* rows, const float* bias, const float* x, std::size_t inputs, std::size_t outputs, float* out) noexcept;
    /// Applies a function to each of `count` numbers in place.
    void (*apply)(Function function, float* values, std::size_t count) noexcept;
    /// x = min(max((x - mean) * scale, -limit), limit)
    void (*normalise)(const float* mean, const float* scale, float limit, float* x, std::size_t count) noexcept;
    /// The last steps of a gated recurrent unit, from the sums of its four gates (network.cpp): after = (1 - z) * n + z * before.
    void (*gru)(float* gates, const float* before, std::size_t units, float* after) noexcept;
};

/// The kernels for processors of this level.
const Kernels& kernels_of(support::CpuLevel level) noexcept;

/// The fastest kernels of this processor.
inline const Kernels& kernels() noexcept { return kernels_of(support::cpu_level()); }

}  // namespace rl4sys::policy
