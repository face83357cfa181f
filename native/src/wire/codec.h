// Encoding and decoding of messages, with a check of every field. The kinds and their fields: docs/explanation/wire.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/value.h"

namespace rl4sys::wire {

using Frames = std::vector<std::string_view>;

enum class Kind : std::uint8_t {
    hello = 1, submit, heartbeat, fetch_weights, status_request, bye, operator_command, follow_weights, actor_report,
    welcome = 17, ack, refused, weights_reply, status_reply, beacon, operator_command_done, weights_source,
};

constexpr std::size_t kPrefixBytes = 48;
constexpr std::uint64_t kMaxCount = (std::uint64_t{1} << 63) - 1;

/// A received message. Fields that it leaves out have the type's empty value, or the default of the table of fields.
class Received {
public:
    Kind kind{};
    std::uint64_t first_seq = 0;  // of a Submit
    std::uint32_t count = 0;      // of a Submit
    Frames body;
    Map header;

    std::uint64_t integer(std::string_view field) const noexcept {
        const Value* value = header.find(field);
        return value ? value->whole().value_or(0) : 0;
    }
    std::int64_t lag(std::string_view field) const noexcept { return get<std::int64_t>(field); }
    double number(std::string_view field) const noexcept {
        const auto* x = header.get<double>(field);
        return x ? *x : static_cast<double>(lag(field));
    }
    const std::string& text(std::string_view field) const noexcept { return get<std::string>(field); }
    const std::string& bytes(std::string_view field) const noexcept { return get<Bytes>(field).data; }
    const List& list(std::string_view field) const noexcept { return get<List>(field); }
    const Map& map(std::string_view field) const noexcept { return get<Map>(field); }

private:
    template <class T>
    const T& get(std::string_view field) const noexcept {
        static const T empty{};
        const T* value = header.get<T>(field);
        return value ? *value : empty;
    }
};

/// Decodes and checks a message, which can come from an untrusted peer. Throws ProtocolError with the code of the first rule
/// that is broken. The result refers to the bytes of `frames`.
Received decode(const Frames& frames, std::uint64_t max_bytes = std::uint64_t{1} << 32, bool verify = true);

/// Returns the first frame of a message. `header` has its fields in the order of the table, without first_seq and count.
/// `hashes` has the xxh3-64 of each frame of `body`.
std::string encode(Kind kind, const Map& header, const Frames& body = {}, const std::vector<std::uint64_t>& hashes = {},
                   std::uint64_t first_seq = 0, std::uint32_t count = 0);

}  // namespace rl4sys::wire
