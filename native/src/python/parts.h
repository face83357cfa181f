// What the sources of the extension module share: its parts, and the border between C++ exceptions and Python's.
#pragma once

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

/// Takes the GIL back. At its end, the interpreter ends a thread that asks for it; this one then waits for the process to end,
/// because C++ functions that throw nothing cannot be unwound.
void take_gil(PyThreadState* state) noexcept;

/// The compressors of this thread. Throws if libzstd is missing.
support::Zstd& thread_zstd();

// Each part adds its functions and types to the module. They throw PythonError.
void add_codec(PyObject* module);
void add_policy_types(PyObject* module);
void add_io_type(PyObject* module);
void add_step_types(PyObject* module);
void add_session(PyObject* module);
void add_weights(PyObject* module);

}  // namespace rl4sys::python
