#include "weights/tensors.h"

#include <algorithm>
#include <cmath>

#include "hash/xxh3.h"
#include "support/bytes.h"
#include "support/errors.h"
#include "wire/value.h"

namespace rl4sys::weights {
namespace {

constexpr std::size_t kWord = 4;

bool all_finite(const Tensor& tensor, const char* at) {
    for (std::size_t i = 0; i < tensor.size(); ++i) {
        if (tensor.dtype == "<f8" && !std::isfinite(support::load<double>(at + 8 * i))) return false;
        if (tensor.dtype == "<f2" && (support::load<std::uint16_t>(at + 2 * i) & 0x7C00) == 0x7C00) return false;
    }
    return true;
}

}  // namespace

TensorSizes::TensorSizes(const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) {
        if (tensor.is_float32()) {
            sizes.push_back(tensor.size());
            exact.push_back(tensor.exact);
            elements += tensor.size();
        } else {
            others_.push_back(tensor);
            other_bytes += tensor.size() * wire::item_bytes(tensor.dtype);
        }
    }
    other_bytes = (other_bytes + kWord - 1) / kWord * kWord;
    std::stable_sort(others_.begin(), others_.end(),
                     [](const Tensor& a, const Tensor& b) { return wire::item_bytes(a.dtype) > wire::item_bytes(b.dtype); });
}

void TensorSizes::verify_others(std::string_view others) const {
    if (others.size() != other_bytes)
        throw WeightsError(std::to_string(others.size()) + " bytes of tensors that are not float32; the policy has " +
                               std::to_string(other_bytes),
                           "size");
    std::size_t at = 0;
    for (const Tensor& tensor : others_) {
        const std::size_t bytes = tensor.size() * wire::item_bytes(tensor.dtype);
        if (!all_finite(tensor, others.data() + at)) throw WeightsError("the tensor " + tensor.name + " is not finite", "finite");
        const std::string_view own = others.substr(at, bytes);
        if (tensor.dtype == "|b1" && std::any_of(own.begin(), own.end(), [](char c) { return static_cast<unsigned char>(c) > 1; }))
            throw WeightsError("the tensor " + tensor.name + " has booleans that are not 0 or 1", "payload");
        at += bytes;
    }
    if (others.find_first_not_of('\0', at) != std::string_view::npos)
        throw WeightsError("the padding of the other tensors is not 0", "payload");
}

std::uint64_t digest_of(const std::vector<float>& flat, std::string_view others) noexcept {
    hash::Xxh3 sum;
    sum.update(flat.data(), flat.size() * sizeof(float));
    sum.update(others);
    return sum.digest();
}

}  // namespace rl4sys::weights
