// The instruction sets of this processor, for kernels that are chosen at run time.
#pragma once

#if defined(__x86_64__)
#define RL4SYS_X86 1
#else
#define RL4SYS_X86 0
#endif

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

}  // namespace rl4sys::support
