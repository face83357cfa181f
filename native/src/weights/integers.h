// What the two directions of the weight coder share: the integers that stand for weights, and the constants of their encoding.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "support/bytes.h"
#include "support/errors.h"
#include "weights/coder.h"

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
    using Word = std::int32_t;
    std::int32_t integer(float x, std::size_t) const noexcept { return ordered(bits_of(x)); }
    float flat(std::int32_t n, std::size_t) const noexcept { return float_of(ordered(n)); }
};

/// Values whose lower half is 0.
struct Bf16 {
    using Word = std::int16_t;
    std::int32_t integer(float x, std::size_t) const noexcept { return ordered(bits_of(x)) >> 16; }
    float flat(std::int32_t n, std::size_t) const noexcept {
        const std::int32_t upper = n ^ ((n >> 31) & 0x7FFF);
        return float_of(static_cast<std::int32_t>(static_cast<std::uint32_t>(upper) << 16));
    }
};

/// Multiples of a power of two, the step of the element. A tie rounds to even.
struct Grid {
    using Word = std::int32_t;
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
};

template <class F>
constexpr std::size_t kItem = sizeof(typename F::Word);

template <class F>
std::int32_t wrap(std::int32_t n) noexcept {
    return static_cast<typename F::Word>(n);
}

/// Calls `call` with the form of a dtype for what is never rounded: whole states and raw differences.
template <class Call>
auto with_words(WireDtype dtype, const Call& call) {
    return dtype == WireDtype::bf16 ? call(Bf16{}) : call(Fp32{});
}

/// Calls `call` with a form as a type.
template <class Call>
auto with_form(const Form& form, const Call& call) {
    return form.dtype == WireDtype::grid ? call(Grid{form.exponents}) : with_words(form.dtype, call);
}

/// The elements of some blocks of `kBlock`.
template <class T>
std::vector<T> gather(const T* from, std::size_t size, const std::vector<std::uint32_t>& blocks) {
    std::vector<T> out;
    out.reserve(blocks.size() * kBlock);
    for (const std::uint32_t block : blocks) out.insert(out.end(), from + block * kBlock, from + std::min(size, (block + 1) * kBlock));
    return out;
}

/// What a diff starts from: a state, null for the diff that makes a whole state, and the one before or null.
template <class F>
struct Start {
    F form;
    const float *base, *before;
    std::size_t size;
};

/// Some blocks of `kBlock` elements of a start.
template <class F>
struct Part : Start<F> {
    Part(const Start<F>& whole, const std::vector<std::uint32_t>& blocks) : Start<F>(whole), base_(gather(whole.base, whole.size, blocks)) {
        this->base = base_.data();
        this->size = base_.size();
        if (whole.before) this->before = (before_ = gather(whole.before, whole.size, blocks)).data();
        if constexpr (std::is_same_v<F, Grid>)
            this->form.exponents = (exponents_ = gather(whole.form.exponents, whole.size, blocks)).data();
    }

private:
    std::vector<float> base_, before_;
    std::vector<std::int8_t> exponents_;
};

/// The start with a base that the form can express; `storage` holds it if it is another one.
template <class F>
Start<F> canonical(Start<F> start, std::vector<float>& storage) {
    if constexpr (std::is_same_v<F, Grid>) {
        storage.resize(start.size);
        for (std::size_t i = 0; i < start.size; ++i) storage[i] = start.form.flat(start.form.integer(start.base[i], i), i);
        start.base = storage.data();
    }
    return start;
}

/// The symbols of magnitudes, by the number of mantissa bits.
struct Symbols {
    std::uint8_t open_bits[kMaxFine + 1][256] = {};
    std::int64_t least[kMaxFine + 1][256] = {};  // the lowest magnitude of a symbol; -1: it has none

    constexpr Symbols() noexcept {
        for (int n = 0; n < 255 * (kMaxFine + 1); ++n) {
            const int fine = n / 255, index = n % 255, exponent = index >> fine;
            const std::uint64_t steps = std::uint64_t{1} << fine, scaled = (steps | (index & (steps - 1))) << std::min(exponent, 40);
            const bool valid = scaled % steps == 0 && scaled / steps <= std::uint64_t{1} << 31;
            least[fine][index + 1] = valid ? static_cast<std::int64_t>(scaled / steps) : -1;
            open_bits[fine][index + 1] = static_cast<std::uint8_t>(valid && exponent > fine ? exponent - fine : 0);
        }
    }
};
inline constexpr Symbols kSymbolTable{};

/// The bits of all values together, as far as `F` does not accept them in every value.
template <class F>
std::int32_t doubtful_bits(const float* values, std::size_t size) noexcept {
    std::int32_t out = 0;
    if (kItem<F> == 2 && values)
        for (std::size_t i = 0; i < size; ++i) out |= bits_of(values[i]);
    return out & 0xFFFF;
}

/// Throws if there are doubtful bits.
inline void refuse_bits(std::int32_t doubtful) {
    if (doubtful) reject("dtype", "the state has values that bf16 cannot represent");
}

}  // namespace rl4sys::weights
