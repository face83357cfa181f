#include "python/convert.h"

namespace rl4sys::python {

Ref checked(PyObject* owned) {
    if (!owned) throw PythonError{};
    return Ref(owned);
}

Buffer::Buffer(PyObject* object) {
    if (PyObject_GetBuffer(object, &view_, PyBUF_SIMPLE) < 0) throw PythonError{};
    held_ = true;
}

Buffer::Buffer(Buffer&& other) noexcept : view_(other.view_), held_(std::exchange(other.held_, false)) {}

Buffer::~Buffer() {
    if (held_) PyBuffer_Release(&view_);
}

Ref bytes_object(std::string_view bytes) { return checked(PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()))); }

namespace {

Ref text_object(const std::string& text) { return checked(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace")); }

std::string_view text_of(PyObject* object) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &size);
    if (!text) throw PythonError{};
    return {text, static_cast<std::size_t>(size)};
}

Ref array_object(const wire::Array& array) {
    // (dtype, shape or None for a scalar, bytes): the caller makes an array of it if it needs one.
    Ref shape(array.scalar ? Py_NewRef(Py_None) : PyTuple_New(static_cast<Py_ssize_t>(array.shape.size())));
    if (!shape) throw PythonError{};
    for (std::size_t i = 0; !array.scalar && i < array.shape.size(); ++i)
        PyTuple_SetItem(shape.get(), static_cast<Py_ssize_t>(i), checked(PyLong_FromUnsignedLongLong(array.shape[i])).release());
    const Ref dtype = text_object(array.dtype), data = bytes_object(array.data);
    return checked(PyTuple_Pack(3, dtype.get(), shape.get(), data.get()));
}

}  // namespace

Ref to_python(const wire::Map& map) {
    Ref out = checked(PyDict_New());
    for (const auto& [key, item] : map.items) {
        const Ref name = text_object(key), value = to_python(item);
        if (PyDict_SetItem(out.get(), name.get(), value.get()) < 0) throw PythonError{};
    }
    return out;
}

Ref to_python(const wire::Value& value) {
    if (const auto* flag = value.get<bool>()) return checked(PyBool_FromLong(*flag));
    if (const auto* n = value.get<std::int64_t>()) return checked(PyLong_FromLongLong(*n));
    if (const auto* n = value.get<std::uint64_t>()) return checked(PyLong_FromUnsignedLongLong(*n));
    if (const auto* x = value.get<double>()) return checked(PyFloat_FromDouble(*x));
    if (const auto* text = value.get<std::string>()) return text_object(*text);
    if (const auto* bytes = value.get<wire::Bytes>()) return bytes_object(bytes->data);
    if (const auto* map = value.get<wire::Map>()) return to_python(*map);
    if (const auto* array = value.get<wire::Array>()) return array_object(*array);
    if (const auto* list = value.get<wire::List>()) {
        Ref out = checked(PyList_New(static_cast<Py_ssize_t>(list->size())));
        for (std::size_t i = 0; i < list->size(); ++i)
            PyList_SetItem(out.get(), static_cast<Py_ssize_t>(i), to_python((*list)[i]).release());
        return out;
    }
    return Ref(Py_NewRef(Py_None));
}

wire::Map map_from_python(PyObject* object) {
    wire::Map out;
    const Ref items = checked(PyMapping_Items(object));
    for (Py_ssize_t i = 0; i < PyList_Size(items.get()); ++i) {
        PyObject* pair = PyList_GetItem(items.get(), i);
        out.set(std::string(text_of(PyTuple_GetItem(pair, 0))), from_python(PyTuple_GetItem(pair, 1)));
    }
    return out;
}

wire::Value from_python(PyObject* object) {
    if (object == Py_None) return {};
    if (PyBool_Check(object)) return object == Py_True;
    if (PyLong_Check(object)) {
        int overflow = 0;
        const long long n = PyLong_AsLongLongAndOverflow(object, &overflow);
        if (!overflow) return std::int64_t{n};
        const unsigned long long large = PyLong_AsUnsignedLongLong(object);
        if (PyErr_Occurred()) throw PythonError{};
        return std::uint64_t{large};
    }
    if (PyFloat_Check(object)) return PyFloat_AsDouble(object);
    if (PyUnicode_Check(object)) return std::string(text_of(object));
    if (PyBytes_Check(object)) return wire::Bytes{std::string(Buffer(object).bytes())};
    if (PyDict_Check(object)) return map_from_python(object);
    if (PyList_Check(object) || PyTuple_Check(object)) {
        wire::List out;
        const Ref items = checked(PySequence_List(object));
        for (Py_ssize_t i = 0; i < PyList_Size(items.get()); ++i) out.push_back(from_python(PyList_GetItem(items.get(), i)));
        return out;
    }
    PyErr_Format(PyExc_TypeError, "a message cannot have an object of type %S", Py_TYPE(object));
    throw PythonError{};
}

}  // namespace rl4sys::python
