// XXH3 with 64 bits, seed 0, as the xxHash specification describes it (doc/xxhash_spec.md, version 0.2.0).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rl4sys::hash {

/// The hash of one buffer.
std::uint64_t xxh3_64(const void* data, std::size_t size) noexcept;

inline std::uint64_t xxh3_64(std::string_view bytes) noexcept { return xxh3_64(bytes.data(), bytes.size()); }

/// The 64-bit hash of bytes that arrive in parts.
class Xxh3 {
public:
    Xxh3() noexcept;
    void update(const void* data, std::size_t size) noexcept;
    void update(std::string_view bytes) noexcept { update(bytes.data(), bytes.size()); }
    std::uint64_t digest() const noexcept;

private:
    static constexpr std::size_t kBlock = 1024;

    alignas(32) std::array<std::uint64_t, 8> lanes_;
    std::array<unsigned char, 64 + kBlock> buffer_;  // the last stripe before the buffered bytes, then these
    std::size_t buffered_ = 0;
    std::uint64_t total_ = 0;
};

}  // namespace rl4sys::hash
