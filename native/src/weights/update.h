// Weight updates: their header, and how an actor gets from one version to the next (weights/header.py, state.py, others.py).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weights/coder.h"
#include "weights/tensors.h"

namespace rl4sys::weights {

/// What the coding of weights needs to know of the tensors of a policy.
class TensorSizes {
public:
    explicit TensorSizes(const std::vector<Tensor>& tensors);

    std::vector<std::size_t> sizes;  // of each float32 tensor
    std::vector<bool> exact;         // of each float32 tensor
    std::size_t elements = 0;        // of all float32 tensors
    std::size_t other_bytes = 0;     // of the buffer with the other tensors, with its padding

    /// Checks the buffer of the tensors that are not float32. Throws WeightsError.
    void verify_others(std::string_view others) const;

private:
    std::vector<Tensor> others_;  // in the order of the buffer
};

/// The xxh3-64 of the bytes of `flat` and of `others`, in this order.
std::uint64_t digest_of(const std::vector<float>& flat, std::string_view others) noexcept;

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

}  // namespace rl4sys::weights
