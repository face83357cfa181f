// Conversions between Python objects and values of messages. Functions that return a PyObject* set an exception on nullptr.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string_view>
#include <utility>

#include "wire/value.h"

namespace rl4sys::python {

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
    ~Ref() { Py_XDECREF(object_); }

    PyObject* get() const noexcept { return object_; }
    PyObject* release() noexcept { return std::exchange(object_, nullptr); }
    explicit operator bool() const noexcept { return object_; }

private:
    PyObject* object_ = nullptr;
};

/// A Python exception is set: unwinds to the entry function.
struct PythonError {};

/// A contiguous buffer of an object, held for the life of this object. Throws PythonError.
class Buffer {
public:
    explicit Buffer(PyObject* object);
    Buffer(Buffer&& other) noexcept;
    Buffer(const Buffer&) = delete;
    ~Buffer();

    std::string_view bytes() const noexcept { return {static_cast<const char*>(view_.buf), static_cast<std::size_t>(view_.len)}; }

private:
    Py_buffer view_{};
    bool held_ = false;
};

Ref to_python(const wire::Value& value);
Ref to_python(const wire::Map& map);
/// Throws PythonError for an object that messages cannot have. A map must have string keys.
wire::Value from_python(PyObject* object);
wire::Map map_from_python(PyObject* object);

Ref bytes_object(std::string_view bytes);

/// Returns `owned` or throws PythonError if it is null.
Ref checked(PyObject* owned);

}  // namespace rl4sys::python
