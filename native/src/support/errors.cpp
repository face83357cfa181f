#include "support/errors.h"

#include <cstddef>

namespace rl4sys {
namespace {

constexpr const char* kNames[] = {
    "frames",     "too_large", "magic",        "version",   "feature",  "kind",     "checksum", "malformed", "dtype",   "shape",
    "spec",       "range",     "direction",    "starting",  "no_session", "fenced", "conflict", "expired",   "gap",     "equivocation",
    "forbidden",  "identity",  "mismatch",     "config",    "quota",    "failed",   "upstream", "closing",   "internal",
};
constexpr std::size_t kCount = sizeof kNames / sizeof *kNames;
static_assert(kCount == static_cast<std::size_t>(Refusal::internal) + 1);

}  // namespace

const char* name_of(Refusal code) noexcept { return kNames[static_cast<std::size_t>(code)]; }

Refusal refusal_of(const std::string& name) noexcept {
    for (std::size_t n = 0; n < kCount; ++n)
        if (name == kNames[n]) return static_cast<Refusal>(n);
    return Refusal::malformed;
}

ProtocolError::ProtocolError(Refusal its_code, const std::string& text)
    : std::runtime_error(std::string(name_of(its_code)) + ": " + text), code(its_code), detail(text) {}

}  // namespace rl4sys
