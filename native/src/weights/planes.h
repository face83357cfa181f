// The loops over all elements of a state, compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights/integers.h"

namespace rl4sys::weights {

/// Sets `flags[i]` to whether the bits of `a[i]` and `b[i]` differ. Returns how many do.
std::size_t find_differences(const float* a, const float* b, std::size_t size, std::uint8_t* flags) noexcept;

/// Writes the planes of the differences from `base` to `now`, lowest bytes first; of whole states if `base` is null. If `before`
/// is not null, the last difference is subtracted.
template <class F>
void split_planes(const F& form, const float* now, const float* base, const float* before, std::size_t size,
                  unsigned char* planes) noexcept;

/// The inverse of `split_planes`.
template <class F>
void join_planes(const F& form, const unsigned char* const* planes, const float* base, const float* before, std::size_t size,
                 float* out) noexcept;

}  // namespace rl4sys::weights
