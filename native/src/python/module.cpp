// The extension module rl4sys_zmq._native: its start, and what all its types share.
#include "libraries/found.h"
#include "python/parts.h"

namespace rl4sys::python {

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
    // The reason why the module cannot be used in this process, or an empty text.
    function<libraries::missing>("missing", "The library that is missing in this process, as text; empty if all are here."),
    {},
};

int execute(PyObject* module) {
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {  // threads of the library know one interpreter
        PyErr_SetString(PyExc_ImportError, "the extension does not load in a subinterpreter");
        return -1;
    }
    const Ref done(guarded([&] {
        for (const auto add : {add_codec, add_policy_types, add_io_type, add_step_types, add_weights}) add(module);
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
