// The extension module rl4sys_zmq._native: its start, and what its parts share.
#include <unistd.h>

#include "io/zmq.h"
#include "libraries/found.h"
#include "policy/spec.h"
#include "python/parts.h"
#include "support/errors.h"

namespace rl4sys::python {
namespace {

// Sets an exception of a class of rl4sys_zmq.errors. The arguments of its constructor are as for Py_BuildValue.
template <class... A>
void raise(const char* name, const char* arguments, A... its) {
    const Ref errors = checked(PyImport_ImportModule("rl4sys_zmq.errors"));
    const Ref type = checked(PyObject_GetAttrString(errors.get(), name));
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

Ref allocate(PyTypeObject* type) { return checked(reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0)); }

void free_object(PyObject* self) noexcept {
    PyTypeObject* const type = Py_TYPE(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyTypeObject* add_type(PyObject* module, const char* name, std::size_t size, unsigned flags, std::vector<PyType_Slot> slots) {
    slots.push_back({0, nullptr});
    PyType_Spec spec = {name, static_cast<int>(size), 0, flags, slots.data()};
    auto* const type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)).release());
    if (PyModule_AddType(module, type) < 0) throw PythonError{};
    return type;
}

namespace {

PyMethodDef kFunctions[] = {
    function<libraries::missing>("missing"),
    {},
};

int execute(PyObject* module) {
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {  // threads of the library know one interpreter
        PyErr_SetString(PyExc_ImportError, "the extension does not load in a subinterpreter");
        return -1;
    }
    const Ref done(guarded([&] {
        for (const auto add : {add_policy_types, add_io_type, add_step_types}) add(module);
        for (PyMethodDef* const functions : {codec_functions, weights_functions})
            if (PyModule_AddFunctions(module, functions) < 0) throw PythonError{};
#ifdef RL4SYS_TESTS
        add_session(module);
#endif
        if (PyModule_AddStringConstant(module, "VERSION", RL4SYS_VERSION) < 0) throw PythonError{};
        return none();
    }));
    return done ? 0 : -1;
}

PyModuleDef_Slot kSlots[] = {{Py_mod_exec, reinterpret_cast<void*>(execute)}, {0, nullptr}};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "_native", nullptr, 0, kFunctions, kSlots, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace rl4sys::python

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&rl4sys::python::kModule); }
