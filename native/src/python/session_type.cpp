// The session of an actor, for tests: they run it beside the Python session.
#include "delivery/session_calls.h"
#include "python/parts.h"

namespace rl4sys::python {
namespace {

using delivery::SessionCalls;

struct SessionObject {
    PyObject_HEAD
    SessionCalls* calls;
};

SessionCalls& calls_of(PyObject* self) { return *reinterpret_cast<SessionObject*>(self)->calls; }

PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&] {
        PyObject* hello;
        unsigned long long seed;
        int coded;
        if (!PyArg_ParseTuple(args, "OKp", &hello, &seed, &coded)) throw PythonError{};
        auto calls = std::make_unique<SessionCalls>(map_from_python(hello), seed, coded ? &thread_zstd() : nullptr);
        const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
        Ref self = checked(allocate(type, 0));
        reinterpret_cast<SessionObject*>(self.get())->calls = calls.release();
        return self;
    });
}

void destroy(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    delete reinterpret_cast<SessionObject*>(self)->calls;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyObject* call(PyObject* self, PyObject* args) {
    return guarded([&] {
        const char* name;
        PyObject* arguments;
        if (!PyArg_ParseTuple(args, "sO", &name, &arguments)) throw PythonError{};
        const wire::Value values = from_python(arguments);
        return to_python(calls_of(self).call(name, std::get<wire::List>(values.data)));
    });
}

PyObject* look(PyObject* self, PyObject*) {
    return guarded([&] { return to_python(calls_of(self).look()); });
}

PyMethodDef kMethods[] = {
    {"call", call, METH_VARARGS, "Calls a method by its name. Returns the actions as rows."},
    {"look", look, METH_NOARGS, "All that a caller can read, by name."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot kSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_methods, kMethods},
    {0, nullptr},
};

PyType_Spec kSpec = {"rl4sys_zmq._native.Session", sizeof(SessionObject), 0, Py_TPFLAGS_DEFAULT, kSlots};

}  // namespace

void add_session(PyObject* module) {
    const Ref type = checked(PyType_FromModuleAndSpec(module, &kSpec, nullptr));
    if (PyModule_AddObjectRef(module, "Session", type.get()) < 0) throw PythonError{};
}

}  // namespace rl4sys::python
