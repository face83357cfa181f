#include "weights/coder.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>
#include <type_traits>

#include "support/bytes.h"
#include "support/errors.h"
#include "weights/bits.h"
#include "weights/planes.h"

namespace rl4sys::weights {
namespace {

// A plane of `size` bytes. Plain bytes are not copied; others go to `storage`.
const char* plane(BitReader& reader, std::size_t size, support::Zstd& zstd, char* storage) {
    const std::uint64_t length = reader.varint(size);
    if (!length) return reader.take(size).data();
    if (!zstd.expand(reader.take(length), storage, size)) throw WeightsError("a plane cannot be decompressed", "payload");
    return storage;
}

std::vector<std::uint64_t> magnitudes(BitReader& reader, std::size_t size, int depth, support::Zstd& zstd) {
    std::vector<std::uint64_t> out(size);
    const std::uint8_t mode = reader.byte();
    if (mode == kZero) return out;
    if (mode == kSparse) {
        if (!depth) bad("magnitudes are nested too deep");
        const std::size_t count = static_cast<std::size_t>(reader.varint(size));
        const std::vector<std::uint32_t> positions = reader.gaps(count, size);
        const std::vector<std::uint64_t> inner = magnitudes(reader, count, depth - 1, zstd);
        for (std::size_t i = 0; i < count; ++i) out[positions[i]] = inner[i] + 1;
        return out;
    }
    const int fine = mode - kSymbols;
    if (fine > kMaxFine) bad("unknown mode " + std::to_string(mode));
    std::unique_ptr<char[]> large;
    const char* const symbols = plane(reader, size, zstd, zstd.scratch(size, large));
    std::vector<std::uint8_t> widths(size);
    const Symbols& table = symbol_table();
    for (std::size_t i = 0; i < size; ++i) {
        const auto symbol = static_cast<unsigned char>(symbols[i]);
        const std::int64_t least = table.least[fine][symbol];
        if (least < 0) bad("a symbol stands for no magnitude");
        out[i] = static_cast<std::uint64_t>(least);
        widths[i] = table.open_bits[fine][symbol];
    }
    reader.add_fields(widths, out);
    return out;
}

template <class F>
void decode_sparse(BitReader& reader, const float* base, std::size_t size, const F& form, support::Zstd& zstd, float* out) {
    if (out != base) std::copy_n(base, size, out);
    const std::uint8_t mode = reader.byte();
    if (mode == kZero) return reader.end();
    if (mode != kSparse) bad("unknown mode " + std::to_string(mode));
    const std::size_t count = static_cast<std::size_t>(reader.varint(size));
    const std::vector<std::uint32_t> positions = reader.gaps(count, size);
    const std::string_view negative = reader.flags(count);
    const std::vector<std::uint64_t> excess = magnitudes(reader, count, kMaxDepth, zstd);
    reader.end();
    std::int32_t doubtful = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t at = positions[i];
        doubtful |= doubtful_bits<F>(base + at, 1);
        const auto magnitude = static_cast<std::uint32_t>(excess[i] + 1);
        const auto value = static_cast<std::int32_t>(bit(negative, i) ? 0 - magnitude : magnitude);
        out[at] = form.flat(F::wrap(wrapped_sum(form.integer(base[at], at), value)), at);
    }
    refuse_bits(doubtful);
}

// Whole states have no base.
template <class F>
void decode_planes(BitReader& reader, const float* base, std::size_t size, const F& form, const float* before, support::Zstd& zstd,
                   float* out) {
    std::unique_ptr<char[]> large;
    char* const storage = zstd.scratch(F::kItem * size, large);
    const unsigned char* planes[F::kItem];
    for (std::size_t b = 0; b < F::kItem; ++b)
        planes[b] = reinterpret_cast<const unsigned char*>(plane(reader, size, zstd, storage + b * size));
    reader.end();
    refuse_bits(doubtful_bits<F>(base, size) | doubtful_bits<F>(before, size));
    join_planes(form, planes, base, before, size, out);
}

template <class F>
void decode_raw(BitReader& reader, const float* base, std::size_t size, const F& form, float* out) {
    const std::string_view words = reader.take(size * F::kItem);
    reader.end();
    refuse_bits(doubtful_bits<F>(base, size));
    for (std::size_t i = 0; i < size; ++i) {
        std::int32_t difference;
        if constexpr (F::kItem == 2)
            difference = support::load<std::int16_t>(words.data() + 2 * i);
        else
            difference = support::load<std::int32_t>(words.data() + 4 * i);
        out[i] = form.flat(F::wrap(wrapped_sum(form.integer(base[i], i), difference)), i);
    }
}

template <class F>
void decode_part(Encoding code, BitReader& reader, const float* base, std::size_t size, const F& form, const float* before,
                 support::Zstd& zstd, float* out) {
    if (code == Encoding::planes) return decode_planes(reader, base, size, form, before, zstd, out);
    if (before) bad("payload and header disagree on the need for the version before the base");
    decode_sparse(reader, base, size, form, zstd, out);
}

// Only the blocks of `kBlock` elements that the payload lists have changed.
template <class F>
void decode_blocks(Encoding code, BitReader& reader, const std::vector<std::uint32_t>& blocks, const float* base, std::size_t size,
                   const F& form, const float* before, support::Zstd& zstd, float* out) {
    std::vector<float> own, last;
    std::vector<std::int8_t> exponents;
    gather(base, size, blocks, own);
    if (before) gather(before, size, blocks, last);
    F part = form;
    if constexpr (std::is_same_v<F, Grid>) {
        gather(form.exponents, size, blocks, exponents);
        part.exponents = exponents.data();
    }
    std::vector<float> decoded(own.size());
    decode_part(code, reader, own.data(), own.size(), part, before ? last.data() : nullptr, zstd, decoded.data());
    std::copy_n(base, size, out);
    const float* from = decoded.data();
    for (const std::uint32_t block : blocks) {
        const std::size_t first = block * kBlock, count = std::min(kBlock, size - first);
        std::copy_n(from, count, out + first);
        from += count;
    }
}

template <class F>
void decode_with(Encoding code, BitReader& reader, const float* base, std::size_t size, const F& form, const float* before,
                 support::Zstd& zstd, float* out) {
    const std::uint64_t blocks = (size + kBlock - 1) / kBlock, count = reader.varint(blocks);
    if (!count) return decode_part(code, reader, base, size, form, before, zstd, out);
    decode_blocks(code, reader, reader.gaps(count, blocks), base, size, form, before, zstd, out);
}

}  // namespace

void decode_diff(Encoding code, std::string_view payload, const float* base, std::size_t size, const Form& form, const float* before,
                 support::Zstd& zstd, float* out) {
    BitReader reader(payload);
    if (code == Encoding::unchanged) {
        reader.end();
        std::copy_n(base, size, out);
        return;
    }
    if (code == Encoding::raw && form.dtype != WireDtype::bf16) return decode_raw(reader, base, size, Fp32{}, out);
    if (code == Encoding::raw) return decode_raw(reader, base, size, Bf16{}, out);
    switch (form.dtype) {
        case WireDtype::fp32: return decode_with(code, reader, base, size, Fp32{}, before, zstd, out);
        case WireDtype::bf16: return decode_with(code, reader, base, size, Bf16{}, before, zstd, out);
        case WireDtype::grid: {
            const Grid grid{form.exponents};
            std::vector<float> canonical(size);
            for (std::size_t i = 0; i < size; ++i) canonical[i] = grid.flat(grid.integer(base[i], i), i);
            return decode_with(code, reader, canonical.data(), size, grid, before, zstd, out);
        }
    }
}

void decode_snapshot(Encoding code, std::string_view payload, std::size_t size, WireDtype dtype, support::Zstd& zstd, float* out) {
    if (code == Encoding::snapshot_planes) {
        BitReader reader(payload);
        if (dtype == WireDtype::bf16)
            decode_planes(reader, nullptr, size, Bf16{}, nullptr, zstd, out);
        else
            decode_planes(reader, nullptr, size, Fp32{}, nullptr, zstd, out);
        return;
    }
    if (payload.size() != item_bytes_of(dtype) * size)
        bad("a snapshot has " + std::to_string(payload.size()) + " bytes for " + std::to_string(size) + " elements");
    if (dtype == WireDtype::bf16) {
        for (std::size_t i = 0; i < size; ++i)
            out[i] = float_of(static_cast<std::int32_t>(std::uint32_t{support::load<std::uint16_t>(payload.data() + 2 * i)} << 16));
    } else if (size) {
        std::memcpy(out, payload.data(), 4 * size);
    }
}

}  // namespace rl4sys::weights
