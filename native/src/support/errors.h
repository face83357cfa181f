// The exceptions inside the library. None of them leaves a function of the C interface.
#pragma once

#include <stdexcept>
#include <string>

namespace rl4sys {

/// The reason for which a message was refused, by its name on the wire (docs/reference/refusals.md).
enum class Refusal {
    frames, too_large, magic, version, feature, kind, checksum, malformed, dtype, shape, spec, range, direction, starting,
    no_session, fenced, conflict, expired, gap, equivocation, forbidden, identity, mismatch, config, quota, failed, upstream,
    closing, internal,
};

const char* name_of(Refusal code) noexcept;

/// The refusal of this name; `malformed` for an unknown name.
Refusal refusal_of(const std::string& name) noexcept;

/// A message that is invalid, or that its sender is not allowed to send.
class ProtocolError : public std::runtime_error {
public:
    ProtocolError(Refusal code, const std::string& detail);

    Refusal code;
    std::string detail;
};

/// A weight update that cannot be applied. `reason` is one of payload, size, gap, digest, finite, dtype.
class WeightsError : public std::runtime_error {
public:
    WeightsError(const std::string& detail, std::string why) : std::runtime_error(detail), reason(std::move(why)) {}

    std::string reason;
};

}  // namespace rl4sys
