#include "weights/planes.h"

#include "support/cpu.h"

#define RL4SYS_INLINE inline __attribute__((always_inline))

namespace rl4sys::weights {
namespace {

constexpr std::uint32_t kDigits = 0x80808080U;  // a byte is a digit from -128 to 127, plus 128

enum class From { nothing, base, prediction };

RL4SYS_INLINE std::size_t differences_loop(const float* __restrict a, const float* __restrict b, std::size_t size,
                                           std::uint8_t* __restrict flags) noexcept {
    std::size_t count = 0;
    for (std::size_t at = 0; at < size;) {
        // Counters of 32 bits, so that the inner loop is made of vectors.
        const std::size_t end = std::min(size, at + (std::size_t{1} << 30));
        std::uint32_t some = 0;
        for (; at < end; ++at) {
            const std::uint32_t differs = bits_of(a[at]) != bits_of(b[at]);
            flags[at] = static_cast<std::uint8_t>(differs);
            some += differs;
        }
        count += some;
    }
    return count;
}

template <class F, From kFrom>
RL4SYS_INLINE void split_loop(const F& form, const float* __restrict now, const float* __restrict base,
                              const float* __restrict before, std::size_t size, unsigned char* __restrict p0, unsigned char* __restrict p1,
                              unsigned char* __restrict p2, unsigned char* __restrict p3) noexcept {
    for (std::size_t i = 0; i < size; ++i) {
        std::int32_t n = form.integer(now[i], i);
        if constexpr (kFrom != From::nothing) {
            const std::int32_t was = form.integer(base[i], i);
            n = wrapped_difference(n, was);
            if constexpr (kFrom == From::prediction)
                n = wrapped_difference(n, wrapped_difference(was, form.integer(before[i], i)));
        }
        const std::uint32_t digits = static_cast<std::uint32_t>(n) + (F::kItem == 4 ? kDigits : kDigits & 0xFFFF);
        p0[i] = static_cast<unsigned char>(digits);
        p1[i] = static_cast<unsigned char>(digits >> 8);
        if constexpr (F::kItem == 4) {
            p2[i] = static_cast<unsigned char>(digits >> 16);
            p3[i] = static_cast<unsigned char>(digits >> 24);
        }
    }
}

template <class F, From kFrom>
RL4SYS_INLINE void join_loop(const F& form, const unsigned char* __restrict p0, const unsigned char* __restrict p1,
                             const unsigned char* __restrict p2, const unsigned char* __restrict p3, const float* __restrict base,
                             const float* __restrict before, std::size_t size, float* __restrict out) noexcept {
    for (std::size_t i = 0; i < size; ++i) {
        std::uint32_t digits = p0[i] | static_cast<std::uint32_t>(p1[i]) << 8;
        if constexpr (F::kItem == 4) digits |= static_cast<std::uint32_t>(p2[i]) << 16 | static_cast<std::uint32_t>(p3[i]) << 24;
        std::int32_t n = static_cast<std::int32_t>(digits - (F::kItem == 4 ? kDigits : kDigits & 0xFFFF));
        if constexpr (kFrom != From::nothing) {
            const std::int32_t was = form.integer(base[i], i);
            if constexpr (kFrom == From::prediction) n = wrapped_sum(n, wrapped_difference(was, form.integer(before[i], i)));
            n = wrapped_sum(n, was);
        }
        out[i] = form.flat(F::wrap(n), i);
    }
}

template <class F>
RL4SYS_INLINE void split_any(const F& form, const float* now, const float* base, const float* before, std::size_t size,
                             unsigned char* planes) noexcept {
    unsigned char *p0 = planes, *p1 = p0 + size, *p2 = F::kItem == 4 ? p1 + size : p1, *p3 = F::kItem == 4 ? p2 + size : p1;
    if (!base)
        split_loop<F, From::nothing>(form, now, nullptr, nullptr, size, p0, p1, p2, p3);
    else if (!before)
        split_loop<F, From::base>(form, now, base, nullptr, size, p0, p1, p2, p3);
    else
        split_loop<F, From::prediction>(form, now, base, before, size, p0, p1, p2, p3);
}

template <class F>
RL4SYS_INLINE void join_any(const F& form, const unsigned char* const* planes, const float* base, const float* before,
                            std::size_t size, float* out) noexcept {
    const unsigned char *p0 = planes[0], *p1 = planes[1];
    const unsigned char *p2 = planes[F::kItem == 4 ? 2 : 0], *p3 = planes[F::kItem == 4 ? 3 : 0];
    if (!base)
        join_loop<F, From::nothing>(form, p0, p1, p2, p3, nullptr, nullptr, size, out);
    else if (!before)
        join_loop<F, From::base>(form, p0, p1, p2, p3, base, nullptr, size, out);
    else
        join_loop<F, From::prediction>(form, p0, p1, p2, p3, base, before, size, out);
}

#define RL4SYS_LOOPS(LEVEL, TARGET)                                                                                           \
    TARGET std::size_t differences_##LEVEL(const float* a, const float* b, std::size_t size, std::uint8_t* flags) noexcept {  \
        return differences_loop(a, b, size, flags);                                                                           \
    }                                                                                                                         \
    template <class F>                                                                                                        \
    TARGET void split_##LEVEL(const F& form, const float* now, const float* base, const float* before, std::size_t size,      \
                              unsigned char* planes) noexcept {                                                               \
        split_any(form, now, base, before, size, planes);                                                                     \
    }                                                                                                                         \
    template <class F>                                                                                                        \
    TARGET void join_##LEVEL(const F& form, const unsigned char* const* planes, const float* base, const float* before,       \
                             std::size_t size, float* out) noexcept {                                                         \
        join_any(form, planes, base, before, size, out);                                                                      \
    }

RL4SYS_LOOPS(base, )
#if RL4SYS_X86
RL4SYS_LOOPS(v3, __attribute__((target("avx2"))))
RL4SYS_LOOPS(v4, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#define RL4SYS_CHOSEN(LOOP, ...)                      \
    switch (support::cpu_level()) {                   \
        case support::CpuLevel::v4: return LOOP##_v4(__VA_ARGS__); \
        case support::CpuLevel::v3: return LOOP##_v3(__VA_ARGS__); \
        case support::CpuLevel::base: break;          \
    }                                                 \
    return LOOP##_base(__VA_ARGS__)
#else
#define RL4SYS_CHOSEN(LOOP, ...) return LOOP##_base(__VA_ARGS__)
#endif

}  // namespace

std::size_t find_differences(const float* a, const float* b, std::size_t size, std::uint8_t* flags) noexcept {
    RL4SYS_CHOSEN(differences, a, b, size, flags);
}

template <class F>
void split_planes(const F& form, const float* now, const float* base, const float* before, std::size_t size,
                  unsigned char* planes) noexcept {
    RL4SYS_CHOSEN(split, form, now, base, before, size, planes);
}

template <class F>
void join_planes(const F& form, const unsigned char* const* planes, const float* base, const float* before, std::size_t size,
                 float* out) noexcept {
    RL4SYS_CHOSEN(join, form, planes, base, before, size, out);
}

#define RL4SYS_FORM(F)                                                                                                  \
    template void split_planes<F>(const F&, const float*, const float*, const float*, std::size_t, unsigned char*) noexcept; \
    template void join_planes<F>(const F&, const unsigned char* const*, const float*, const float*, std::size_t, float*) noexcept;
RL4SYS_FORM(Fp32)
RL4SYS_FORM(Bf16)
RL4SYS_FORM(Grid)

}  // namespace rl4sys::weights
