// The coder of weights. Its functions release the GIL, except for small policies.
#include "python/parts.h"
#include "support/errors.h"
#include "weights/coder.h"

namespace rl4sys::python {
namespace {

constexpr std::size_t kFewElements = 4096;  // coded in less time than threads need to take the GIL in turn

using Optional = std::optional<Buffer>;

template <class T>
const T* numbers(const Optional& buffer) noexcept {
    return buffer ? buffer->as<T>() : nullptr;
}

// The number of weights of a state, after a check that the other buffers fit.
std::size_t size_of(const Buffer& base, const Optional& before, const Optional& exponents) {
    const std::size_t bytes = base.bytes().size(), size = bytes / sizeof(float);
    if ((before && before->bytes().size() != bytes) || (exponents && exponents->bytes().size() != size))
        throw WeightsError("the states have different sizes", "size");
    return size;
}

// The mapping of weights to integers.
weights::Form form_of(int dtype, const Optional& exponents) {
    const weights::Form out{static_cast<weights::WireDtype>(dtype), numbers<std::int8_t>(exponents)};
    if (out.dtype == weights::WireDtype::grid && !out.exponents) throw WeightsError("a grid needs exponents", "dtype");
    return out;
}

// Calls `f` with a compressor, without the GIL if there is much to do.
template <class F>
auto coded(std::size_t size, F f) {
    support::Zstd& zstd = thread_zstd();
    const Unlocked unlocked(size > kFewElements);
    return f(zstd);
}

// The bytes of a new state, which `f` writes to memory that nobody else sees so far.
template <class F>
Ref decoded(std::size_t size, F f) {
    Ref out = checked(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size * sizeof(float))));
    auto* const memory = reinterpret_cast<float*>(PyBytes_AsString(out.get()));
    coded(size, [&](support::Zstd& zstd) { f(zstd, memory); });
    return out;
}

Ref encode_diff(Buffer base, Buffer next, Optional before, int dtype, Optional exponents, Buffer prefix) {
    const std::size_t size = size_of(base, before, exponents);
    const weights::Form form = form_of(dtype, exponents);
    if (next.bytes().size() != size * sizeof(float)) throw WeightsError("the states have different sizes", "size");
    const weights::Diff diff = coded(size, [&](support::Zstd& zstd) {
        return weights::encode_diff(base.as<float>(), next.as<float>(), size, form, numbers<float>(before), prefix.bytes(), zstd);
    });
    const Ref payload = bytes_object(diff.payload.view());
    return checked(Py_BuildValue("(iOO)", static_cast<int>(diff.encoding), payload.get(), diff.predicted ? Py_True : Py_False));
}

Ref decode_diff(int encoding, Buffer payload, Buffer base, Optional before, int dtype, Optional exponents) {
    const std::size_t size = size_of(base, before, exponents);
    const weights::Form form = form_of(dtype, exponents);
    return decoded(size, [&](support::Zstd& zstd, float* out) {
        const auto code = static_cast<weights::Encoding>(encoding);
        weights::decode_diff(code, payload.bytes(), base.as<float>(), size, form, numbers<float>(before), zstd, out);
    });
}

Ref encode_snapshot_planes(Buffer flat, int dtype) {
    const std::size_t size = flat.bytes().size() / sizeof(float);
    const auto out = coded(size, [&](support::Zstd& zstd) {
        return weights::encode_snapshot_planes(flat.as<float>(), size, static_cast<weights::WireDtype>(dtype), zstd);
    });
    return out ? bytes_object(out->view()) : none();
}

Ref decode_snapshot_planes(Buffer payload, std::size_t size, int dtype) {
    return decoded(size, [&](support::Zstd& zstd, float* out) {
        const auto form = static_cast<weights::WireDtype>(dtype);
        weights::decode_snapshot(weights::Encoding::snapshot_planes, payload.bytes(), size, form, zstd, out);
    });
}

}  // namespace

PyMethodDef weights_functions[] = {
    function<encode_diff>("encode_diff"), function<decode_diff>("decode_diff"),
    function<encode_snapshot_planes>("encode_snapshot_planes"), function<decode_snapshot_planes>("decode_snapshot_planes"),
    {},
};

}  // namespace rl4sys::python
