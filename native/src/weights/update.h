// Weight updates: their header, and how an actor gets from one version to the next (weights/header.py, state.py, others.py).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weights/coder.h"
#include "weights/tensors.h"

namespace rl4sys::weights {

/// The header of an update as its 72 bytes.
struct Header {
    char magic[4];
    std::uint8_t format;
    bool predicted : 1, others : 1;
    std::uint8_t unknown_flags : 6;
    Encoding encoding;
    WireDtype dtype;
    char policy[8];
    std::uint64_t generation, base_version, new_version;
    std::uint16_t chunk, chunks;
    std::uint32_t elements, payload_bytes, check;
    std::uint64_t payload_hash, state_hash;

    std::string_view policy_id() const noexcept { return {policy, sizeof policy}; }
};
static_assert(sizeof(Header) == 72);

/// Reads the 72 bytes of a header, which can come from an untrusted peer. Throws ProtocolError.
Header read_header(std::string_view data);

/// Returns the version that an update leads to, after a check of its digest. `held` is the version that the actor holds, and
/// `before` the one before it; null for none. Throws WeightsError; nothing was changed then.
Snapshot apply_update(const Header& head, std::string_view payload, const Snapshot* held, const TensorSizes& tensors,
                      const Snapshot* before, support::Zstd& zstd);

/// True if `tag` is the tag of this version under the secret key of the actor's Welcome.
bool is_tag_of(std::string_view tag, std::string_view key, std::string_view policy_id, const Snapshot& snapshot);

}  // namespace rl4sys::weights
