// The coder of weights. Its functions release the GIL, except for small policies.
#include "python/parts.h"
#include "support/errors.h"
#include "weights/encoder.h"

namespace rl4sys::python {
namespace {

constexpr std::size_t kFewElements = 4096;  // coded in less time than threads need to take the GIL in turn

using Optional = std::optional<Buffer>;

// The states of a diff, and the mapping of their weights to integers.
struct States {
    States(Buffer its_base, Optional its_before, int dtype, Optional its_exponents)
        : base_(std::move(its_base)), before_(std::move(its_before)), exponents_(std::move(its_exponents)) {
        size = base_.bytes().size() / sizeof(float);
        check(before_, base_.bytes().size());
        check(exponents_, size);
        base = base_.as<float>();
        before = before_ ? before_->as<float>() : nullptr;
        form.dtype = static_cast<weights::WireDtype>(dtype);
        form.exponents = exponents_ ? exponents_->as<std::int8_t>() : nullptr;
        if (form.dtype == weights::WireDtype::grid && !form.exponents) throw WeightsError("a grid needs exponents", "dtype");
    }

    static void check(const Optional& state, std::size_t bytes) {
        if (state && state->bytes().size() != bytes) throw WeightsError("the states have different sizes", "size");
    }

    std::size_t size;
    const float* base;
    const float* before;
    weights::Form form;

private:
    const Buffer base_;
    const Optional before_, exponents_;
};

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
    const States states(std::move(base), std::move(before), dtype, std::move(exponents));
    if (next.bytes().size() != states.size * sizeof(float)) throw WeightsError("the states have different sizes", "size");
    const weights::Diff diff = coded(states.size, [&](support::Zstd& zstd) {
        return weights::encode_diff(states.base, next.as<float>(), states.size, states.form, states.before, prefix.bytes(), zstd);
    });
    const Ref payload = bytes_object(diff.payload.view());
    return checked(Py_BuildValue("(iOO)", static_cast<int>(diff.encoding), payload.get(), diff.predicted ? Py_True : Py_False));
}

Ref decode_diff(int encoding, Buffer payload, Buffer base, Optional before, int dtype, Optional exponents) {
    const States states(std::move(base), std::move(before), dtype, std::move(exponents));
    return decoded(states.size, [&](support::Zstd& zstd, float* out) {
        weights::decode_diff(static_cast<weights::Encoding>(encoding), payload.bytes(), states.base, states.size, states.form,
                             states.before, zstd, out);
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

PyMethodDef kFunctions[] = {
    function<encode_diff>("encode_diff", "The encoding, the payload, and whether it is predicted."),
    function<decode_diff>("decode_diff", "The bytes of the state to which a diff leads."),
    function<encode_snapshot_planes>("encode_snapshot_planes", "The planes of a whole state, or None if they are long."),
    function<decode_snapshot_planes>("decode_snapshot_planes", "The bytes of a whole state."),
    {},
};

}  // namespace

void add_weights(PyObject* module) {
    if (PyModule_AddFunctions(module, kFunctions) < 0) throw PythonError{};
}

}  // namespace rl4sys::python
