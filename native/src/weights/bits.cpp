#include "weights/bits.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "support/bytes.h"

namespace rl4sys::weights {
namespace {

// Up to 64 bits from a byte on, as far as there are bytes.
std::uint64_t word_at(std::string_view data, std::size_t byte) noexcept {
    std::uint64_t out = 0;
    const std::size_t left = data.size() - byte;
    std::memcpy(&out, data.data() + byte, left < 8 ? left : 8);
    return out;
}

// Collects bits, the lowest first, and writes them in words of 32.
class BitSink {
public:
    explicit BitSink(char* out) noexcept : out_(out) {}

    // At most 32 bits; the ones above `count` are 0.
    void add(std::uint64_t bits, unsigned count) noexcept {
        held_ |= bits << used_;
        used_ += count;
        if (used_ < 32) return;
        support::store(out_, static_cast<std::uint32_t>(held_));
        out_ += 4;
        held_ >>= 32;
        used_ -= 32;
    }
    char* end() noexcept {
        for (; held_ || used_; held_ >>= 8, used_ = used_ > 8 ? used_ - 8 : 0) *out_++ = static_cast<char>(held_);
        return out_;
    }

private:
    char* out_;
    std::uint64_t held_ = 0;
    unsigned used_ = 0;
};

// The bits at `shift` of the next bytes, at most 8.
std::uint64_t eight_bits(const std::uint8_t* bytes, std::size_t count, int shift) noexcept {
    std::uint64_t word = 0;
    if (count >= 8)
        word = support::load64(bytes);
    else
        std::memcpy(&word, bytes, count);
    // No two products meet in one bit, so that nothing is carried: bit 0 of byte i reaches bit 56 + i.
    return ((word >> shift & 0x0101010101010101U) * 0x0102040810204080U) >> 56;
}

// The parameter of the Golomb-Rice code for a number of positions among `size` elements.
int rice_width(std::uint64_t positions, std::uint64_t size) noexcept {
    const std::uint64_t mean = positions ? 4812 * size / (10'000 * positions) : 0;
    return mean ? 64 - __builtin_clzll(mean) : 0;
}

}  // namespace

std::string_view BitReader::take(std::uint64_t count) {
    if (count > data_.size() - at_) bad(count, " bytes are needed at offset ", at_, " of ", data_.size(), " bytes");
    const std::string_view out = data_.substr(at_, count);
    at_ += count;
    return out;
}

std::uint64_t BitReader::varint(std::uint64_t high) {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        const std::uint8_t digit = byte();
        value |= std::uint64_t{digit & 0x7Fu} << shift;
        if (digit < 0x80) {
            if (value > high || (!digit && shift)) break;
            return value;
        }
    }
    bad("a number exceeds ", high, " or is not in its shortest encoding");
}

std::string_view BitReader::flags(std::uint64_t count) {
    const std::string_view out = take((count + 7) / 8);
    if (count % 8 && static_cast<unsigned char>(out.back()) >> (count % 8)) bad("bits are set after the last flag");
    return out;
}

std::vector<std::uint32_t> BitReader::gaps(std::uint64_t count, std::uint64_t size) {
    const int width = rice_width(count, size);
    const std::uint64_t bits = varint(count + (size >> width));
    const std::string_view unary = flags(bits);
    std::vector<std::uint32_t> out(count);
    std::uint64_t found = 0, before = 0;  // the bit after the last one
    const auto miscounted = [&](std::uint64_t positions) { bad(positions, " positions; expected ", count); };
    for (std::size_t at = 0; at < unary.size(); at += 8) {
        for (std::uint64_t word = word_at(unary, at); word; word &= word - 1) {
            const std::uint64_t last = 8 * at + static_cast<unsigned>(__builtin_ctzll(word));
            if (found == count) miscounted(count + 1);
            out[found++] = static_cast<std::uint32_t>((last - before) << width);
            before = last + 1;
        }
    }
    if (found != count || (count && before != bits)) miscounted(found);
    if (width) {
        const std::string_view planes = flags(static_cast<std::uint64_t>(width) * count);
        for (int plane = 0; plane < width; ++plane) {
            const std::size_t first = static_cast<std::size_t>(plane) * count;
            for (std::size_t i = 0; i < count;) {
                // 57 bits fit into a word after a shift by at most 7.
                std::uint64_t word = word_at(planes, (first + i) >> 3) >> ((first + i) & 7);
                const std::size_t end = count - i < 57 ? count : i + 57;
                for (; i < end; ++i, word >>= 1) out[i] |= static_cast<std::uint32_t>(word & 1) << plane;
            }
        }
    }
    std::uint64_t position = 0;
    for (std::uint32_t& gap : out) {
        position += gap;
        if (position >= size) bad("a position is beyond ", size, " elements");
        gap = static_cast<std::uint32_t>(position++);
    }
    return out;
}

void BitReader::add_fields(const std::vector<std::uint8_t>& widths, std::vector<std::uint64_t>& values) {
    const auto bits = std::accumulate(widths.begin(), widths.end(), std::uint64_t{0});
    if (!bits) return;
    const std::string_view data = flags(bits);
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < widths.size(); ++i) {
        const std::uint8_t width = widths[i];
        if (!width) continue;
        values[i] += word_at(data, at >> 3) >> (at & 7) & ((std::uint64_t{1} << width) - 1);
        at += width;
    }
}

void BitReader::end() const {
    if (at_ != data_.size()) bad(data_.size() - at_, " bytes are left over");
}

char* BitWriter::room(std::size_t count) {
    if (count > capacity_ - size_) {
        capacity_ = std::max(size_ + count, capacity_ + capacity_ / 2);
        std::unique_ptr<char[]> larger(new char[capacity_]);
        std::copy_n(data_.get(), size_, larger.get());
        data_ = std::move(larger);
    }
    return data_.get() + size_;
}

void BitWriter::bytes(std::string_view data) {
    data.copy(room(data.size()), data.size());
    size_ += data.size();
}

void BitWriter::byte(std::uint8_t value) {
    *room(1) = static_cast<char>(value);
    ++size_;
}

void BitWriter::varint(std::uint64_t value) {
    for (; value > 0x7F; value >>= 7) byte(static_cast<std::uint8_t>(value | 0x80));
    byte(static_cast<std::uint8_t>(value));
}

void BitWriter::flags(const std::uint8_t* bits, std::size_t count) {
    char* out = room(count / 8 + 1);
    for (std::size_t i = 0; i < count; i += 8) *out++ = static_cast<char>(eight_bits(bits + i, count - i, 0));
    size_ += (count + 7) / 8;
}

void BitWriter::gaps(const std::vector<std::uint32_t>& positions, std::uint64_t size) {
    const std::size_t count = positions.size();
    const int width = rice_width(count, size);
    std::vector<std::uint32_t> gaps(count);
    std::uint64_t bits = count;
    for (std::size_t i = 0; i < count; ++i) {
        gaps[i] = i ? positions[i] - positions[i - 1] - 1 : positions[0];
        bits += gaps[i] >> width;
    }
    varint(bits);
    const std::size_t unary_bytes = static_cast<std::size_t>((bits + 7) / 8);
    char* const unary = room(unary_bytes);
    std::memset(unary, 0, unary_bytes);
    std::uint64_t at = 0;
    for (const std::uint32_t gap : gaps) {
        at += gap >> width;
        unary[at >> 3] = static_cast<char>(static_cast<unsigned char>(unary[at >> 3]) | 1U << (at & 7));
        ++at;
    }
    advance(unary_bytes);
    // The lowest bits of all gaps, then the second bits of all, and so on, without padding between.
    char* const begin = room(static_cast<std::size_t>(width) * count / 8 + 8);
    BitSink sink(begin);
    std::vector<std::uint8_t> low(width ? count : 0);
    for (int plane = 0; plane < width; ++plane) {
        if (plane % 8 == 0)
            for (std::size_t i = 0; i < count; ++i) low[i] = static_cast<std::uint8_t>(gaps[i] >> plane);
        for (std::size_t i = 0; i < count; i += 8)
            sink.add(eight_bits(&low[i], count - i, plane % 8), static_cast<unsigned>(std::min<std::size_t>(count - i, 8)));
    }
    advance(static_cast<std::size_t>(sink.end() - begin));
}

void BitWriter::fields(const std::vector<std::uint32_t>& values, const std::vector<std::uint8_t>& widths) {
    const auto bits = std::accumulate(widths.begin(), widths.end(), std::uint64_t{0});
    char* const begin = room(static_cast<std::size_t>(bits / 8) + 8);
    BitSink sink(begin);
    for (std::size_t i = 0; i < values.size(); ++i) sink.add(values[i], widths[i]);
    advance(static_cast<std::size_t>(sink.end() - begin));
}

}  // namespace rl4sys::weights
