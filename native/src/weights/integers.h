// What the two directions of the weight coder share: the integers that stand for weights, and the constants of their encoding.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/bytes.h"

namespace rl4sys::weights {

constexpr std::size_t kBlock = 1024;
constexpr int kMaxDepth = 6, kMaxFine = 3;
constexpr std::uint8_t kZero = 0, kSparse = 1, kSymbols = 2;

// Neighbouring weights have neighbouring integers; arithmetic wraps.

inline std::int32_t ordered(std::int32_t bits) noexcept { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }
inline std::int32_t bits_of(float x) noexcept { return support::load<std::int32_t>(&x); }
inline float float_of(std::int32_t bits) noexcept { return support::load<float>(&bits); }
inline std::int32_t wrapped_sum(std::int32_t a, std::int32_t b) noexcept {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}
inline std::int32_t wrapped_difference(std::int32_t a, std::int32_t b) noexcept {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) - static_cast<std::uint32_t>(b));
}

/// Any float32 value.
struct Fp32 {
    static constexpr std::size_t kItem = 4;
    std::int32_t integer(float x, std::size_t) const noexcept { return ordered(bits_of(x)); }
    float flat(std::int32_t n, std::size_t) const noexcept { return float_of(ordered(n)); }
    static std::int32_t wrap(std::int32_t n) noexcept { return n; }
};

/// Values whose lower half is 0.
struct Bf16 {
    static constexpr std::size_t kItem = 2;
    std::int32_t integer(float x, std::size_t) const noexcept { return ordered(bits_of(x)) >> 16; }
    float flat(std::int32_t n, std::size_t) const noexcept {
        const std::int32_t upper = n ^ ((n >> 31) & 0x7FFF);
        return float_of(static_cast<std::int32_t>(static_cast<std::uint32_t>(upper) << 16));
    }
    static std::int32_t wrap(std::int32_t n) noexcept { return static_cast<std::int16_t>(n); }
};

/// Multiples of a power of two, the step of the element. A tie rounds to even.
struct Grid {
    static constexpr std::size_t kItem = 4;
    const std::int8_t* exponents;  // of each element

    static double power(int exponent) noexcept {
        const std::uint64_t bits = static_cast<std::uint64_t>(1023 + exponent) << 52;
        return support::load<double>(&bits);
    }
    std::int32_t integer(float x, std::size_t i) const noexcept {
        constexpr double kMost = 2147483647.0, kRounder = 6755399441055744.0;  // a sum with 1.5 * 2^52 has no fraction
        double scaled = double{x} * power(-exponents[i]);
        scaled = scaled >= -kMost ? scaled : -kMost;
        scaled = scaled <= kMost ? scaled : kMost;
        return static_cast<std::int32_t>(scaled + kRounder - kRounder);
    }
    float flat(std::int32_t n, std::size_t i) const noexcept { return static_cast<float>(n * power(exponents[i])); }
    static std::int32_t wrap(std::int32_t n) noexcept { return n; }
};

/// The symbols of magnitudes, by the number of mantissa bits.
struct Symbols {
    std::uint8_t open_bits[kMaxFine + 1][256];
    std::int64_t least[kMaxFine + 1][256];  // the lowest magnitude of a symbol; -1: it has none

    Symbols() noexcept;
};

const Symbols& symbol_table() noexcept;

/// Appends the elements of some blocks of `kBlock` to `out`.
template <class T>
void gather(const T* from, std::size_t size, const std::vector<std::uint32_t>& blocks, std::vector<T>& out) {
    for (const std::uint32_t block : blocks) {
        const std::size_t first = block * kBlock;
        out.insert(out.end(), from + first, from + std::min(size, first + kBlock));
    }
}

/// The bits of all values together, as far as `F` does not accept them in every value.
template <class F>
std::int32_t doubtful_bits(const float* values, std::size_t size) noexcept {
    std::int32_t out = 0;
    if (F::kItem == 2 && values)
        for (std::size_t i = 0; i < size; ++i) out |= bits_of(values[i]);
    return out & 0xFFFF;
}

/// Throws if there are doubtful bits.
void refuse_bits(std::int32_t doubtful);

}  // namespace rl4sys::weights
