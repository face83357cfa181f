// The instruction sets of this processor, for loops that are compiled for several of them.
#pragma once

#if defined(__x86_64__)
#define RL4SYS_X86 1
#else
#define RL4SYS_X86 0
#endif

/// Of a function or lambda that becomes a part of `run_fastest`.
#define RL4SYS_INLINE __attribute__((always_inline))

namespace rl4sys::support {

/// The microarchitecture levels of the x86-64 ABI; other processors have `base`.
enum class CpuLevel { base, v3, v4 };

inline CpuLevel cpu_level() noexcept {
#if RL4SYS_X86
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) return CpuLevel::base;
    const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
    return v4 ? CpuLevel::v4 : CpuLevel::v3;
#else
    return CpuLevel::base;
#endif
}

#if RL4SYS_X86
template <class Loop>
__attribute__((target("avx2"))) void run_v3(const Loop& loop) noexcept {
    loop();
}

template <class Loop>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void run_v4(const Loop& loop) noexcept {
    loop();
}
#endif

/// Calls `loop`, a lambda with RL4SYS_INLINE, compiled for the level of this processor.
template <class Loop>
void run_fastest(const Loop& loop) noexcept {
#if RL4SYS_X86
    if (cpu_level() == CpuLevel::v4) return run_v4(loop);
    if (cpu_level() == CpuLevel::v3) return run_v3(loop);
#endif
    loop();
}

}  // namespace rl4sys::support
