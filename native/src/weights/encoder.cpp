#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "weights/coder.h"
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
            cost += used * (std::log2(static_cast<double>(size) / used) + kSymbolTable.open_bits[fine][symbol]) + kSymbolBits;
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
    for (std::size_t i = 0; i < excess.size(); ++i) {
        const std::uint8_t symbol = plane[i] = coarser(plane[i], fine);
        widths[i] = kSymbolTable.open_bits[fine][symbol];
        values[i] = excess[i] - static_cast<std::uint32_t>(kSymbolTable.least[fine][symbol]);
    }
    out.byte(static_cast<std::uint8_t>(kSymbols + fine));
    write_plane(out, support::bytes_of(plane.data(), plane.size()), zstd);
    out.fields(values, widths);
}

void write_positions(BitWriter& out, const Positions& positions, std::size_t size) {
    out.byte(kSparse);
    out.varint(positions.size());
    out.gaps(positions, size);
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
    write_positions(out, positions, excess.size());
    for (std::uint32_t& value : values) --value;
    write_magnitudes(out, values, depth - 1, zstd);
}

// The bits of a sparse diff, estimated from a sample.
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

// A sum of logarithms to the base 2, with one logarithm for 30 factors from 1 to 2^32 together.
class LogSum {
public:
    void add(double factor) noexcept {
        product_ *= factor;
        if (++factors_ % 30 == 0) sum();
    }
    double sum() noexcept { return sum_ += std::log2(std::exchange(product_, 1.0)); }

private:
    double sum_ = 0.0, product_ = 1.0;
    unsigned factors_ = 0;
};

// Estimates from a sample if planes get shorter when each change is encoded as its difference from the last change.
template <class F>
bool prediction_helps(const Start<F>& start, const float* next) {
    const std::size_t step = 1 + start.size / kQuickSample;
    LogSum plain, predicted;
    std::size_t sampled = 0;
    for (std::size_t i = 0; i < start.size; i += step, ++sampled) {
        const auto change_of = [&](const float* from, const float* to) {
            return wrap<F>(wrapped_difference(start.form.integer(to[i], i), start.form.integer(from[i], i)));
        };
        const std::int32_t change = change_of(start.base, next), last = change_of(start.before, start.base);
        plain.add(1.0 + std::abs(static_cast<double>(change)));
        predicted.add(1.0 + std::abs(static_cast<double>(wrap<F>(wrapped_difference(change, last)))));
    }
    const double constant = 2.0 * static_cast<double>(sampled);
    return predicted.sum() + constant < kPredictionGain * (plain.sum() + constant);
}

template <class F>
void write_planes(BitWriter& out, const Start<F>& start, const float* next, support::Zstd& zstd) {
    const std::size_t size = start.size;
    refuse_bits(doubtful_bits<F>(next, size) | doubtful_bits<F>(start.base, size) | doubtful_bits<F>(start.before, size));
    std::unique_ptr<char[]> large;
    char* const planes = zstd.scratch(kItem<F> * size, large);
    split_planes(start, next, reinterpret_cast<unsigned char*>(planes));
    out.room(kItem<F> * (kLongestVarint + std::max(zstd.bound(size), size)));
    for (std::size_t b = 0; b < kItem<F>; ++b) write_plane(out, {planes + b * size, size}, zstd);
}

template <class F>
Diff dense_diff(BitWriter&& head, Start<F> start, const float* next, support::Zstd& zstd) {
    if (start.before && (start.size < kLeastPredicted || !prediction_helps(start, next))) start.before = nullptr;
    Diff out{Encoding::planes, std::move(head), start.before != nullptr};
    write_planes(out.payload, start, next, zstd);
    return out;
}

// `flags` says which elements change, `count` of them.
template <class F>
Diff encode_part(BitWriter&& head, Start<F> start, const float* next, const std::uint8_t* flags, std::size_t count,
                 support::Zstd& zstd) {
    const auto changed = static_cast<double>(count), all = static_cast<double>(start.size);
    if (changed > kSparseShareOfUnits * all) return dense_diff(std::move(head), start, next, zstd);
    const Positions positions = positions_of(flags, start.size, count);
    Magnitudes magnitudes(count);
    std::vector<std::uint8_t> negative(count);
    std::int32_t doubtful = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t at = positions[i];
        doubtful |= doubtful_bits<F>(start.base + at, 1) | doubtful_bits<F>(next + at, 1);
        const std::int32_t value = wrap<F>(wrapped_difference(start.form.integer(next[at], at), start.form.integer(start.base[at], at)));
        const std::uint32_t minus = 0 - (static_cast<std::uint32_t>(value) >> 31);  // without a branch, as signs are random
        negative[i] = minus & 1;
        magnitudes[i] = (static_cast<std::uint32_t>(value) ^ minus) - minus;
    }
    refuse_bits(doubtful);
    if (!is_sparse(magnitudes, start.size)) return dense_diff(std::move(head), start, next, zstd);
    std::optional<Diff> dense;
    if (changed > kSurelySparse * all) {
        BitWriter other;
        other.bytes(head.view());
        dense = dense_diff(std::move(other), start, next, zstd);
        const auto bytes = static_cast<double>(dense->payload.size() - head.size());
        if (bytes < estimated_bits(positions, magnitudes, start.size) / 8.0) return std::move(*dense);
    }
    Diff sparse{Encoding::sparse, std::move(head), false};
    sparse.payload.room(4 * count);  // at once, as it would be copied when it grows
    write_positions(sparse.payload, positions, start.size);
    sparse.payload.flags(negative.data(), negative.size());
    for (std::uint32_t& magnitude : magnitudes) --magnitude;
    write_magnitudes(sparse.payload, magnitudes, kMaxDepth, zstd);
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
Diff encode_with(const Start<F>& given, const float* next, std::string_view prefix, support::Zstd& zstd) {
    const std::size_t size = given.size;
    std::vector<float> storage;
    const Start<F> start = canonical(given, storage);
    const std::unique_ptr<std::uint8_t[]> flags(new std::uint8_t[size]);
    const std::size_t count = find_differences(start.base, next, size, flags.get());
    if (!count && (!size || start.base == given.base || !std::memcmp(given.base, next, size * sizeof(float)))) return {};
    const std::vector<std::uint32_t> blocks = busy_blocks(flags.get(), size, count);
    BitWriter head;
    head.bytes(prefix);
    head.varint(blocks.size());
    if (blocks.empty()) return encode_part(std::move(head), start, next, flags.get(), count, zstd);
    head.gaps(blocks, (size + kBlock - 1) / kBlock);
    const auto part_flags = gather<std::uint8_t>(flags.get(), size, blocks);
    return encode_part<F>(std::move(head), Part<F>(start, blocks), gather(next, size, blocks).data(), part_flags.data(), count, zstd);
}

template <class F>
Diff raw_diff(const F& form, const float* base, const float* next, std::size_t size) {
    refuse_bits(doubtful_bits<F>(base, size) | doubtful_bits<F>(next, size));
    Diff out{Encoding::raw, {}, false};
    char* words = out.payload.room(size * kItem<F>);
    for (std::size_t i = 0; i < size; ++i, words += kItem<F>)
        support::store(words, static_cast<typename F::Word>(wrapped_difference(form.integer(next[i], i), form.integer(base[i], i))));
    out.payload.advance(size * kItem<F>);
    return out;
}

template <class F>
std::optional<BitWriter> snapshot_planes(const F& form, const float* flat, std::size_t size, support::Zstd& zstd) {
    const auto planes = [&](const float* values, std::size_t count) {
        BitWriter out;
        write_planes(out, Start<F>{form, nullptr, nullptr, count}, values, zstd);
        const bool pays = static_cast<double>(out.size()) <= kSnapshotGain * kItem<F> * static_cast<double>(count);
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
    Diff out = with_form(form, [&](auto its) { return encode_with(Start<decltype(its)>{its, base, before, size}, next, prefix, zstd); });
    if (out.encoding == Encoding::unchanged || out.payload.size() < size * item_bytes_of(form.dtype)) return out;
    return with_words(form.dtype, [&](auto words) { return raw_diff(words, base, next, size); });
}

std::optional<BitWriter> encode_snapshot_planes(const float* flat, std::size_t size, WireDtype dtype, support::Zstd& zstd) {
    return with_words(dtype, [&](auto form) { return snapshot_planes(form, flat, size, zstd); });
}

}  // namespace rl4sys::weights
