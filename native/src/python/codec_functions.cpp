// Messages: hashes, and the learner's fast path for the most frequent form of a Submit.
#include "hash/xxh3.h"
#include "python/parts.h"
#include "support/bytes.h"
#include "support/errors.h"
#include "wire/codec.h"
#include "wire/segments.h"

namespace rl4sys::python {
namespace {

constexpr std::size_t kKindAt = 6, kStepsAt = 56, kCheckAt = 48, kPadding = wire::kAlign - 1;
constexpr std::uint64_t kAnySteps = 0xFFFFFFFF;
constexpr Py_ssize_t kSimpleFrames = 2;

PyObject* xxh3_64(PyObject*, PyObject* data) {
    return guarded([&] { return checked(PyLong_FromUnsignedLongLong(hash::xxh3_64(Buffer(data).bytes()))); });
}

template <class T>
Ref list_of(std::string_view heads, std::size_t at) {
    const std::size_t count = heads.size() / wire::kHeadBytes;
    Ref out = checked(PyList_New(static_cast<Py_ssize_t>(count)));
    for (std::size_t n = 0; n < count; ++n)
        PyList_SetItem(out.get(), static_cast<Py_ssize_t>(n),
                       checked(PyLong_FromUnsignedLongLong(support::load<T>(heads.data() + n * wire::kHeadBytes + at))).release());
    return out;
}

Ref none() { return Ref(Py_NewRef(Py_None)); }

// A sound Submit with one layout, one frame and no codings as a tuple; None for any other message, which Python then decodes.
PyObject* read_submit(PyObject*, PyObject* arguments) {
    return guarded([&] {
        PyObject *frames = nullptr;
        unsigned long long max_bytes = 0;
        int verify = 0;
        if (!PyArg_ParseTuple(arguments, "OKp", &frames, &max_bytes, &verify)) throw PythonError{};
        if (PySequence_Size(frames) != kSimpleFrames) return none();
        const Ref first = checked(PySequence_GetItem(frames, 0)), second = checked(PySequence_GetItem(frames, 1));
        const Buffer head(first.get()), body(second.get());
        if (head.bytes().size() < wire::kPrefixBytes || head.bytes()[kKindAt] != static_cast<char>(wire::Kind::submit)) return none();
        wire::Received submit;
        try {
            submit = wire::decode({head.bytes(), body.bytes()}, max_bytes, verify);
            if (submit.list("layouts").size() != 1 || !submit.list("codings").empty()) return none();
            wire::find_columns(submit);
        } catch (const ProtocolError&) {
            return none();
        }
        const std::string& heads = submit.bytes("heads");
        for (std::size_t at = 0; at < heads.size(); at += wire::kHeadBytes)
            if (wire::is_bad_head(heads.data() + at, kAnySteps)) return none();
        const std::string& layout = *submit.list("layouts")[0].get<std::string>();
        const Ref steps = list_of<std::uint32_t>(heads, kStepsAt), checks = list_of<std::uint64_t>(heads, kCheckAt);
        return checked(Py_BuildValue("(KIKs#y#OO)", static_cast<unsigned long long>(submit.first_seq), submit.count,
                                     static_cast<unsigned long long>(submit.integer("want_steps")), layout.data(),
                                     static_cast<Py_ssize_t>(layout.size()), heads.data(), static_cast<Py_ssize_t>(heads.size()),
                                     steps.get(), checks.get()));
    });
}

// The frame of one message with the segments of several messages that `read_submit` has accepted, all of one layout.
PyObject* join_bodies(PyObject*, PyObject* arguments) {
    return guarded([&] {
        const char* text = nullptr;
        Py_ssize_t size = 0;
        PyObject *all_heads = nullptr, *all_bodies = nullptr;
        if (!PyArg_ParseTuple(arguments, "s#OO", &text, &size, &all_heads, &all_bodies)) throw PythonError{};
        const std::size_t columns = wire::parse_layout({text, static_cast<std::size_t>(size)}).size();
        wire::Received submit;
        submit.kind = wire::Kind::submit;
        std::vector<std::string> parts(columns);
        const Py_ssize_t count = PySequence_Size(all_heads);
        for (Py_ssize_t n = 0; n < count; ++n) {
            const Ref one = checked(PySequence_GetItem(all_heads, n)), other = checked(PySequence_GetItem(all_bodies, n));
            const Buffer heads(one.get()), body(other.get());
            submit.header.items.clear();
            submit.header.set("layouts", wire::List{std::string(text, static_cast<std::size_t>(size))});
            submit.header.set("heads", wire::Bytes{std::string(heads.bytes())});
            submit.count = static_cast<std::uint32_t>(heads.bytes().size() / wire::kHeadBytes);
            submit.body = {body.bytes()};
            const std::vector<wire::LayoutPlaces> places = wire::find_columns(submit);
            for (std::size_t c = 0; c < columns; ++c) {
                const std::size_t begin = places[0].columns[c].offset, bytes = places[0].columns[c].bytes;
                parts[c].append(body.bytes().substr(begin, bytes));
            }
        }
        std::string out;
        for (const std::string& part : parts) {
            out.append(part);
            out.resize((out.size() + kPadding) / wire::kAlign * wire::kAlign);
        }
        return bytes_object(out);
    });
}

PyMethodDef kMethods[] = {
    {"xxh3_64", xxh3_64, METH_O, "The xxh3-64 of a buffer."},
    {"read_submit", read_submit, METH_VARARGS, "The fields of a simple, valid Submit; None for any other message."},
    {"join_bodies", join_bodies, METH_VARARGS, "The body of one message for those of several messages of a layout."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void add_codec(PyObject* module) {
    if (PyModule_AddFunctions(module, kMethods) < 0) throw PythonError{};
}

}  // namespace rl4sys::python
