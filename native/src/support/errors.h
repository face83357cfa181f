// The exceptions inside the library. None of them leaves a function of the C interface.
#pragma once

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace rl4sys {

/// The reason for which a message was refused, by its name on the wire (docs/reference/refusals.md).
enum class Refusal {
    frames, too_large, magic, version, feature, kind, checksum, malformed, dtype, shape, spec, range, direction, starting,
    no_session, fenced, conflict, expired, gap, equivocation, forbidden, identity, mismatch, config, quota, failed, upstream,
    closing, internal,
};

constexpr const char* kRefusals[] = {
    "frames", "too_large", "magic", "version", "feature", "kind", "checksum", "malformed", "dtype", "shape", "spec", "range", "direction",
    "starting", "no_session", "fenced", "conflict", "expired", "gap", "equivocation", "forbidden", "identity", "mismatch", "config", "quota",
    "failed", "upstream", "closing", "internal",
};
static_assert(std::size(kRefusals) == static_cast<std::size_t>(Refusal::internal) + 1);

inline const char* name_of(Refusal code) noexcept { return kRefusals[static_cast<std::size_t>(code)]; }

/// The refusal of this name; `malformed` for an unknown name.
inline Refusal refusal_of(const std::string& name) noexcept {
    const auto* at = std::find(std::begin(kRefusals), std::end(kRefusals), name);
    return at == std::end(kRefusals) ? Refusal::malformed : static_cast<Refusal>(at - kRefusals);
}

/// A message that is invalid, or that its sender is not allowed to send.
class ProtocolError : public std::runtime_error {
public:
    ProtocolError(Refusal its_code, const std::string& text)
        : std::runtime_error(std::string(name_of(its_code)) + ": " + text), code(its_code), detail(text) {}

    Refusal code;
    std::string detail;
};

/// A weight update that cannot be applied. `reason` is one of payload, size, gap, digest, finite, dtype.
class WeightsError : public std::runtime_error {
public:
    WeightsError(const std::string& detail, std::string why) : std::runtime_error(detail), reason(std::move(why)) {}

    std::string reason;
};

/// Texts and numbers as one text.
template <class... Parts>
std::string joined_text(const Parts&... parts) {
    std::string out;
    const auto add = [&](const auto& part) {
        if constexpr (std::is_constructible_v<std::string_view, decltype(part)>)
            out += part;
        else
            out += std::to_string(part);
    };
    (add(parts), ...);
    return out;
}

/// Throws a ProtocolError with the text of these parts.
template <class... Parts>
[[noreturn]] void reject(Refusal code, const Parts&... parts) {
    throw ProtocolError(code, joined_text(parts...));
}

/// Throws a WeightsError with the text of these parts.
template <class... Parts>
[[noreturn]] void reject(const char* reason, const Parts&... parts) {
    throw WeightsError(joined_text(parts...), reason);
}

}  // namespace rl4sys
