// For tests, which run the Python form beside them: the session of an actor, and the checks of received bytes.
#include "delivery/session_calls.h"
#include "python/parts.h"
#include "weights/update.h"

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

struct HeldFrames {
    std::vector<Buffer> buffers;
    wire::Frames frames;

    explicit HeldFrames(PyObject* object) {
        const Ref list = checked(PySequence_List(object));
        for (Py_ssize_t i = 0; i < PyList_Size(list.get()); ++i) buffers.emplace_back(PyList_GetItem(list.get(), i));
        for (const Buffer& buffer : buffers) frames.push_back(buffer.bytes());
    }
};

PyObject* read_message(PyObject*, PyObject* args) {
    return guarded([&] {
        PyObject* frames;
        unsigned long long most;
        if (!PyArg_ParseTuple(args, "OK", &frames, &most)) throw PythonError{};
        const HeldFrames held(frames);
        const wire::Received message = wire::decode(held.frames, most);
        const Ref header = to_python(message.header);
        return checked(Py_BuildValue("(iOKI)", static_cast<int>(message.kind), header.get(),
                                     static_cast<unsigned long long>(message.first_seq), static_cast<unsigned>(message.count)));
    });
}

PyObject* bad_heads(PyObject*, PyObject* frames) {
    return guarded([&] {
        const HeldFrames held(frames);
        const wire::Received message = wire::decode(held.frames);
        wire::find_columns(message);
        wire::List out;
        for (std::uint32_t n = 0; n < message.count; ++n)
            if (wire::is_bad_head(message.bytes("heads").data() + n * wire::kHeadBytes, ~std::uint64_t{0})) out.emplace_back(std::uint64_t{n});
        return to_python(wire::Value(std::move(out)));
    });
}

PyObject* read_weights_header(PyObject*, PyObject* data) {
    return guarded([&] {
        const Buffer buffer(data);
        const weights::Header head = weights::read_header(buffer.bytes());
        const wire::List out{wire::Bytes{std::string(head.policy_id())}, head.generation, head.base_version, head.new_version,
                             static_cast<int>(head.encoding), std::uint64_t{head.elements}, std::uint64_t{head.payload_bytes},
                             head.payload_hash, head.state_hash, static_cast<int>(head.dtype), static_cast<int>(head.chunk),
                             static_cast<int>(head.chunks), head.predicted, head.others};
        return to_python(wire::Value(out));
    });
}

PyMethodDef kFunctions[] = {
    {"read_message", read_message, METH_VARARGS, "Decodes and checks a message: its kind, header, first_seq and count."},
    {"bad_heads", bad_heads, METH_O, "Checks the structure of a Submit without codings. Returns the indices of contradictory heads."},
    {"read_weights_header", read_weights_header, METH_O, "The fields of the header of a weight update."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Spec kSpec = {"rl4sys_zmq._native.Session", sizeof(SessionObject), 0, Py_TPFLAGS_DEFAULT, kSlots};

}  // namespace

void add_session(PyObject* module) {
    const Ref type = checked(PyType_FromModuleAndSpec(module, &kSpec, nullptr));
    if (PyModule_AddFunctions(module, kFunctions) < 0) throw PythonError{};
    if (PyModule_AddObjectRef(module, "Session", type.get()) < 0) throw PythonError{};
}

}  // namespace rl4sys::python
