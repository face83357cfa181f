#include "policy/spec.h"
#include "python/parts.h"

#include <unistd.h>

#include "io/zmq.h"
#include "libraries/found.h"
#include "support/errors.h"

namespace rl4sys::python {
namespace {

// Sets an exception of a class of rl4sys_zmq.errors. The arguments of its constructor are as for Py_BuildValue.
template <class... A>
void raise(const char* name, const char* arguments, A... its) {
    const Ref errors = checked(PyImport_ImportModule("rl4sys_zmq.errors")), type = checked(PyObject_GetAttrString(errors.get(), name));
    const Ref given = checked(Py_BuildValue(arguments, its...));
    const Ref error = checked(PyObject_Call(type.get(), PyTuple_GetItem(given.get(), 0), PyTuple_GetItem(given.get(), 1)));
    PyErr_SetObject(type.get(), error.get());
}

}  // namespace

void set_error() noexcept {
    try {
        try {
            throw;
        } catch (const PythonError&) {
        } catch (const ProtocolError& error) {
            const Ref errors = checked(PyImport_ImportModule("rl4sys_zmq.errors")), text = to_python(wire::Value(error.detail));
            const Ref code = checked(PyObject_CallMethod(errors.get(), "RefusalReason", "s", name_of(error.code)));
            raise("ProtocolError", "((OO){})", code.get(), text.get());
        } catch (const WeightsError& error) {
            raise("WeightsError", "((s){s:s})", error.what(), "reason", error.reason.c_str());
        } catch (const policy::Unsupported& error) {
            PyErr_SetString(PyExc_NotImplementedError, error.what());
        } catch (const io::TransportError& error) {
            raise("TransportError", "((s){})", error.what());
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
