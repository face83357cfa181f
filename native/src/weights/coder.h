// Weight payloads: whole states, and exact diffs, with the choices of weights/coder.py (forms.py, integers.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "support/zstd.h"
#include "weights/bits.h"

namespace rl4sys::weights {

enum class Encoding : std::uint8_t { unchanged = 0, sparse = 1, planes = 2, raw = 4, snapshot = 5, snapshot_planes = 6 };

constexpr bool is_encoding(std::uint8_t code) noexcept { return code <= 6 && code != 3; }
constexpr bool is_diff(Encoding code) noexcept { return code < Encoding::snapshot; }

/// The number format in which the float32 elements travel.
enum class WireDtype : std::uint8_t { fp32 = 0, bf16 = 1, grid = 2 };

constexpr std::size_t item_bytes_of(WireDtype dtype) noexcept { return dtype == WireDtype::bf16 ? 2 : 4; }

/// A wire dtype, and for `grid` the exponent of the step of each element.
struct Form {
    WireDtype dtype = WireDtype::fp32;
    const std::int8_t* exponents = nullptr;
};

/// Writes the state that a diff reaches from `base` to `out`, which has as many elements. `before` is the state before `base`
/// if the diff is predicted, else null. Throws WeightsError.
void decode_diff(Encoding code, std::string_view payload, const float* base, std::size_t size, const Form& form, const float* before,
                 support::Zstd& zstd, float* out);

/// Writes a whole state to `out`. Throws WeightsError.
void decode_snapshot(Encoding code, std::string_view payload, std::size_t size, WireDtype dtype, support::Zstd& zstd, float* out);

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
