// What the sources of the extension module share: its parts, how functions and classes of C++ become Python's, and the border
// between the exceptions of both.
#pragma once

#include <unistd.h>

#include <functional>
#include <memory>
#include <new>
#include <tuple>

#include "policy/policy.h"
#include "python/convert.h"
#include "support/zstd.h"

namespace rl4sys::python {

/// Sets the Python exception for the C++ exception that is being handled: rl4sys_zmq.errors.ProtocolError, WeightsError, ...
void set_error() noexcept;

/// Calls `f`, which returns a Ref. Exceptions become Python's.
template <class F>
PyObject* guarded(F f) noexcept {
    try {
        return f().release();
    } catch (...) {
        set_error();
        return nullptr;
    }
}

/// Calls a function of Python. At its end, the interpreter ends a thread that asks for the GIL there; this one then waits for the
/// process to end, because functions that throw nothing cannot be unwound, and Ref's cannot be released without the GIL.
template <class... A>
PyObject* called(PyObject* function, A... arguments) noexcept {
    try {
        return PyObject_CallFunctionObjArgs(function, arguments..., nullptr);
    } catch (...) {
        for (;;) pause();
    }
}

/// The GIL is released for the life of this object, if `wanted`.
class Unlocked {
public:
    explicit Unlocked(bool wanted = true) : state_(wanted ? PyEval_SaveThread() : nullptr) {}
    Unlocked(const Unlocked&) = delete;
    ~Unlocked();

private:
    PyThreadState* const state_;
};

/// The compressors of this thread. Throws if libzstd is missing.
support::Zstd& thread_zstd();

/// A new object, of zeros behind its head.
Ref allocate(PyTypeObject* type);
void free_object(PyObject* self) noexcept;

/// An object that holds a `T`.
template <class T>
struct Object {
    PyObject_HEAD
    T held;
};

/// The type of such objects. The module has no second instance.
template <class T>
PyTypeObject* type_of = nullptr;

template <class T>
bool holds(PyObject* object) noexcept {
    return Py_TYPE(object) == type_of<T>;
}

/// What an object holds. The object must be of this type.
template <class T>
T& held(PyObject* object) noexcept {
    return reinterpret_cast<Object<T>*>(object)->held;
}

/// What an object holds. Throws PythonError for an object of another type.
template <class T>
T& held_of(PyObject* object) {
    if (holds<T>(object)) return held<T>(object);
    PyErr_Format(PyExc_TypeError, "an object of type %S is not of this kind", Py_TYPE(object));
    throw PythonError{};
}

template <class T, class... A>
Ref new_object(A&&... arguments) {
    Ref out = allocate(type_of<T>);
    try {
        new (&held<T>(out.get())) T{std::forward<A>(arguments)...};
    } catch (...) {
        free_object(out.release());
        throw;
    }
    return out;
}

template <class T>
void destroy(T& value) noexcept {
    value.~T();
}

template <class T>
void dealloc(PyObject* self) noexcept {
    destroy(held<T>(self));
    free_object(self);
}

/// Calls `f` with arguments of the types `A`.
template <class... A, class F>
Ref with_arguments(F f, PyObject* const* args, Py_ssize_t count) {
    if (count != Py_ssize_t{sizeof...(A)}) {
        PyErr_Format(PyExc_TypeError, "%zd arguments are needed, and %zd were given", Py_ssize_t{sizeof...(A)}, count);
        throw PythonError{};
    }
    [[maybe_unused]] const auto next = [&] { return *args++; };
    std::tuple<std::decay_t<A>...> values{argument<std::decay_t<A>>(next())...};  // braces are read from left to right
    if constexpr (std::is_void_v<decltype(std::apply(f, std::move(values)))>) {
        std::apply(f, std::move(values));
        return none();
    } else {
        return result(std::apply(f, std::move(values)));
    }
}

template <class T, class... A, class F>
Ref on_held(PyObject* self, F f, PyObject* const* args, Py_ssize_t count) {
    const auto on_it = [&](auto&&... each) { return std::invoke(f, held<T>(self), std::forward<decltype(each)>(each)...); };
    return with_arguments<A...>(on_it, args, count);
}

// A function, a function whose first parameter is what the object holds, and a method of that.
template <class R, class... A>
Ref call(R (*f)(A...), PyObject*, PyObject* const* args, Py_ssize_t count) {
    return with_arguments<A...>(f, args, count);
}
template <class R, class T, class... A>
std::enable_if_t<!std::is_const_v<T>, Ref> call(R (*f)(T&, A...), PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return on_held<T, A...>(self, f, args, count);
}
template <class R, class T, class... A>
Ref call(R (T::*f)(A...), PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return on_held<T, A...>(self, f, args, count);
}

template <auto f>
PyObject* entry(PyObject* self, PyObject* const* args, Py_ssize_t count) noexcept {
    return guarded([&] { return call(f, self, args, count); });
}

template <class F>
PyCFunction as_function(F f) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(f));
}

/// A function of Python for one of C++ with any arguments and result that `argument` and `result` convert. What it does says
/// rl4sys_zmq/_native.pyi.
template <auto f>
PyMethodDef function(const char* name) {
    return {name, as_function(entry<f>), METH_FASTCALL, nullptr};
}

/// The constructor of a type: `f` returns the new object.
template <auto f>
PyObject* construct(PyTypeObject*, PyObject* args, PyObject*) noexcept {
    return guarded([&] {
        std::vector<PyObject*> items;
        for (Py_ssize_t n = 0; n < PyTuple_Size(args); ++n) items.push_back(PyTuple_GetItem(args, n));
        return call(f, nullptr, items.data(), PyTuple_Size(args));
    });
}

template <class F>
PyType_Slot slot(int which, F* f) {
    return {which, reinterpret_cast<void*>(f)};
}

/// Adds a type to the module.
PyTypeObject* add_type(PyObject* module, const char* name, std::size_t size, unsigned flags, std::vector<PyType_Slot> slots);

/// Adds a type whose objects hold a `T`. Python can make objects if there is a slot Py_tp_new.
template <class T>
void add_type_of(PyObject* module, const char* name, PyMethodDef* methods, std::vector<PyType_Slot> slots) {
    const bool made = slots.empty() || slots[0].slot != Py_tp_new;
    slots.push_back(slot(Py_tp_dealloc, dealloc<T>));
    slots.push_back(slot(Py_tp_methods, methods));
    const unsigned flags = Py_TPFLAGS_DEFAULT | (made ? Py_TPFLAGS_DISALLOW_INSTANTIATION : 0);
    type_of<T> = add_type(module, name, sizeof(Object<T>), flags, std::move(slots));
}

/// What a `Policy` holds. A `Sampler` holds a policy::Sampler.
using PolicyPointer = std::shared_ptr<const policy::Policy>;

/// A policy bound to the random numbers and buffers of one thread, in a `Chooser`.
struct Chooser {
    PolicyPointer policy;
    Ref owner;  // of the sampler
    policy::Sampler& sampler;
    policy::Scratch scratch;
    bool explore;
};

/// True for an `IoThread`.
bool is_io(PyObject* object) noexcept;
/// The policy that an `IoThread` has now; null without one.
const policy::Policy* current_policy(PyObject* io) noexcept;

extern PyMethodDef codec_functions[], weights_functions[];

// The other parts add their types to the module. They throw PythonError.
void add_policy_types(PyObject* module);
void add_io_type(PyObject* module);
void add_step_types(PyObject* module);
void add_session(PyObject* module);  // in native/tests/extension

}  // namespace rl4sys::python
