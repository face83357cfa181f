// Weight updates: their header, and how an actor gets from one version to the next (weights/header.py, state.py, others.py).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weights/coder.h"
#include "weights/tensors.h"

namespace rl4sys::weights {

constexpr std::size_t kHeaderBytes = 72;

struct Header {
    std::string policy_id;
    std::uint64_t generation = 0, base_version = 0, new_version = 0;
    Encoding encoding = Encoding::snapshot;
    WireDtype dtype = WireDtype::fp32;
    std::uint16_t chunk = 0, chunks = 1;
    std::uint32_t elements = 0, payload_bytes = 0;
    std::uint64_t payload_hash = 0, state_hash = 0;
    bool predicted = false, others = false;
};

/// Reads the 72 bytes of a header, which can come from an untrusted peer. Throws ProtocolError.
Header read_header(std::string_view data);

/// Returns the version that an update leads to, after a check of its digest. `held` is the version that the actor holds, and
/// `before` the one before it; null for none. Throws WeightsError; nothing was changed then.
Snapshot apply_update(const Header& head, std::string_view payload, const Snapshot* held, const TensorSizes& tensors,
                      const Snapshot* before, support::Zstd& zstd);

/// True if `tag` is the tag of this version under the secret key of the actor's Welcome.
bool is_tag_of(std::string_view tag, std::string_view key, std::string_view policy_id, const Snapshot& snapshot);

}  // namespace rl4sys::weights
