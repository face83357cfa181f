// The tensors of a policy, and the weights of one version in two buffers.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace rl4sys::weights {

struct Tensor {
    std::string name;
    std::vector<std::uint64_t> shape;
    std::string dtype = "<f4";
    bool exact = false;  // never rounded

    std::size_t size() const noexcept { return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>()); }
    bool is_float32() const noexcept { return dtype == "<f4"; }
};

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

/// The weights of one version.
struct Snapshot {
    std::uint64_t generation = 0, version = 0, digest = 0;
    std::vector<float> flat;  // all float32 tensors, joined in the order of the spec
    std::string others;       // the bytes of the other tensors
};

/// The xxh3-64 of the bytes of `flat` and of `others`, in this order.
std::uint64_t digest_of(const std::vector<float>& flat, std::string_view others) noexcept;

}  // namespace rl4sys::weights
