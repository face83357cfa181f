// The extension module rl4sys_zmq._native.
#include "libraries/found.h"
#include "python/parts.h"

namespace rl4sys::python {
namespace {

// The reason why the module cannot be used in this process, or an empty text.
PyObject* missing(PyObject*, PyObject*) {
    return PyUnicode_FromString(libraries::missing().c_str());
}

PyMethodDef kMethods[] = {
    {"missing", missing, METH_NOARGS, "The library that is missing in this process, as text; empty if all are here."},
    {nullptr, nullptr, 0, nullptr},
};

int execute(PyObject* module) {
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {  // threads of the library know one interpreter
        PyErr_SetString(PyExc_ImportError, "the extension does not load in a subinterpreter");
        return -1;
    }
    try {
        add_codec(module);
        add_policy_types(module);
        add_io_type(module);
        return PyModule_AddStringConstant(module, "VERSION", RL4SYS_VERSION);
    } catch (...) {
        set_error();
        return -1;
    }
}

PyModuleDef_Slot kSlots[] = {{Py_mod_exec, reinterpret_cast<void*>(execute)}, {0, nullptr}};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "_native", nullptr, 0, kMethods, kSlots, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace rl4sys::python

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&rl4sys::python::kModule); }
