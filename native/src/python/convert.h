// Conversions between Python objects and values of C++. All throw PythonError.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "wire/value.h"

namespace rl4sys::python {

/// A Python exception is set: unwinds to the entry function.
struct PythonError {};

/// A reference that is released at the end of its scope.
class Ref {
public:
    Ref() = default;
    explicit Ref(PyObject* owned) : object_(owned) {}
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref& operator=(Ref&& other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    [[gnu::always_inline]] ~Ref() { Py_XDECREF(object_); }  // a call each would slow the steps down

    PyObject* get() const noexcept { return object_; }
    PyObject* release() noexcept { return std::exchange(object_, nullptr); }
    explicit operator bool() const noexcept { return object_; }

private:
    PyObject* object_ = nullptr;
};

/// Returns `owned`, or throws if it is null.
inline Ref checked(PyObject* owned) {
    if (!owned) throw PythonError{};
    return Ref(owned);
}

inline Ref none() { return Ref(Py_NewRef(Py_None)); }

/// A contiguous buffer of an object, held for the life of this object.
class Buffer {
public:
    explicit Buffer(PyObject* object) {
        if (PyObject_GetBuffer(object, &view_, PyBUF_SIMPLE) < 0) throw PythonError{};
    }
    Buffer(Buffer&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
    ~Buffer() { PyBuffer_Release(&view_); }  // does nothing without an object

    std::string_view bytes() const noexcept { return {static_cast<const char*>(view_.buf), static_cast<std::size_t>(view_.len)}; }
    /// The numbers in it.
    template <class T>
    const T* as() const noexcept {
        return static_cast<const T*>(view_.buf);
    }

private:
    Py_buffer view_{};
};

/// A list of `count` objects, which `item` makes.
template <class F>
Ref list_of(std::size_t count, F item) {
    Ref out = checked(PyList_New(static_cast<Py_ssize_t>(count)));
    for (std::size_t n = 0; n < count; ++n) PyList_SetItem(out.get(), static_cast<Py_ssize_t>(n), item(n).release());
    return out;
}

Ref to_python(const wire::Value& value);
Ref to_python(const wire::Map& map);
Ref bytes_object(std::string_view bytes);

std::string_view text_of(PyObject* object);
/// The objects that messages can have. A map must have string keys.
wire::Value from_python(PyObject* object);
wire::Map map_from_python(PyObject* object);
/// The buffers of a sequence.
std::vector<Buffer> buffers_of(PyObject* sequence);

/// An argument of a function as a value of C++.
template <class T>
T argument(PyObject* object) {
    if constexpr (std::is_same_v<T, PyObject*>) return object;
    else if constexpr (std::is_same_v<T, std::string_view>) return text_of(object);
    else if constexpr (std::is_same_v<T, wire::Map>) return map_from_python(object);
    else if constexpr (std::is_same_v<T, wire::List>) return std::get<wire::List>(from_python(object).data);
    else if constexpr (std::is_same_v<T, std::vector<Buffer>>) return buffers_of(object);
    else if constexpr (std::is_same_v<T, std::optional<Buffer>>) return object == Py_None ? T() : T(std::in_place, object);
    else if constexpr (std::is_same_v<T, Buffer>) return Buffer(object);
    else {
        T out{};
        if constexpr (std::is_same_v<T, bool>) out = PyObject_IsTrue(object) == 1;
        else if constexpr (std::is_floating_point_v<T>) out = PyFloat_AsDouble(object);
        else if constexpr (std::is_unsigned_v<T>) out = static_cast<T>(PyLong_AsUnsignedLongLong(object));
        else out = static_cast<T>(PyLong_AsLongLong(object));
        if (PyErr_Occurred()) throw PythonError{};
        return out;
    }
}

/// The result of a function as an object.
template <class T>
Ref result(T value) {
    if constexpr (std::is_same_v<T, Ref>) return value;
    else if constexpr (std::is_same_v<T, wire::Map>) return to_python(value);
    else if constexpr (std::is_floating_point_v<T>) return checked(PyFloat_FromDouble(value));
    else if constexpr (std::is_unsigned_v<T> && !std::is_same_v<T, bool>) return checked(PyLong_FromUnsignedLongLong(value));
    else return to_python(wire::Value(std::move(value)));
}

}  // namespace rl4sys::python
