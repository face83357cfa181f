// The module `_native_testing`: the rooms of the library for tests in Python, which compare them with the pure form.
#include <cstring>
#include <memory>

#include "delivery/session.h"
#include "hash/xxh3.h"
#include "libraries/found.h"
#include "policy/policy.h"
#include "python/convert.h"
#include "weights/update.h"
#include "wire/segments.h"

namespace rl4sys {
namespace {

using python::Buffer;
using python::checked;
using python::PythonError;
using python::Ref;

support::Zstd& zstd() {
    static support::Zstd out(*libraries::find_zstd());
    return out;
}

// Calls `f`, and turns exceptions of the library into ValueError(code, text).
template <class F>
PyObject* guarded(F f) noexcept {
    std::string code, text;
    try {
        return f().release();
    } catch (const PythonError&) {
        return nullptr;
    } catch (const ProtocolError& error) {
        code = name_of(error.code);
        text = error.detail;
    } catch (const WeightsError& error) {
        code = error.reason;
        text = error.what();
    } catch (const policy::Unsupported& error) {
        code = "unsupported";
        text = error.what();
    } catch (const std::exception& error) {
        code = "exception";
        text = error.what();
    }
    const Ref arguments(Py_BuildValue("(ss)", code.c_str(), text.c_str()));
    if (arguments) PyErr_SetObject(PyExc_ValueError, arguments.get());
    return nullptr;
}

struct HeldFrames {
    std::vector<Buffer> buffers;
    wire::Frames frames;

    explicit HeldFrames(PyObject* object) {
        const Ref list = checked(PySequence_List(object));
        for (Py_ssize_t i = 0; i < PyList_Size(list.get()); ++i) buffers.emplace_back(PyList_GetItem(list.get(), i));
        for (const Buffer& buffer : buffers) frames.push_back(buffer.bytes());
    }
};

Ref frames_object(const wire::Outgoing& message) {
    Ref out = checked(PyList_New(0));
    const auto append = [&](std::string_view bytes) {
        const Ref frame = python::bytes_object(bytes);
        if (PyList_Append(out.get(), frame.get()) < 0) throw PythonError{};
    };
    append(message.first);
    for (const auto& frame : message.body) append(*frame);
    return out;
}

Ref received_object(const wire::Received& message) {
    const Ref header = python::to_python(message.header);
    return checked(Py_BuildValue("(iOKIn)", static_cast<int>(message.kind), header.get(), message.first_seq, message.count,
                                 static_cast<Py_ssize_t>(message.body.size())));
}

PyObject* decode(PyObject*, PyObject* args) {
    return guarded([&] {
        PyObject* frames;
        unsigned long long most = 1ULL << 32;
        if (!PyArg_ParseTuple(args, "O|K", &frames, &most)) throw PythonError{};
        const HeldFrames held(frames);
        return received_object(wire::decode(held.frames, most));
    });
}

PyObject* encode(PyObject*, PyObject* args) {
    return guarded([&] {
        int kind;
        PyObject *header, *body;
        unsigned long long seq = 0;
        unsigned count = 0;
        if (!PyArg_ParseTuple(args, "iOO|KI", &kind, &header, &body, &seq, &count)) throw PythonError{};
        const HeldFrames held(body);
        std::vector<std::uint64_t> hashes;
        for (const std::string_view frame : held.frames) hashes.push_back(hash::xxh3_64(frame));
        return python::bytes_object(wire::encode(static_cast<wire::Kind>(kind), python::map_from_python(header), held.frames, hashes, seq, count));
    });
}

// The structure of a Submit, and the indices of its bad heads.
PyObject* check_submit(PyObject*, PyObject* args) {
    return guarded([&] {
        PyObject* frames;
        unsigned long long most;
        if (!PyArg_ParseTuple(args, "OK", &frames, &most)) throw PythonError{};
        const HeldFrames held(frames);
        const wire::Received message = wire::decode(held.frames);
        wire::find_columns(message);
        Ref out = checked(PyList_New(0));
        for (std::uint32_t n = 0; n < message.count; ++n) {
            if (!wire::is_bad_head(message.bytes("heads").data() + n * wire::kHeadBytes, most)) continue;
            const Ref index = checked(PyLong_FromUnsignedLong(n));
            if (PyList_Append(out.get(), index.get()) < 0) throw PythonError{};
        }
        return out;
    });
}

wire::SharedSegment segment_from(PyObject* object) {
    wire::SegmentNumbers numbers;
    const char* layout;
    PyObject* columns;
    unsigned long long generation, episode, index, oldest, length;
    unsigned steps, flags;
    if (!PyArg_ParseTuple(object, "KKKKdKIIsO", &generation, &episode, &index, &oldest, &numbers.episode_return, &length, &steps, &flags,
                          &layout, &columns))
        throw PythonError{};
    numbers.generation = generation;
    numbers.episode_id = episode;
    numbers.segment_index = index;
    numbers.oldest_version = oldest;
    numbers.episode_length = length;
    numbers.steps = steps;
    numbers.flags = static_cast<std::uint8_t>(flags);
    const HeldFrames held(columns);
    return std::make_shared<const wire::PackedSegment>(wire::pack_segment(numbers, layout, held.frames));
}

std::vector<wire::SharedSegment> segments_from(PyObject* object) {
    std::vector<wire::SharedSegment> out;
    const Ref list = checked(PySequence_List(object));
    for (Py_ssize_t i = 0; i < PyList_Size(list.get()); ++i) out.push_back(segment_from(PyList_GetItem(list.get(), i)));
    return out;
}

PyObject* join_submit(PyObject*, PyObject* args) {
    return guarded([&] {
        unsigned long long first, want;
        PyObject* segments;
        int coded;
        if (!PyArg_ParseTuple(args, "KKOp", &first, &want, &segments, &coded)) throw PythonError{};
        return frames_object(wire::join_submit(first, want, segments_from(segments), coded ? &zstd() : nullptr));
    });
}

// A snapshot is (generation, version, digest, flat, others).
std::unique_ptr<weights::Snapshot> snapshot_from(PyObject* object) {
    if (object == Py_None) return nullptr;
    auto out = std::make_unique<weights::Snapshot>();
    unsigned long long generation, version, digest;
    PyObject *flat, *others;
    if (!PyArg_ParseTuple(object, "KKKOO", &generation, &version, &digest, &flat, &others)) throw PythonError{};
    out->generation = generation;
    out->version = version;
    out->digest = digest;
    const Buffer values(flat), rest(others);
    out->flat.resize(values.bytes().size() / sizeof(float));
    std::memcpy(out->flat.data(), values.bytes().data(), out->flat.size() * sizeof(float));
    out->others = std::string(rest.bytes());
    return out;
}

PyObject* apply_update(PyObject*, PyObject* args) {
    return guarded([&] {
        PyObject *header, *payload, *held, *tensors, *before;
        if (!PyArg_ParseTuple(args, "OOOOO", &header, &payload, &held, &tensors, &before)) throw PythonError{};
        const Buffer head(header), body(payload);
        const auto base = snapshot_from(held), last = snapshot_from(before);
        const wire::Value list = python::from_python(tensors);
        const weights::TensorSizes sizes(policy::read_tensors(*list.get<wire::List>()));
        const weights::Snapshot out = weights::apply_update(weights::read_header(head.bytes()), body.bytes(), base.get(), sizes, last.get(), zstd());
        const Ref flat = python::bytes_object({reinterpret_cast<const char*>(out.flat.data()), out.flat.size() * sizeof(float)});
        const Ref others = python::bytes_object(out.others);
        return checked(Py_BuildValue("(KKKOO)", static_cast<unsigned long long>(out.generation), static_cast<unsigned long long>(out.version),
                                     static_cast<unsigned long long>(out.digest), flat.get(), others.get()));
    });
}

PyObject* is_tag_of(PyObject*, PyObject* args) {
    return guarded([&] {
        PyObject *tag, *key, *id, *snapshot;
        if (!PyArg_ParseTuple(args, "OOOO", &tag, &key, &id, &snapshot)) throw PythonError{};
        const Buffer its(tag), secret(key), policy_id(id);
        return checked(PyBool_FromLong(weights::is_tag_of(its.bytes(), secret.bytes(), policy_id.bytes(), *snapshot_from(snapshot))));
    });
}

// Acts on many observations: (outputs, indices or raw actions, actions, log-probabilities, states), as bytes.
PyObject* act(PyObject*, PyObject* args) {
    return guarded([&] {
        PyObject *spec, *snapshot, *observations, *masks, *seed;
        int explore;
        double place;
        if (!PyArg_ParseTuple(args, "OOOOOpd", &spec, &snapshot, &observations, &masks, &seed, &explore, &place)) throw PythonError{};
        const auto described = std::make_shared<const policy::PolicySpec>(policy::read_spec(python::map_from_python(spec)));
        const policy::Policy policy(described, std::shared_ptr<const weights::Snapshot>(snapshot_from(snapshot)));
        const Buffer rows(observations);
        std::vector<std::uint32_t> words;
        const Ref list = checked(PySequence_List(seed));
        for (Py_ssize_t i = 0; i < PyList_Size(list.get()); ++i)
            words.push_back(static_cast<std::uint32_t>(PyLong_AsUnsignedLong(PyList_GetItem(list.get(), i))));
        policy::Sampler sampler(words, place);
        policy::Scratch scratch(*described);
        std::unique_ptr<Buffer> allowed;
        if (masks != Py_None) allowed = std::make_unique<Buffer>(masks);
        std::vector<float> state(described->state_size);
        const bool discrete = described->observations.discrete;
        const std::size_t width = discrete ? 8 : 4 * described->features, count = rows.bytes().size() / width;
        std::string outputs, chosen, acts, log_probs;
        for (std::size_t i = 0; i < count; ++i) {
            const char* row = rows.bytes().data() + i * width;
            std::vector<float> features(discrete ? 0 : described->features);
            std::int64_t index = 0;
            if (discrete)
                std::memcpy(&index, row, 8);
            else
                std::memcpy(features.data(), row, width);
            std::vector<float> copy = state;
            const float* out = policy.forward(features.data(), index, copy.data(), scratch);
            outputs.append(reinterpret_cast<const char*>(out), 4 * described->outputs);
            const auto* mask = allowed ? reinterpret_cast<const std::uint8_t*>(allowed->bytes().data()) + i * described->actions.size() : nullptr;
            const policy::Choice choice = policy.act(features.data(), index, mask, explore, state.data(), sampler, scratch);
            if (described->actions.discrete) {
                chosen.append(reinterpret_cast<const char*>(&choice.index), 8);
            } else {
                chosen.append(reinterpret_cast<const char*>(choice.raw), 4 * described->actions.size());
                acts.append(reinterpret_cast<const char*>(choice.act), 8 * described->actions.size());
            }
            log_probs.append(reinterpret_cast<const char*>(&choice.log_prob), 8);
        }
        const Ref a = python::bytes_object(outputs), b = python::bytes_object(chosen), c = python::bytes_object(acts),
                  d = python::bytes_object(log_probs);
        return checked(PyTuple_Pack(4, a.get(), b.get(), c.get(), d.get()));
    });
}

PyObject* xxh3(PyObject*, PyObject* data) {
    return guarded([&] {
        const Buffer buffer(data);
        const auto [low, high] = hash::xxh3_128(buffer.bytes().data(), buffer.bytes().size());
        return checked(Py_BuildValue("(KKK)", static_cast<unsigned long long>(hash::xxh3_64(buffer.bytes())),
                                     static_cast<unsigned long long>(high), static_cast<unsigned long long>(low)));
    });
}

PyMethodDef kMethods[] = {
    {"decode", decode, METH_VARARGS, nullptr},
    {"encode", encode, METH_VARARGS, nullptr},
    {"check_submit", check_submit, METH_VARARGS, nullptr},
    {"join_submit", join_submit, METH_VARARGS, nullptr},
    {"apply_update", apply_update, METH_VARARGS, nullptr},
    {"is_tag_of", is_tag_of, METH_VARARGS, nullptr},
    {"act", act, METH_VARARGS, nullptr},
    {"xxh3", xxh3, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "_native_testing", nullptr, -1, kMethods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace rl4sys

PyMODINIT_FUNC PyInit__native_testing() { return PyModule_Create(&rl4sys::kModule); }
