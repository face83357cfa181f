#include <unistd.h>

#include "io/zmq.h"
#include "libraries/found.h"
#include "policy/spec.h"
#include "python/parts.h"
#include "support/errors.h"

namespace rl4sys::python {
namespace {

// The class of rl4sys_zmq.errors with this name.
Ref error_class(const char* name) {
    const Ref errors = checked(PyImport_ImportModule("rl4sys_zmq.errors"));
    return checked(PyObject_GetAttrString(errors.get(), name));
}

void raise_protocol_error(const char* code, const std::string& detail) {
    const Ref codes = error_class("RefusalReason"), type = error_class("ProtocolError");
    const Ref reason = checked(PyObject_CallFunction(codes.get(), "s", code));
    const Ref text = checked(PyUnicode_DecodeUTF8(detail.data(), static_cast<Py_ssize_t>(detail.size()), "replace"));
    const Ref error = checked(PyObject_CallFunctionObjArgs(type.get(), reason.get(), text.get(), nullptr));
    PyErr_SetObject(type.get(), error.get());
}

void raise_weights_error(const std::string& text, const std::string& reason) {
    const Ref type = error_class("WeightsError");
    const Ref arguments = checked(Py_BuildValue("(s)", text.c_str())), named = checked(Py_BuildValue("{s:s}", "reason", reason.c_str()));
    const Ref error = checked(PyObject_Call(type.get(), arguments.get(), named.get()));
    PyErr_SetObject(type.get(), error.get());
}

}  // namespace

void set_error() noexcept {
    try {
        try {
            throw;
        } catch (const PythonError&) {
        } catch (const ProtocolError& error) {
            raise_protocol_error(name_of(error.code), error.detail);
        } catch (const WeightsError& error) {
            raise_weights_error(error.what(), error.reason);
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

void take_gil(PyThreadState* state) noexcept {
    try {
        PyEval_RestoreThread(state);
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
