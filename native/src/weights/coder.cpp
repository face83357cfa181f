#include "weights/coder.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "weights/bits.h"
#include "weights/planes.h"

namespace rl4sys::weights {
namespace {

// A plane of `size` bytes. Plain bytes are not copied; others go to `storage`.
const char* plane(BitReader& reader, std::size_t size, support::Zstd& zstd, char* storage) {
    const std::uint64_t length = reader.varint(size);
    if (!length) return reader.take(size).data();
    if (!zstd.expand(reader.take(length), storage, size)) reject("payload", "a plane cannot be decompressed");
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
    if (fine > kMaxFine) bad("unknown mode ", mode);
    std::unique_ptr<char[]> large;
    const char* const symbols = plane(reader, size, zstd, zstd.scratch(size, large));
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
void decode_sparse(BitReader& reader, Start<F> start, support::Zstd& zstd, float* out) {
    std::copy_n(start.base, start.size, out);
    const std::uint8_t mode = reader.byte();
    if (mode == kZero) return reader.end();
    if (mode != kSparse) bad("unknown mode ", mode);
    const std::size_t count = static_cast<std::size_t>(reader.varint(start.size));
    const std::vector<std::uint32_t> positions = reader.gaps(count, start.size);
    const std::string_view negative = reader.flags(count);
    const std::vector<std::uint64_t> excess = magnitudes(reader, count, kMaxDepth, zstd);
    reader.end();
    std::int32_t doubtful = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t at = positions[i];
        doubtful |= doubtful_bits<F>(start.base + at, 1);
        const auto magnitude = static_cast<std::uint32_t>(excess[i] + 1);
        const auto value = static_cast<std::int32_t>(bit(negative, i) ? 0 - magnitude : magnitude);
        out[at] = start.form.flat(wrap<F>(wrapped_sum(start.form.integer(start.base[at], at), value)), at);
    }
    refuse_bits(doubtful);
}

template <class F>
void decode_planes(BitReader& reader, Start<F> start, support::Zstd& zstd, float* out) {
    std::unique_ptr<char[]> large;
    char* const storage = zstd.scratch(kItem<F> * start.size, large);
    const unsigned char* planes[kItem<F>];
    for (std::size_t b = 0; b < kItem<F>; ++b)
        planes[b] = reinterpret_cast<const unsigned char*>(plane(reader, start.size, zstd, storage + b * start.size));
    reader.end();
    refuse_bits(doubtful_bits<F>(start.base, start.size) | doubtful_bits<F>(start.before, start.size));
    join_planes(start, planes, out);
}

template <class F>
void decode_raw(BitReader& reader, const F& form, const float* base, std::size_t size, float* out) {
    const char* word = reader.take(size * kItem<F>).data();
    reader.end();
    refuse_bits(doubtful_bits<F>(base, size));
    for (std::size_t i = 0; i < size; ++i, word += kItem<F>)
        out[i] = form.flat(wrap<F>(wrapped_sum(form.integer(base[i], i), support::load<typename F::Word>(word))), i);
}

template <class F>
void decode_part(Encoding code, BitReader& reader, Start<F> start, support::Zstd& zstd, float* out) {
    if (code == Encoding::planes) return decode_planes(reader, start, zstd, out);
    if (start.before) bad("payload and header disagree on the need for the version before the base");
    decode_sparse(reader, start, zstd, out);
}

template <class F>
void decode_blocks(Encoding code, BitReader& reader, Start<F> start, support::Zstd& zstd, float* out) {
    const std::uint64_t all = (start.size + kBlock - 1) / kBlock, count = reader.varint(all);
    if (!count) return decode_part(code, reader, start, zstd, out);
    // Only these blocks have changed.
    const std::vector<std::uint32_t> blocks = reader.gaps(count, all);
    const Part<F> part(start, blocks);
    std::vector<float> decoded(part.size);
    decode_part<F>(code, reader, part, zstd, decoded.data());
    std::copy_n(start.base, start.size, out);
    const float* from = decoded.data();
    for (const std::uint32_t block : blocks) {
        const std::size_t first = block * kBlock, size = std::min(kBlock, start.size - first);
        std::copy_n(from, size, out + first);
        from += size;
    }
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
    if (code == Encoding::raw) return with_words(form.dtype, [&](auto words) { decode_raw(reader, words, base, size, out); });
    with_form(form, [&](auto its) {
        std::vector<float> storage;
        decode_blocks(code, reader, canonical(Start<decltype(its)>{its, base, before, size}, storage), zstd, out);
    });
}

void decode_snapshot(Encoding code, std::string_view payload, std::size_t size, WireDtype dtype, support::Zstd& zstd, float* out) {
    if (code == Encoding::snapshot_planes) {
        BitReader reader(payload);
        return with_words(dtype, [&](auto form) { decode_planes(reader, Start<decltype(form)>{form, nullptr, nullptr, size}, zstd, out); });
    }
    if (payload.size() != item_bytes_of(dtype) * size) bad("a snapshot has ", payload.size(), " bytes for ", size, " elements");
    if (dtype == WireDtype::bf16) {
        for (std::size_t i = 0; i < size; ++i)
            out[i] = float_of(static_cast<std::int32_t>(std::uint32_t{support::load<std::uint16_t>(payload.data() + 2 * i)} << 16));
    } else {
        payload.copy(reinterpret_cast<char*>(out), payload.size());
    }
}

}  // namespace rl4sys::weights
