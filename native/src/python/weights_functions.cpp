// The coder of weights. Its functions release the GIL, except for small policies.
#include <optional>

#include "python/parts.h"
#include "support/errors.h"
#include "weights/coder.h"

namespace rl4sys::python {
namespace {

constexpr std::size_t kFewElements = 4096;  // coded in less time than threads need to take the GIL in turn

// The GIL is released for the life of this object, if there is much to do.
class Unlocked {
public:
    explicit Unlocked(std::size_t elements) : state_(elements > kFewElements ? PyEval_SaveThread() : nullptr) {}
    Unlocked(const Unlocked&) = delete;
    ~Unlocked() {
        if (state_) take_gil(state_);
    }

private:
    PyThreadState* const state_;
};

std::optional<Buffer> optional_buffer(PyObject* object) {
    return object == Py_None ? std::nullopt : std::optional<Buffer>(std::in_place, object);
}

const float* floats(std::string_view bytes) noexcept { return reinterpret_cast<const float*>(bytes.data()); }

// The states of a diff, and the mapping of their weights to integers.
struct States {
    States(PyObject* its_base, PyObject* its_before, int dtype, PyObject* its_exponents)
        : base_(its_base), before_(optional_buffer(its_before)), exponents_(optional_buffer(its_exponents)) {
        size = base_.bytes().size() / sizeof(float);
        if ((before_ && before_->bytes().size() != base_.bytes().size()) || (exponents_ && exponents_->bytes().size() != size))
            throw WeightsError("the states have different sizes", "size");
        base = floats(base_.bytes());
        before = before_ ? floats(before_->bytes()) : nullptr;
        form.dtype = static_cast<weights::WireDtype>(dtype);
        form.exponents = exponents_ ? reinterpret_cast<const std::int8_t*>(exponents_->bytes().data()) : nullptr;
        if (form.dtype == weights::WireDtype::grid && !form.exponents) throw WeightsError("a grid needs exponents", "dtype");
    }

    std::size_t size;
    const float* base;
    const float* before;
    weights::Form form;

private:
    Buffer base_;
    std::optional<Buffer> before_, exponents_;
};

// A new bytes object for a state, and its memory, which nobody else sees so far.
std::pair<Ref, float*> new_state(std::size_t size) {
    Ref out = checked(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size * sizeof(float))));
    return {std::move(out), reinterpret_cast<float*>(PyBytes_AsString(out.get()))};
}

PyObject* encode_diff(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *base, *next, *before, *exponents, *prefix;
        int dtype;
        if (!PyArg_ParseTuple(arguments, "OOOiOO", &base, &next, &before, &dtype, &exponents, &prefix)) throw PythonError{};
        const States states(base, before, dtype, exponents);
        const Buffer to(next), head(prefix);
        if (to.bytes().size() != states.size * sizeof(float)) throw WeightsError("the states have different sizes", "size");
        support::Zstd& zstd = thread_zstd();
        weights::Diff diff;
        {
            const Unlocked unlocked(states.size);
            diff = weights::encode_diff(states.base, floats(to.bytes()), states.size, states.form, states.before, head.bytes(),
                                        zstd);
        }
        const Ref payload = bytes_object(diff.payload.view());
        PyObject* const predicted = diff.predicted ? Py_True : Py_False;
        return checked(Py_BuildValue("(iOO)", static_cast<int>(diff.encoding), payload.get(), predicted));
    });
}

PyObject* decode_diff(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *coded, *base, *before, *exponents;
        int encoding, dtype;
        if (!PyArg_ParseTuple(arguments, "iOOOiO", &encoding, &coded, &base, &before, &dtype, &exponents)) throw PythonError{};
        const States states(base, before, dtype, exponents);
        const Buffer payload(coded);
        support::Zstd& zstd = thread_zstd();
        auto [state, out] = new_state(states.size);
        {
            const Unlocked unlocked(states.size);
            weights::decode_diff(static_cast<weights::Encoding>(encoding), payload.bytes(), states.base, states.size, states.form,
                                 states.before, zstd, out);
        }
        return std::move(state);
    });
}

PyObject* encode_snapshot_planes(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject* object;
        int dtype;
        if (!PyArg_ParseTuple(arguments, "Oi", &object, &dtype)) throw PythonError{};
        const Buffer flat(object);
        const std::size_t size = flat.bytes().size() / sizeof(float);
        support::Zstd& zstd = thread_zstd();
        std::optional<weights::BitWriter> out;
        {
            const Unlocked unlocked(size);
            out = weights::encode_snapshot_planes(floats(flat.bytes()), size, static_cast<weights::WireDtype>(dtype), zstd);
        }
        return out ? bytes_object(out->view()) : Ref(Py_NewRef(Py_None));
    });
}

PyObject* decode_snapshot_planes(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject* coded;
        Py_ssize_t size;
        int dtype;
        if (!PyArg_ParseTuple(arguments, "Oni", &coded, &size, &dtype)) throw PythonError{};
        const Buffer payload(coded);
        support::Zstd& zstd = thread_zstd();
        auto [state, out] = new_state(static_cast<std::size_t>(size));
        {
            const Unlocked unlocked(static_cast<std::size_t>(size));
            weights::decode_snapshot(weights::Encoding::snapshot_planes, payload.bytes(), static_cast<std::size_t>(size),
                                     static_cast<weights::WireDtype>(dtype), zstd, out);
        }
        return std::move(state);
    });
}

PyMethodDef kMethods[] = {
    {"encode_diff", encode_diff, METH_VARARGS, "The encoding, the payload, and whether it is predicted."},
    {"decode_diff", decode_diff, METH_VARARGS, "The bytes of the state to which a diff leads."},
    {"encode_snapshot_planes", encode_snapshot_planes, METH_VARARGS, "The planes of a whole state, or None if they are long."},
    {"decode_snapshot_planes", decode_snapshot_planes, METH_VARARGS, "The bytes of a whole state."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void add_weights(PyObject* module) {
    if (PyModule_AddFunctions(module, kMethods) < 0) throw PythonError{};
}

}  // namespace rl4sys::python
