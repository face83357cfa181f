// Packed bits and bytes of weight updates: a writer, and a reader that accepts exactly what the writer makes (weights/bits.py).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/errors.h"

namespace rl4sys::weights {

/// Throws the WeightsError for a malformed payload.
template <class... Parts>
[[noreturn]] void bad(const Parts&... parts) {
    reject("payload", "not a diff of this policy: ", parts...);
}

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

/// A writer of a payload. Each method appends.
class BitWriter {
public:
    std::size_t size() const noexcept { return size_; }
    std::string_view view() const noexcept { return {data_.get(), size_}; }

    /// Room for `count` bytes after the last one; `advance` appends the first of them. Throws std::bad_alloc.
    char* room(std::size_t count);
    void advance(std::size_t count) noexcept { size_ += count; }
    void bytes(std::string_view data);
    void byte(std::uint8_t value);
    void varint(std::uint64_t value);
    /// `count` bits from bytes that are 0 or 1.
    void flags(const std::uint8_t* bits, std::size_t count);
    /// Ascending positions below `size`.
    void gaps(const std::vector<std::uint32_t>& positions, std::uint64_t size);
    /// The lowest bits of each value, as many as its width says, at most 32.
    void fields(const std::vector<std::uint32_t>& values, const std::vector<std::uint8_t>& widths);

private:
    std::unique_ptr<char[]> data_;  // not filled with zeros, as a string would be
    std::size_t size_ = 0, capacity_ = 0;
};

inline bool bit(std::string_view flags, std::size_t index) noexcept {
    return static_cast<unsigned char>(flags[index >> 3]) >> (index & 7) & 1;
}

}  // namespace rl4sys::weights
