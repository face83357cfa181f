#include "weights/bits.h"

#include <cstring>

#include "support/errors.h"

namespace rl4sys::weights {
namespace {

// Up to 64 bits from a byte on, as far as there are bytes.
std::uint64_t word_at(std::string_view data, std::size_t byte) noexcept {
    std::uint64_t out = 0;
    const std::size_t left = data.size() - byte;
    std::memcpy(&out, data.data() + byte, left < 8 ? left : 8);
    return out;
}

}  // namespace

void bad(const std::string& problem) { throw WeightsError("not a diff of this policy: " + problem, "payload"); }

int rice_width(std::uint64_t positions, std::uint64_t size) noexcept {
    const std::uint64_t mean = positions ? 4812 * size / (10'000 * positions) : 0;
    return mean ? 64 - __builtin_clzll(mean) : 0;
}

std::string_view BitReader::take(std::uint64_t count) {
    if (count > data_.size() - at_)
        bad(std::to_string(count) + " bytes are needed at offset " + std::to_string(at_) + " of " + std::to_string(data_.size()) + " bytes");
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
    bad("a number exceeds " + std::to_string(high) + " or is not in its shortest encoding");
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
    std::vector<std::uint32_t> out;
    out.reserve(count);
    std::uint64_t before = 0;  // the bit after the last one
    std::uint64_t found = 0, last = 0;
    for (std::size_t at = 0; at < unary.size(); at += 8) {
        for (std::uint64_t word = word_at(unary, at); word; word &= word - 1) {
            last = 8 * at + static_cast<unsigned>(__builtin_ctzll(word));
            if (++found > count) bad(std::to_string(found) + " positions; expected " + std::to_string(count));
            out.push_back(static_cast<std::uint32_t>((last - before) << width));
            before = last + 1;
        }
    }
    if (found != count || (count && last != bits - 1)) bad(std::to_string(found) + " positions; expected " + std::to_string(count));
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
        if (position >= size) bad("a position is beyond " + std::to_string(size) + " elements");
        gap = static_cast<std::uint32_t>(position++);
    }
    return out;
}

void BitReader::add_fields(const std::vector<std::uint8_t>& widths, std::vector<std::uint64_t>& values) {
    std::uint64_t bits = 0;
    for (const std::uint8_t width : widths) bits += width;
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
    if (at_ != data_.size()) bad(std::to_string(data_.size() - at_) + " bytes are left over");
}

}  // namespace rl4sys::weights
