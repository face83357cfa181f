#include "weights/coder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "support/bytes.h"
#include "support/errors.h"
#include "weights/bits.h"

namespace rl4sys::weights {
namespace {

constexpr std::size_t kBlock = 1024;
constexpr int kMaxDepth = 6, kMaxFine = 3;
constexpr std::uint8_t kZero = 0, kSparse = 1, kSymbols = 2;
constexpr std::uint64_t kMaxMagnitude = std::uint64_t{1} << 31;

// ---- integers that stand for weights. Neighbouring weights have neighbouring integers; arithmetic wraps.

std::int32_t ordered(std::int32_t bits) noexcept { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }
std::int32_t bits_of(float x) noexcept { return support::load<std::int32_t>(&x); }
float float_of(std::int32_t bits) noexcept { return support::load<float>(&bits); }
std::int32_t wrapped_sum(std::int32_t a, std::int32_t b) noexcept {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}
std::int32_t wrapped_difference(std::int32_t a, std::int32_t b) noexcept {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) - static_cast<std::uint32_t>(b));
}

struct Fp32 {
    static constexpr std::size_t kItem = 4;
    std::int32_t integer(float x, std::size_t) const noexcept { return ordered(bits_of(x)); }
    float flat(std::int32_t n, std::size_t) const noexcept { return float_of(ordered(n)); }
    static std::int32_t wrap(std::int32_t n) noexcept { return n; }
};

struct Bf16 {
    static constexpr std::size_t kItem = 2;
    std::int32_t integer(float x, std::size_t) const noexcept { return ordered(bits_of(x)) >> 16; }
    float flat(std::int32_t n, std::size_t) const noexcept {
        const std::int32_t upper = n ^ ((n >> 31) & 0x7FFF);
        return float_of(static_cast<std::int32_t>(static_cast<std::uint32_t>(upper) << 16));
    }
    static std::int32_t wrap(std::int32_t n) noexcept { return static_cast<std::int16_t>(n); }
};

// Each element has a power of two as its step. A tie rounds to even.
struct Grid {
    static constexpr std::size_t kItem = 4;
    const std::int8_t* exponents;  // of each element
    std::int32_t integer(float x, std::size_t i) const noexcept {
        constexpr double kMost = 2147483647.0;
        return static_cast<std::int32_t>(std::min(std::max(std::nearbyint(std::ldexp(double{x}, -exponents[i])), -kMost), kMost));
    }
    float flat(std::int32_t n, std::size_t i) const noexcept { return static_cast<float>(std::ldexp(static_cast<double>(n), exponents[i])); }
    static std::int32_t wrap(std::int32_t n) noexcept { return n; }
};

// ---- integers in few bytes

// A plane of `size` bytes. Plain bytes are not copied; others go to `storage`.
std::string_view plane(BitReader& reader, std::size_t size, support::Zstd& zstd, std::string& storage) {
    const std::uint64_t length = reader.varint(size);
    if (!length) return reader.take(size);
    storage.resize(size);
    if (!zstd.expand(reader.take(length), storage.data(), size)) bad("a plane cannot be decompressed");
    return storage;
}

struct Symbols {
    std::uint8_t open_bits[kMaxFine + 1][256];
    std::int64_t least[kMaxFine + 1][256];  // the lowest magnitude of a symbol; -1: it has none

    Symbols() noexcept {
        for (int fine = 0; fine <= kMaxFine; ++fine) {
            std::fill_n(open_bits[fine], 256, std::uint8_t{0});
            std::fill_n(least[fine], 256, std::int64_t{-1});
            least[fine][0] = 0;
            for (int index = 0; index < 255; ++index) {
                const int exponent = index >> fine;
                if (exponent > 40) continue;  // beyond the largest magnitude
                std::uint64_t base = static_cast<std::uint64_t>(1 << fine | (index & ((1 << fine) - 1))) << exponent;
                if (base % (std::uint64_t{1} << fine)) continue;
                base >>= fine;
                if (base > kMaxMagnitude) continue;
                least[fine][index + 1] = static_cast<std::int64_t>(base);
                open_bits[fine][index + 1] = static_cast<std::uint8_t>(exponent > fine ? exponent - fine : 0);
            }
        }
    }
};

const Symbols kSymbolTable;

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
    std::string storage;
    const std::string_view symbols = plane(reader, size, zstd, storage);
    std::vector<std::uint8_t> widths(size);
    for (std::size_t i = 0; i < size; ++i) {
        const auto symbol = static_cast<unsigned char>(symbols[i]);
        const std::int64_t least = kSymbolTable.least[fine][symbol];
        if (least < 0) bad("a symbol stands for no magnitude");
        out[i] = static_cast<std::uint64_t>(least);
        widths[i] = kSymbolTable.open_bits[fine][symbol];
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
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t at = positions[i], magnitude = static_cast<std::uint32_t>(excess[i] + 1);
        const auto value = static_cast<std::int32_t>(bit(negative, i) ? 0 - magnitude : magnitude);
        out[at] = form.flat(F::wrap(wrapped_sum(form.integer(base[at], at), value)), at);
    }
}

// The planes of `size` integers, lowest byte first.
template <std::size_t Item>
class Planes {
public:
    Planes(BitReader& reader, std::size_t size, support::Zstd& zstd) {
        for (std::size_t b = 0; b < Item; ++b) planes_[b] = reinterpret_cast<const unsigned char*>(plane(reader, size, zstd, storage_[b]).data());
        reader.end();
    }

    std::int32_t operator[](std::size_t i) const noexcept {
        if constexpr (Item == 2) {
            const std::uint32_t digits = planes_[0][i] | std::uint32_t{planes_[1][i]} << 8;
            return static_cast<std::int16_t>(digits - 0x8080U);
        } else {
            const std::uint32_t digits = planes_[0][i] | std::uint32_t{planes_[1][i]} << 8 | std::uint32_t{planes_[2][i]} << 16 |
                                         std::uint32_t{planes_[3][i]} << 24;
            return static_cast<std::int32_t>(digits - 0x80808080U);
        }
    }

private:
    std::string storage_[Item];
    const unsigned char* planes_[Item];
};

template <class F>
void decode_planes(BitReader& reader, const float* base, std::size_t size, const F& form, const float* before, support::Zstd& zstd,
                   float* out) {
    const Planes<F::kItem> differences(reader, size, zstd);
    if (before) {
        for (std::size_t i = 0; i < size; ++i) {
            const std::int32_t now = form.integer(base[i], i), last = wrapped_difference(now, form.integer(before[i], i));
            out[i] = form.flat(F::wrap(wrapped_sum(now, wrapped_sum(differences[i], last))), i);
        }
    } else {
        for (std::size_t i = 0; i < size; ++i) out[i] = form.flat(F::wrap(wrapped_sum(form.integer(base[i], i), differences[i])), i);
    }
}

template <class F>
void decode_raw(BitReader& reader, const float* base, std::size_t size, const F& form, float* out) {
    const std::string_view words = reader.take(size * F::kItem);
    reader.end();
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
    std::size_t inner = 0;
    for (const std::uint32_t block : blocks) inner += std::min(kBlock, size - block * kBlock);
    std::vector<float> own(inner), last(before ? inner : 0);
    std::vector<std::int8_t> exponents;
    std::size_t at = 0;
    for (const std::uint32_t block : blocks) {
        const std::size_t first = block * kBlock, count = std::min(kBlock, size - first);
        std::copy_n(base + first, count, own.data() + at);
        if (before) std::copy_n(before + first, count, last.data() + at);
        if constexpr (std::is_same_v<F, Grid>) exponents.insert(exponents.end(), form.exponents + first, form.exponents + first + count);
        at += count;
    }
    std::vector<float> decoded(inner);
    F part = form;
    if constexpr (std::is_same_v<F, Grid>) part.exponents = exponents.data();
    decode_part(code, reader, own.data(), inner, part, before ? last.data() : nullptr, zstd, decoded.data());
    std::copy_n(base, size, out);
    at = 0;
    for (const std::uint32_t block : blocks) {
        const std::size_t first = block * kBlock, count = std::min(kBlock, size - first);
        std::copy_n(decoded.data() + at, count, out + first);
        at += count;
    }
}

template <class F>
void decode_with(Encoding code, BitReader& reader, const float* base, std::size_t size, const F& form, const float* before,
                 support::Zstd& zstd, float* out) {
    const std::uint64_t blocks = (size + kBlock - 1) / kBlock, count = reader.varint(blocks);
    if (!count) return decode_part(code, reader, base, size, form, before, zstd, out);
    decode_blocks(code, reader, reader.gaps(count, blocks), base, size, form, before, zstd, out);
}

void require_bf16(const float* values, std::size_t size) {
    std::uint32_t low = 0;
    for (std::size_t i = 0; i < size; ++i) low |= static_cast<std::uint32_t>(bits_of(values[i]));
    if (low & 0xFFFF) throw WeightsError("the state has values that bf16 cannot represent", "dtype");
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
    if (form.dtype == WireDtype::bf16) {
        require_bf16(base, size);
        if (before) require_bf16(before, size);
    }
    if (code == Encoding::raw) return decode_raw(reader, base, size, Bf16{}, out);
    switch (form.dtype) {
        case WireDtype::fp32: return decode_with(code, reader, base, size, Fp32{}, before, zstd, out);
        case WireDtype::bf16: return decode_with(code, reader, base, size, Bf16{}, before, zstd, out);
        case WireDtype::grid: {
            std::vector<std::int8_t> exponents;
            exponents.reserve(size);
            for (std::size_t t = 0; t < form.sizes.size(); ++t) exponents.insert(exponents.end(), form.sizes[t], form.steps[t]);
            const Grid grid{exponents.data()};
            std::vector<float> canonical(size);
            for (std::size_t i = 0; i < size; ++i) canonical[i] = grid.flat(grid.integer(base[i], i), i);
            return decode_with(code, reader, canonical.data(), size, grid, before, zstd, out);
        }
    }
}

void decode_snapshot(Encoding code, std::string_view payload, std::size_t size, WireDtype dtype, support::Zstd& zstd, float* out) {
    if (code == Encoding::snapshot_planes) {
        BitReader reader(payload);
        if (dtype == WireDtype::bf16) {
            const Planes<2> words(reader, size, zstd);
            for (std::size_t i = 0; i < size; ++i) out[i] = Bf16{}.flat(words[i], i);
        } else {
            const Planes<4> words(reader, size, zstd);
            for (std::size_t i = 0; i < size; ++i) out[i] = Fp32{}.flat(words[i], i);
        }
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
