// Packed bits and bytes of weight updates: readers that accept exactly the encodings that the writers make (weights/bits.py).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rl4sys::weights {

/// Throws the WeightsError for a malformed payload.
[[noreturn]] void bad(const std::string& problem);

/// The parameter of the Golomb-Rice code for a number of positions among `size` elements.
int rice_width(std::uint64_t positions, std::uint64_t size) noexcept;

/// A reader of a payload. Each method reads from where the last one stopped, and throws WeightsError `payload`.
class BitReader {
public:
    explicit BitReader(std::string_view data) : data_(data) {}

    std::string_view take(std::uint64_t count);
    std::uint8_t byte() { return static_cast<std::uint8_t>(take(1)[0]); }
    /// A number from 0 to `high`, in bytes of 7 bits.
    std::uint64_t varint(std::uint64_t high);
    /// `count` bits, lowest first. The bits after the last one are 0.
    std::string_view flags(std::uint64_t count);
    /// `count` ascending positions below `size`.
    std::vector<std::uint32_t> gaps(std::uint64_t count, std::uint64_t size);
    /// Adds to each value with a width above 0 the next number of so many bits.
    void add_fields(const std::vector<std::uint8_t>& widths, std::vector<std::uint64_t>& values);
    /// Throws if bytes are left over.
    void end() const;

private:
    std::string_view data_;
    std::size_t at_ = 0;
};

inline bool bit(std::string_view flags, std::size_t index) noexcept {
    return static_cast<unsigned char>(flags[index >> 3]) >> (index & 7) & 1;
}

}  // namespace rl4sys::weights
