#include "policy/kernels.h"

// kernels.inc has the functions, once for each instruction set, in a namespace of its own.
#if RL4SYS_X86
#if defined(__clang__)
#define RL4SYS_TARGET_V3 _Pragma("clang attribute push(__attribute__((target(\"avx2,fma,bmi2\"))), apply_to = function)")
#define RL4SYS_TARGET_V4 \
    _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2\"))), apply_to = function)")
#define RL4SYS_TARGET_END _Pragma("clang attribute pop")
#else
#define RL4SYS_TARGET_V3 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma,bmi2\")")
#define RL4SYS_TARGET_V4 _Pragma("GCC push_options") _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2\")")
#define RL4SYS_TARGET_END _Pragma("GCC pop_options")
#endif
#endif

#define RL4SYS_NAMESPACE base
#define RL4SYS_VECTOR_BYTES 16
#include "policy/kernels.inc"

#if RL4SYS_X86
#define RL4SYS_NAMESPACE v3
#define RL4SYS_VECTOR_BYTES 32
RL4SYS_TARGET_V3
#include "policy/kernels.inc"
RL4SYS_TARGET_END

#define RL4SYS_NAMESPACE v4
#define RL4SYS_VECTOR_BYTES 64
RL4SYS_TARGET_V4
#include "policy/kernels.inc"
RL4SYS_TARGET_END
#endif

namespace rl4sys::policy {

const Kernels& kernels_of([[maybe_unused]] support::CpuLevel level) noexcept {
#if RL4SYS_X86
    switch (level) {
        case support::CpuLevel::v4: return v4::kKernels;
        case support::CpuLevel::v3: return v3::kKernels;
        case support::CpuLevel::base: break;
    }
#endif
    return base::kKernels;
}

}  // namespace rl4sys::policy
