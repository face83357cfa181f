// The loops over all elements of a state, compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "support/cpu.h"
#include "weights/integers.h"

#if defined(__clang__)
#define RL4SYS_INDEPENDENT
#else
#define RL4SYS_INDEPENDENT _Pragma("GCC ivdep")  // the elements of a loop do not depend on each other
#endif

namespace rl4sys::weights {

/// A byte of a plane is a digit from -128 to 127, plus 128.
template <class F>
constexpr std::uint32_t kDigits = kItem<F> == 4 ? 0x80808080U : 0x8080U;

/// Sets `flags[i]` to whether the bits of `a[i]` and `b[i]` differ. Returns how many do.
inline std::size_t find_differences(const float* a, const float* b, std::size_t size, std::uint8_t* flags) noexcept {
    std::size_t count = 0;
    support::run_fastest([&]() RL4SYS_INLINE {
        const float *__restrict first = a, *__restrict second = b;
        std::uint8_t* __restrict out = flags;
        for (std::size_t at = 0; at < size;) {
            // Counters of 32 bits, so that the inner loop is made of vectors.
            const std::size_t end = std::min(size, at + (std::size_t{1} << 30));
            std::uint32_t some = 0;
            for (; at < end; ++at) {
                const std::uint32_t differs = bits_of(first[at]) != bits_of(second[at]);
                out[at] = static_cast<std::uint8_t>(differs);
                some += differs;
            }
            count += some;
        }
    });
    return count;
}

/// Calls `loop` with a function of an index that gives the integer from which a difference is taken: 0 without a base, the one of
/// the base, or with a state before it, the base with its last change once more.
template <class F, class Loop>
void run_from(Start<F> start, const Loop& loop) noexcept {
    if (!start.base) return support::run_fastest([=]() RL4SYS_INLINE { loop([](std::size_t) { return std::int32_t{0}; }); });
    const auto base = [=](std::size_t i) { return start.form.integer(start.base[i], i); };
    if (!start.before) return support::run_fastest([=]() RL4SYS_INLINE { loop(base); });
    support::run_fastest([=]() RL4SYS_INLINE {
        loop([=](std::size_t i) { return wrapped_sum(base(i), wrapped_difference(base(i), start.form.integer(start.before[i], i))); });
    });
}

/// Writes the planes of the differences from `start` to `now`, lowest bytes first.
template <class F>
void split_planes(Start<F> start, const float* now, unsigned char* planes) noexcept {
    run_from(start, [=](auto origin) RL4SYS_INLINE {
        // Copies, as the stores of bytes could change what the lambda holds.
        const F form = start.form;
        const std::size_t size = start.size;
        const float* const from = now;
        unsigned char *p0 = planes, *p1 = p0 + size, *p2 = p0 + (kItem<F> - 2) * size, *p3 = p0 + (kItem<F> - 1) * size;
        RL4SYS_INDEPENDENT
        for (std::size_t i = 0; i < size; ++i) {
            const std::uint32_t digits = static_cast<std::uint32_t>(wrapped_difference(form.integer(from[i], i), origin(i))) + kDigits<F>;
            p0[i] = static_cast<unsigned char>(digits);
            p1[i] = static_cast<unsigned char>(digits >> 8);
            if constexpr (kItem<F> == 4) {
                p2[i] = static_cast<unsigned char>(digits >> 16);
                p3[i] = static_cast<unsigned char>(digits >> 24);
            }
        }
    });
}

/// The inverse of `split_planes`.
template <class F>
void join_planes(Start<F> start, const unsigned char* const* planes, float* out) noexcept {
    run_from(start, [=](auto origin) RL4SYS_INLINE {
        const F form = start.form;
        const unsigned char *p0 = planes[0], *p1 = planes[1], *p2 = planes[kItem<F> - 2], *p3 = planes[kItem<F> - 1];
        RL4SYS_INDEPENDENT
        for (std::size_t i = 0; i < start.size; ++i) {
            std::uint32_t digits = p0[i] | std::uint32_t{p1[i]} << 8;
            if constexpr (kItem<F> == 4) digits |= std::uint32_t{p2[i]} << 16 | std::uint32_t{p3[i]} << 24;
            out[i] = form.flat(wrap<F>(wrapped_sum(static_cast<std::int32_t>(digits - kDigits<F>), origin(i))), i);
        }
    });
}

}  // namespace rl4sys::weights
