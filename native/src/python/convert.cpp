#include "python/convert.h"

namespace rl4sys::python {

Ref bytes_object(std::string_view bytes) {
    return checked(PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
}

namespace {

struct Converter {
    Ref operator()(wire::Nil) const { return none(); }
    Ref operator()(bool flag) const { return checked(PyBool_FromLong(flag)); }
    Ref operator()(std::int64_t n) const { return checked(PyLong_FromLongLong(n)); }
    Ref operator()(std::uint64_t n) const { return checked(PyLong_FromUnsignedLongLong(n)); }
    Ref operator()(double x) const { return checked(PyFloat_FromDouble(x)); }
    Ref operator()(const std::string& text) const {
        return checked(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
    }
    Ref operator()(const wire::Bytes& bytes) const { return bytes_object(bytes.data); }
    Ref operator()(const wire::Map& map) const { return to_python(map); }
    Ref operator()(const wire::List& list) const {
        return list_of(list.size(), [&](std::size_t n) { return to_python(list[n]); });
    }
    // (dtype, shape or None for a scalar, bytes): the caller makes an array of it if it needs one.
    Ref operator()(const wire::Array& array) const {
        const Ref sizes = list_of(array.shape.size(), [&](std::size_t n) { return (*this)(array.shape[n]); });
        const Ref shape = array.scalar ? none() : checked(PyList_AsTuple(sizes.get()));
        const Ref dtype = (*this)(array.dtype), data = bytes_object(array.data);
        return checked(PyTuple_Pack(3, dtype.get(), shape.get(), data.get()));
    }
};

// Calls `f` with each object of a sequence.
template <class F>
void each_of(PyObject* sequence, F f) {
    const Ref items = checked(PySequence_List(sequence));
    for (Py_ssize_t n = 0; n < PyList_Size(items.get()); ++n) f(PyList_GetItem(items.get(), n));
}

}  // namespace

Ref to_python(const wire::Value& value) { return std::visit(Converter{}, value.data); }

Ref to_python(const wire::Map& map) {
    Ref out = checked(PyDict_New());
    for (const auto& [key, item] : map.items) {
        const Ref name = to_python(wire::Value(key)), value = to_python(item);
        if (PyDict_SetItem(out.get(), name.get(), value.get()) < 0) throw PythonError{};
    }
    return out;
}

std::string_view text_of(PyObject* object) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &size);
    if (!text) throw PythonError{};
    return {text, static_cast<std::size_t>(size)};
}

wire::Map map_from_python(PyObject* object) {
    wire::Map out;
    const Ref items = checked(PyMapping_Items(object));
    each_of(items.get(), [&](PyObject* item) {
        out.set(std::string(text_of(PyTuple_GetItem(item, 0))), from_python(PyTuple_GetItem(item, 1)));
    });
    return out;
}

std::vector<Buffer> buffers_of(PyObject* sequence) {
    std::vector<Buffer> out;
    each_of(sequence, [&](PyObject* item) { out.emplace_back(item); });
    return out;
}

wire::Value from_python(PyObject* object) {
    if (object == Py_None) return {};
    if (PyBool_Check(object)) return object == Py_True;
    if (PyLong_Check(object)) {
        int overflow = 0;
        const long long n = PyLong_AsLongLongAndOverflow(object, &overflow);
        return overflow ? wire::Value(argument<std::uint64_t>(object)) : wire::Value(std::int64_t{n});
    }
    if (PyFloat_Check(object)) return PyFloat_AsDouble(object);
    if (PyUnicode_Check(object)) return std::string(text_of(object));
    if (PyBytes_Check(object)) return wire::Bytes{std::string(Buffer(object).bytes())};
    if (PyDict_Check(object)) return map_from_python(object);
    if (PyList_Check(object) || PyTuple_Check(object)) {
        wire::List out;
        each_of(object, [&](PyObject* item) { out.push_back(from_python(item)); });
        return out;
    }
    PyErr_Format(PyExc_TypeError, "a message cannot have an object of type %S", Py_TYPE(object));
    throw PythonError{};
}

}  // namespace rl4sys::python
