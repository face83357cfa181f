// BLAKE2b with a key and a personalisation (RFC 7693, and section 2.8 of the BLAKE2 paper for the parameter block).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rl4sys::hash {

/// A keyed hash of bytes that arrive in parts.
class Blake2b {
public:
    /// `key` has at most 64 bytes, `person` at most 16; `size` is the length of the digest, 1 to 64.
    Blake2b(std::string_view key, std::string_view person, std::size_t size) noexcept;
    void update(std::string_view bytes) noexcept;
    std::string digest() noexcept;

private:
    void compress(bool last) noexcept;

    std::array<std::uint64_t, 8> state_;
    std::array<unsigned char, 128> block_{};
    std::size_t filled_ = 0, size_;
    std::uint64_t total_ = 0;
};

}  // namespace rl4sys::hash
