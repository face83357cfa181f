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

/// The weights of one version.
struct Snapshot {
    std::uint64_t generation = 0, version = 0, digest = 0;
    std::vector<float> flat;  // all float32 tensors, joined in the order of the spec
    std::string others;       // the bytes of the other tensors
};

}  // namespace rl4sys::weights
