// Messages: decoding and encoding.
#include "hash/xxh3.h"
#include "python/parts.h"
#include "wire/codec.h"

namespace rl4sys::python {
namespace {

PyObject* xxh3_64(PyObject*, PyObject* data) {
    return guarded([&] { return checked(PyLong_FromUnsignedLongLong(hash::xxh3_64(Buffer(data).bytes()))); });
}

PyMethodDef kMethods[] = {
    {"xxh3_64", xxh3_64, METH_O, "The xxh3-64 of a buffer."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void add_codec(PyObject* module) {
    if (PyModule_AddFunctions(module, kMethods) < 0) throw PythonError{};
}

}  // namespace rl4sys::python
