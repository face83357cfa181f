// Encoding of weight payloads: whole states, and exact diffs, with the choices of weights/coder.py.
#pragma once

#include <optional>
#include <string_view>

#include "support/zstd.h"
#include "weights/bits.h"
#include "weights/coder.h"

namespace rl4sys::weights {

/// An encoded diff. If `predicted`, the receiver also needs the state before the base.
struct Diff {
    Encoding encoding = Encoding::unchanged;
    BitWriter payload;
    bool predicted = false;
};

/// The diff from the state `base` to `next`. `before` is the state before `base`, or null. The payload begins with `prefix`,
/// unless the encoding is `raw` or `unchanged`. Throws WeightsError.
Diff encode_diff(const float* base, const float* next, std::size_t size, const Form& form, const float* before,
                 std::string_view prefix, support::Zstd& zstd);

/// The planes of a whole state, if they are much shorter than the state. Throws WeightsError.
std::optional<BitWriter> encode_snapshot_planes(const float* flat, std::size_t size, WireDtype dtype, support::Zstd& zstd);

}  // namespace rl4sys::weights
