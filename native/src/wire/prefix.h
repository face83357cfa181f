// The 48-byte prefix of every message (docs/explanation/wire.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rl4sys::wire {

using Frames = std::vector<std::string_view>;

constexpr std::size_t kPrefixBytes = 48;
constexpr std::size_t kMaxBodyFrames = 255;
constexpr std::uint8_t kMajor = 1, kMinor = 0;

struct Prefix {
    std::uint8_t minor = kMinor;
    std::uint8_t kind = 0;
    std::uint64_t seq = 0;
    std::uint32_t count = 0;
};

/// Checks the first frame of a message against the other frames. Throws ProtocolError with the code of the first broken rule.
Prefix read_prefix(const Frames& frames, bool verify = true);

/// Returns the first frame of a message: prefix with checksum, then `header`. `hashes` has the xxh3-64 of each frame of `body`.
/// Throws ProtocolError `frames`.
std::string seal(const Prefix& prefix, std::string_view header, const Frames& body, const std::vector<std::uint64_t>& hashes);

}  // namespace rl4sys::wire
