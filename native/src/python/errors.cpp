#include "policy/spec.h"
#include "python/parts.h"

#include <unistd.h>

#include "io/zmq.h"
#include "libraries/found.h"
#include "support/errors.h"

namespace rl4sys::python {
namespace {

// The class of rl4sys_zmq.errors with this name.
Ref error_class(const char* name) {
    const Ref errors = checked(PyImport_ImportModule("rl4sys_zmq.errors"));
    return checked(PyObject_GetAttrString(errors.get(), name));
}

void raise_protocol_error(const ProtocolError& error) {
    const Ref type = error_class("ProtocolError"), codes = error_class("RefusalReason");
    const Ref reason = checked(PyObject_CallFunction(codes.get(), "s", name_of(error.code)));
    const Ref text = to_python(wire::Value(error.detail));
    PyErr_SetObject(type.get(), checked(PyTuple_Pack(2, reason.get(), text.get())).get());
}

void raise_weights_error(const WeightsError& error) {
    const Ref type = error_class("WeightsError"), arguments = checked(Py_BuildValue("(s)", error.what()));
    const Ref named = checked(Py_BuildValue("{s:s}", "reason", error.reason.c_str()));
    PyErr_SetObject(type.get(), checked(PyObject_Call(type.get(), arguments.get(), named.get())).get());
}

}  // namespace

void set_error() noexcept {
    try {
        try {
            throw;
        } catch (const PythonError&) {
        } catch (const ProtocolError& error) {
            raise_protocol_error(error);
        } catch (const WeightsError& error) {
            raise_weights_error(error);
        } catch (const policy::Unsupported& error) {
            PyErr_SetString(PyExc_NotImplementedError, error.what());
        } catch (const io::TransportError& error) {
            PyErr_SetString(error_class("TransportError").get(), error.what());
        } catch (const std::bad_alloc&) {
            PyErr_NoMemory();
        } catch (const std::exception& error) {
            PyErr_SetString(PyExc_RuntimeError, error.what());
        }
    } catch (...) {  // the exception of a Python call above is set
    }
}

// At its end, the interpreter ends a thread that asks for the GIL; this one then waits for the process to end, because C++
// functions that throw nothing cannot be unwound.
Unlocked::~Unlocked() {
    try {
        if (state_) PyEval_RestoreThread(state_);
    } catch (...) {
        for (;;) pause();
    }
}

support::Zstd& thread_zstd() {
    const support::ZstdFunctions* functions = libraries::find_zstd();
    if (!functions) throw std::runtime_error("libzstd is missing");
    thread_local support::Zstd out(*functions);
    return out;
}

}  // namespace rl4sys::python
