#include "weights/encoder.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>

#include "weights/planes.h"

namespace rl4sys::weights {
namespace {

constexpr double kSparseShare = 0.45, kUnitShare = 0.75, kSparseShareOfUnits = 0.6, kSurelySparse = 0.2, kBusyShare = 0.75;
constexpr double kPlaneGain = 0.98, kPredictionGain = 0.98, kSnapshotGain = 0.6, kSymbolBits = 4.0;
constexpr std::size_t kLeastPredicted = 64, kSample = 1 << 12, kQuickSample = 1 << 10, kSnapshotSample = 1024;
constexpr std::size_t kLongestVarint = 5;

using Positions = std::vector<std::uint32_t>;
using Magnitudes = std::vector<std::uint32_t>;

Positions positions_of(const std::uint8_t* flags, std::size_t size, std::size_t count) {
    Positions out(count + 1);  // the last one absorbs the writes that do not count
    std::uint32_t* at = out.data();
    std::size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        if (!support::load64(flags + i)) continue;
        for (std::size_t j = i; j < i + 8; at += flags[j++]) *at = static_cast<std::uint32_t>(j);
    }
    for (; i < size; at += flags[i++]) *at = static_cast<std::uint32_t>(i);
    out.resize(count);
    return out;
}

bool is_sparse(const Magnitudes& magnitudes, std::size_t size) {
    const auto count = static_cast<double>(magnitudes.size()), all = static_cast<double>(size);
    if (count <= kSparseShare * all) return true;
    const auto units = static_cast<double>(std::count(magnitudes.begin(), magnitudes.end(), 1U));
    return count <= kSparseShareOfUnits * all && units >= kUnitShare * count;
}

// The symbol of a magnitude above 0.
std::uint8_t symbol_of(std::uint32_t magnitude, int fine) noexcept {
    const int exponent = 31 - __builtin_clz(magnitude);
    const std::uint32_t scaled = exponent >= fine ? magnitude >> (exponent - fine) : magnitude << (fine - exponent);
    const std::uint32_t fraction = scaled & ((1U << fine) - 1);
    return static_cast<std::uint8_t>((static_cast<std::uint32_t>(exponent) << fine | fraction) + 1);
}

std::uint8_t coarser(std::uint8_t symbol, int fine) noexcept {
    return symbol ? static_cast<std::uint8_t>(((symbol - 1) >> (kMaxFine - fine)) + 1) : std::uint8_t{0};
}

void write_plane(BitWriter& out, std::string_view plane, support::Zstd& zstd) {
    // The frame is written where it will be if its length has as many bytes as the longest possible one.
    char* const begin = out.room(kLongestVarint + std::max(zstd.bound(plane.size()), plane.size()));
    const std::size_t size = zstd.compress(plane, begin + kLongestVarint, false);
    if (static_cast<double>(size) < kPlaneGain * static_cast<double>(plane.size())) {
        out.varint(size);
        std::memmove(out.room(0), begin + kLongestVarint, size);
        out.advance(size);
    } else {
        out.byte(0);
        out.bytes(plane);
    }
}

int best_fine(const std::uint32_t* counts, std::size_t size) {
    int best = 0;
    double least = 0.0;
    for (int fine = 0; fine <= kMaxFine; ++fine) {
        double folded[256] = {};
        for (int symbol = 0; symbol < 256; ++symbol) folded[coarser(static_cast<std::uint8_t>(symbol), fine)] += counts[symbol];
        double cost = 0.0;
        for (int symbol = 0; symbol < 256; ++symbol) {
            const double used = folded[symbol];
            if (used <= 0.0) continue;
            cost += used * (std::log2(static_cast<double>(size) / used) + symbol_table().open_bits[fine][symbol]) + kSymbolBits;
        }
        if (fine && cost >= least) continue;
        best = fine;
        least = cost;
    }
    return best;
}

void write_symbols(BitWriter& out, const Magnitudes& excess, support::Zstd& zstd) {
    std::vector<std::uint8_t> plane(excess.size());
    std::uint32_t counts[256] = {};
    for (std::size_t i = 0; i < excess.size(); ++i) {
        plane[i] = excess[i] ? symbol_of(excess[i], kMaxFine) : std::uint8_t{0};
        ++counts[plane[i]];
    }
    const int fine = best_fine(counts, plane.size());
    std::vector<std::uint32_t> values(excess.size());
    std::vector<std::uint8_t> widths(excess.size());
    const Symbols& table = symbol_table();
    for (std::size_t i = 0; i < excess.size(); ++i) {
        const std::uint8_t symbol = plane[i] = coarser(plane[i], fine);
        widths[i] = table.open_bits[fine][symbol];
        values[i] = excess[i] - static_cast<std::uint32_t>(table.least[fine][symbol]);
    }
    out.byte(static_cast<std::uint8_t>(kSymbols + fine));
    write_plane(out, support::bytes_of(plane.data(), plane.size()), zstd);
    out.fields(values, widths);
}

void write_magnitudes(BitWriter& out, const Magnitudes& excess, int depth, support::Zstd& zstd) {
    Positions positions;
    Magnitudes values;
    for (std::size_t i = 0; i < excess.size(); ++i) {
        if (!excess[i]) continue;
        positions.push_back(static_cast<std::uint32_t>(i));
        values.push_back(excess[i]);
    }
    if (positions.empty()) return out.byte(kZero);
    if (!depth || !is_sparse(values, excess.size())) return write_symbols(out, excess, zstd);
    out.byte(kSparse);
    out.varint(positions.size());
    out.gaps(positions, excess.size());
    for (std::uint32_t& value : values) --value;
    write_magnitudes(out, values, depth - 1, zstd);
}

// Integers of which some are not 0: their ascending positions, their magnitudes, and whether they are negative.
void write_integers(BitWriter& out, const Positions& positions, Magnitudes magnitudes, const std::vector<std::uint8_t>& negative,
                    std::size_t size, support::Zstd& zstd) {
    out.byte(kSparse);
    out.varint(positions.size());
    out.gaps(positions, size);
    out.flags(negative.data(), negative.size());
    for (std::uint32_t& magnitude : magnitudes) --magnitude;
    write_magnitudes(out, magnitudes, kMaxDepth, zstd);
}

// The bits that `write_integers` would need, estimated from a sample.
double estimated_bits(const Positions& positions, const Magnitudes& magnitudes, std::size_t size) {
    const std::size_t step = 1 + size / kSample, sampled = (size + step - 1) / step;
    double counts[33] = {}, widths = 0.0;
    std::size_t found = 0, next = 0;  // the next position of the sample
    for (std::size_t i = 0; i < positions.size(); ++i) {
        while (next < positions[i]) next += step;
        if (next != positions[i] || !magnitudes[i]) continue;
        const std::uint8_t symbol = symbol_of(magnitudes[i], 0);
        ++counts[symbol];
        widths += symbol;
        ++found;
    }
    counts[0] = static_cast<double>(sampled - found);
    double entropy = static_cast<double>(sampled) * std::log2(static_cast<double>(sampled)), used = 0.0;
    for (const double count : counts) {
        if (count <= 0.0) continue;
        entropy -= count * std::log2(count);
        ++used;
    }
    // The entropy of a sample is too low, by about 1 / (2 ln 2) bits for each symbol.
    return static_cast<double>(step) * (entropy + widths) + used * (kSymbolBits + 0.72 * static_cast<double>(step));
}

// A sum of logarithms to the base 2, with one logarithm for many factors.
class LogSum {
public:
    void add(double factor) noexcept {  // at least 1
        std::uint64_t bits = support::load<std::uint64_t>(&factor);
        whole_ += static_cast<double>(bits >> 52) - 1023.0;
        bits = (bits & 0xFFFFFFFFFFFFFU) | 0x3FF0000000000000U;
        product_ *= support::load<double>(&bits);
        if (++factors_ % 512 == 0) fold();
    }
    double sum() noexcept {
        fold();
        return whole_;
    }

private:
    void fold() noexcept {
        whole_ += std::log2(product_);
        product_ = 1.0;
    }
    double whole_ = 0.0, product_ = 1.0;  // each factor of the product is below 2
    unsigned factors_ = 0;
};

// Estimates from a sample if planes get shorter when each change is encoded as its difference from the last change.
template <class F>
bool prediction_helps(const float* before, const float* base, const float* next, std::size_t size, const F& form) {
    const std::size_t step = 1 + size / kQuickSample;
    LogSum plain, predicted;
    std::size_t sampled = 0;
    for (std::size_t i = 0; i < size; i += step, ++sampled) {
        const std::int32_t was = form.integer(base[i], i);
        const std::int32_t change = F::wrap(wrapped_difference(form.integer(next[i], i), was));
        const std::int32_t last = F::wrap(wrapped_difference(was, form.integer(before[i], i)));
        plain.add(1.0 + std::abs(static_cast<double>(change)));
        predicted.add(1.0 + std::abs(static_cast<double>(F::wrap(wrapped_difference(change, last)))));
    }
    const double constant = 2.0 * static_cast<double>(sampled);
    return predicted.sum() + constant < kPredictionGain * (plain.sum() + constant);
}

// The planes of a diff, or of a whole state if `base` is null.
template <class F>
void write_planes(BitWriter& out, const float* next, const float* base, const float* before, std::size_t size, const F& form,
                  support::Zstd& zstd) {
    refuse_bits(doubtful_bits<F>(next, size) | doubtful_bits<F>(base, size) | doubtful_bits<F>(before, size));
    std::unique_ptr<char[]> large;
    char* const planes = zstd.scratch(F::kItem * size, large);
    split_planes(form, next, base, before, size, reinterpret_cast<unsigned char*>(planes));
    out.room(F::kItem * (size + kLongestVarint));
    for (std::size_t b = 0; b < F::kItem; ++b) write_plane(out, {planes + b * size, size}, zstd);
}

template <class F>
Diff dense_diff(BitWriter&& head, const float* base, const float* next, const float* before, std::size_t size, const F& form,
                support::Zstd& zstd) {
    if (before && (size < kLeastPredicted || !prediction_helps(before, base, next, size, form))) before = nullptr;
    Diff out{Encoding::planes, std::move(head), before != nullptr};
    write_planes(out.payload, next, base, before, size, form, zstd);
    return out;
}

// `flags` says which elements change, `count` of them.
template <class F>
Diff encode_part(BitWriter&& head, const float* base, const float* next, const float* before, std::size_t size, const F& form,
                 const std::uint8_t* flags, std::size_t count, support::Zstd& zstd) {
    const auto changed = static_cast<double>(count), all = static_cast<double>(size);
    if (changed > kSparseShareOfUnits * all) return dense_diff(std::move(head), base, next, before, size, form, zstd);
    const Positions positions = positions_of(flags, size, count);
    Magnitudes magnitudes(count);
    std::vector<std::uint8_t> negative(count);
    std::int32_t doubtful = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t at = positions[i];
        doubtful |= doubtful_bits<F>(base + at, 1) | doubtful_bits<F>(next + at, 1);
        const std::int32_t value = F::wrap(wrapped_difference(form.integer(next[at], at), form.integer(base[at], at)));
        const std::uint32_t minus = 0 - (static_cast<std::uint32_t>(value) >> 31);  // without a branch, as signs are random
        negative[i] = minus & 1;
        magnitudes[i] = (static_cast<std::uint32_t>(value) ^ minus) - minus;
    }
    refuse_bits(doubtful);
    if (!is_sparse(magnitudes, size)) return dense_diff(std::move(head), base, next, before, size, form, zstd);
    std::optional<Diff> dense;
    const std::size_t start = head.size();
    if (changed > kSurelySparse * all) {
        BitWriter other;
        other.bytes(head.view());
        dense = dense_diff(std::move(other), base, next, before, size, form, zstd);
        const auto bytes = static_cast<double>(dense->payload.size() - start);
        if (bytes < estimated_bits(positions, magnitudes, size) / 8.0) return std::move(*dense);
    }
    Diff sparse{Encoding::sparse, std::move(head), false};
    write_integers(sparse.payload, positions, std::move(magnitudes), negative, size, zstd);
    return dense && dense->payload.size() < sparse.payload.size() ? std::move(*dense) : std::move(sparse);
}

// The blocks with a change, if most have none; else no blocks.
std::vector<std::uint32_t> busy_blocks(const std::uint8_t* flags, std::size_t size, std::size_t count) {
    std::vector<std::uint32_t> out;
    const std::size_t blocks = (size + kBlock - 1) / kBlock;
    if (blocks < 2 || !count || static_cast<double>(count) > kBusyShare * static_cast<double>(size)) return out;
    for (std::size_t block = 0; block < blocks; ++block) {
        const std::size_t first = block * kBlock;
        if (std::memchr(flags + first, 1, std::min(kBlock, size - first))) out.push_back(static_cast<std::uint32_t>(block));
    }
    if (static_cast<double>(out.size()) > kBusyShare * static_cast<double>(blocks)) out.clear();
    return out;
}

template <class F>
Diff encode_with(const float* base, const float* next, std::size_t size, const F& form, const float* before,
                 std::string_view prefix, support::Zstd& zstd) {
    using RawForm = std::conditional_t<std::is_same_v<F, Grid>, Fp32, F>;
    const float* canonical = base;
    std::vector<float> storage;
    if constexpr (std::is_same_v<F, Grid>) {
        storage.resize(size);
        for (std::size_t i = 0; i < size; ++i) storage[i] = form.flat(form.integer(base[i], i), i);
        canonical = storage.data();
    }
    const std::unique_ptr<std::uint8_t[]> flags(new std::uint8_t[size]);
    const std::size_t count = find_differences(canonical, next, size, flags.get());
    if (!count && (!size || canonical == base || !std::memcmp(base, next, size * sizeof(float)))) return {};
    const std::vector<std::uint32_t> blocks = busy_blocks(flags.get(), size, count);
    BitWriter head;
    head.bytes(prefix);
    head.varint(blocks.size());
    Diff out;
    if (blocks.empty()) {
        out = encode_part(std::move(head), canonical, next, before, size, form, flags.get(), count, zstd);
    } else {
        head.gaps(blocks, (size + kBlock - 1) / kBlock);
        std::vector<float> inner_base, inner_next, inner_before;
        std::vector<std::uint8_t> inner_flags;
        std::vector<std::int8_t> exponents;
        gather(canonical, size, blocks, inner_base);
        gather(next, size, blocks, inner_next);
        gather(static_cast<const std::uint8_t*>(flags.get()), size, blocks, inner_flags);
        if (before) gather(before, size, blocks, inner_before);
        F part = form;
        if constexpr (std::is_same_v<F, Grid>) {
            gather(form.exponents, size, blocks, exponents);
            part.exponents = exponents.data();
        }
        out = encode_part(std::move(head), inner_base.data(), inner_next.data(), before ? inner_before.data() : nullptr,
                          inner_base.size(), part, inner_flags.data(), count, zstd);
    }
    if (out.payload.size() < size * RawForm::kItem) return out;
    refuse_bits(doubtful_bits<F>(base, size) | doubtful_bits<F>(next, size));
    Diff raw{Encoding::raw, {}, false};
    char* words = raw.payload.room(size * RawForm::kItem);
    const RawForm plain{};
    for (std::size_t i = 0; i < size; ++i, words += RawForm::kItem) {
        const std::int32_t difference = wrapped_difference(plain.integer(next[i], i), plain.integer(base[i], i));
        std::memcpy(words, &difference, RawForm::kItem);
    }
    raw.payload.advance(size * RawForm::kItem);
    return raw;
}

template <class F>
std::optional<BitWriter> snapshot_planes(const float* flat, std::size_t size, support::Zstd& zstd) {
    const auto planes = [&](const float* values, std::size_t count) {
        BitWriter out;
        write_planes(out, values, nullptr, nullptr, count, F{}, zstd);
        const bool pays = static_cast<double>(out.size()) <= kSnapshotGain * F::kItem * static_cast<double>(count);
        return pays ? std::optional<BitWriter>(std::move(out)) : std::nullopt;
    };
    std::vector<float> sample;
    const std::size_t step = 1 + size / kSnapshotSample;
    for (std::size_t i = 0; i < size; i += step) sample.push_back(flat[i]);
    if (!planes(sample.data(), sample.size())) return std::nullopt;
    return planes(flat, size);
}

}  // namespace

Diff encode_diff(const float* base, const float* next, std::size_t size, const Form& form, const float* before,
                 std::string_view prefix, support::Zstd& zstd) {
    switch (form.dtype) {
        case WireDtype::bf16: return encode_with(base, next, size, Bf16{}, before, prefix, zstd);
        case WireDtype::grid: return encode_with(base, next, size, Grid{form.exponents}, before, prefix, zstd);
        case WireDtype::fp32: break;
    }
    return encode_with(base, next, size, Fp32{}, before, prefix, zstd);
}

std::optional<BitWriter> encode_snapshot_planes(const float* flat, std::size_t size, WireDtype dtype, support::Zstd& zstd) {
    return dtype == WireDtype::bf16 ? snapshot_planes<Bf16>(flat, size, zstd) : snapshot_planes<Fp32>(flat, size, zstd);
}

}  // namespace rl4sys::weights
