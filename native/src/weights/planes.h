// The loops over all elements of a state, compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "support/cpu.h"
#include "weights/integers.h"

namespace rl4sys::weights {

constexpr std::uint32_t kDigits = 0x80808080U;  // a byte is a digit from -128 to 127, plus 128

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

/// What the planes hold the difference from: nothing, the base, or the base with its last change once more.
enum class From { nothing, base, prediction };

template <class F, From kFrom>
RL4SYS_INLINE inline std::int32_t origin(const F& form, const float* base, const float* before, std::size_t i) noexcept {
    if constexpr (kFrom == From::nothing) return 0;
    const std::int32_t was = form.integer(base[i], i);
    return kFrom == From::base ? was : wrapped_sum(was, wrapped_difference(was, form.integer(before[i], i)));
}

template <class F, From kFrom>
RL4SYS_INLINE inline void split_loop(const F& form, const float* __restrict now, const float* __restrict base, const float* __restrict before,
                                     std::size_t size, unsigned char* __restrict p0, unsigned char* __restrict p1,
                                     unsigned char* __restrict p2, unsigned char* __restrict p3) noexcept {
    for (std::size_t i = 0; i < size; ++i) {
        const std::int32_t n = wrapped_difference(form.integer(now[i], i), origin<F, kFrom>(form, base, before, i));
        const std::uint32_t digits = static_cast<std::uint32_t>(n) + (kItem<F> == 4 ? kDigits : kDigits & 0xFFFF);
        p0[i] = static_cast<unsigned char>(digits);
        p1[i] = static_cast<unsigned char>(digits >> 8);
        if constexpr (kItem<F> == 4) {
            p2[i] = static_cast<unsigned char>(digits >> 16);
            p3[i] = static_cast<unsigned char>(digits >> 24);
        }
    }
}

template <class F, From kFrom>
RL4SYS_INLINE inline void join_loop(const F& form, const unsigned char* __restrict p0, const unsigned char* __restrict p1,
                                    const unsigned char* __restrict p2, const unsigned char* __restrict p3, const float* __restrict base,
                                    const float* __restrict before, std::size_t size, float* __restrict out) noexcept {
    for (std::size_t i = 0; i < size; ++i) {
        std::uint32_t digits = p0[i] | std::uint32_t{p1[i]} << 8;
        if constexpr (kItem<F> == 4) digits |= std::uint32_t{p2[i]} << 16 | std::uint32_t{p3[i]} << 24;
        const auto n = static_cast<std::int32_t>(digits - (kItem<F> == 4 ? kDigits : kDigits & 0xFFFF));
        out[i] = form.flat(wrap<F>(wrapped_sum(n, origin<F, kFrom>(form, base, before, i))), i);
    }
}

/// Calls `loop` with where the differences start from as a constant.
template <class F, class Loop>
void run_from(const Start<F>& start, const Loop& loop) noexcept {
    if (!start.base)
        support::run_fastest([&]() RL4SYS_INLINE { loop(std::integral_constant<From, From::nothing>{}); });
    else if (!start.before)
        support::run_fastest([&]() RL4SYS_INLINE { loop(std::integral_constant<From, From::base>{}); });
    else
        support::run_fastest([&]() RL4SYS_INLINE { loop(std::integral_constant<From, From::prediction>{}); });
}

/// Writes the planes of the differences from `start` to `now`, lowest bytes first; of whole states without a base. With a state
/// before the base, the last difference is subtracted.
template <class F>
void split_planes(const Start<F>& start, const float* now, unsigned char* planes) noexcept {
    const auto at = [&](std::size_t plane) { return planes + plane * start.size; };
    run_from(start, [&](auto from) RL4SYS_INLINE {
        split_loop<F, from()>(start.form, now, start.base, start.before, start.size, at(0), at(1), at(kItem<F> - 2), at(kItem<F> - 1));
    });
}

/// The inverse of `split_planes`.
template <class F>
void join_planes(const Start<F>& start, const unsigned char* const* planes, float* out) noexcept {
    run_from(start, [&](auto from) RL4SYS_INLINE {
        join_loop<F, from()>(start.form, planes[0], planes[1], planes[kItem<F> - 2], planes[kItem<F> - 1], start.base, start.before,
                             start.size, out);
    });
}

}  // namespace rl4sys::weights
