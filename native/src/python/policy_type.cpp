// `Policy`: one version of a policy. `Sampler`: the random numbers of one thread. `Chooser`: a policy bound to a sampler.
#include "python/policy_type.h"

#include <cstring>
#include <optional>
#include <stdexcept>

#include "python/parts.h"
#include "support/bytes.h"

namespace rl4sys::python {
namespace {

// The types of the module, which has no second instance.
PyTypeObject* policy_class = nullptr;
PyTypeObject* sampler_class = nullptr;
PyTypeObject* chooser_class = nullptr;

struct PolicyObject {
    PyObject_HEAD
    std::shared_ptr<const policy::Policy> policy;
};

struct SamplerObject {
    PyObject_HEAD
    policy::Sampler sampler;
};

struct ChooserObject {
    PyObject_HEAD
    std::shared_ptr<const policy::Policy> policy;
    PyObject* sampler;
    policy::Scratch scratch;
    bool explore;
};

template <class T>
T* allocate(PyTypeObject* type) {
    auto* const alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    PyObject* const out = alloc(type, 0);
    if (!out) throw PythonError{};
    return reinterpret_cast<T*>(out);
}

void free_object(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

const policy::Policy& policy_in(PyObject* self) { return *reinterpret_cast<PolicyObject*>(self)->policy; }

void policy_dealloc(PyObject* self) {
    reinterpret_cast<PolicyObject*>(self)->policy.~shared_ptr();
    free_object(self);
}

int policy_buffer(PyObject* self, Py_buffer* view, int flags) {
    const std::vector<float>& flat = policy_in(self).snapshot().flat;
    return PyBuffer_FillInfo(view, self, const_cast<float*>(flat.data()), static_cast<Py_ssize_t>(flat.size() * sizeof(float)), 1, flags);
}

PyObject* policy_key(PyObject* self, void*) { return PyLong_FromVoidPtr(const_cast<policy::Policy*>(&policy_in(self))); }
PyObject* policy_generation(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(policy_in(self).snapshot().generation); }
PyObject* policy_version(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(policy_in(self).snapshot().version); }
PyObject* policy_digest(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(policy_in(self).snapshot().digest); }
PyObject* policy_others(PyObject* self, void*) {
    return guarded([&] { return bytes_object(policy_in(self).snapshot().others); });
}

PyObject* policy_bind(PyObject* self, PyObject* args) {
    return guarded([&] {
        PyObject* sampler = nullptr;
        int explore = 0;
        if (!PyArg_ParseTuple(args, "Op", &sampler, &explore)) throw PythonError{};
        sampler_of(sampler);
        const auto& policy = policy_of(self);
        policy::Scratch scratch(policy->spec());
        auto* out = allocate<ChooserObject>(chooser_class);
        new (&out->policy) std::shared_ptr<const policy::Policy>(policy);
        new (&out->scratch) policy::Scratch(std::move(scratch));
        out->sampler = Py_NewRef(sampler);
        out->explore = explore != 0;
        return Ref(reinterpret_cast<PyObject*>(out));
    });
}

PyGetSetDef kPolicyFields[] = {
    {"key", policy_key, nullptr, "An integer that identifies the policy while it is in memory.", nullptr},
    {"generation", policy_generation, nullptr, nullptr, nullptr},
    {"version", policy_version, nullptr, nullptr, nullptr},
    {"digest", policy_digest, nullptr, nullptr, nullptr},
    {"others", policy_others, nullptr, "The bytes of the tensors that are not float32.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef kPolicyMethods[] = {
    {"bind", policy_bind, METH_VARARGS, "Return a function of an observation and a mask, for the thread of a sampler."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot kPolicySlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(policy_dealloc)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(policy_buffer)},
    {Py_tp_getset, kPolicyFields},
    {Py_tp_methods, kPolicyMethods},
    {0, nullptr},
};

PyType_Spec kPolicySpec = {"rl4sys_zmq._native.Policy", sizeof(PolicyObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                           kPolicySlots};

void chooser_dealloc(PyObject* self) {
    auto* chooser = reinterpret_cast<ChooserObject*>(self);
    Py_CLEAR(chooser->sampler);
    chooser->scratch.~Scratch();
    chooser->policy.~shared_ptr();
    free_object(self);
}

// choose(features or index, mask or None) -> (raw, act, log_prob): integers of a Discrete; of a Box float32 and float64 bytes.
PyObject* chooser_call(PyObject* self, PyObject* args, PyObject*) {
    return guarded([&] {
        auto& chooser = *reinterpret_cast<ChooserObject*>(self);
        PyObject *observation = nullptr, *mask = nullptr;
        if (!PyArg_ParseTuple(args, "OO", &observation, &mask)) throw PythonError{};
        const policy::PolicySpec& spec = chooser.policy->spec();
        std::optional<Buffer> features, allowed;
        std::int64_t index = 0;
        if (PyLong_Check(observation)) {
            index = PyLong_AsLongLong(observation);
            if (PyErr_Occurred()) throw PythonError{};
            if (!spec.observations.discrete || index < 0 || index >= spec.observations.n) throw std::runtime_error("no such observation");
        } else {
            features.emplace(observation);
            if (spec.observations.discrete || features->bytes().size() != spec.features * sizeof(float))
                throw std::runtime_error("an observation of another size");
        }
        if (mask != Py_None) {
            allowed.emplace(mask);
            if (!spec.actions.discrete || allowed->bytes().size() != spec.actions.size()) throw std::runtime_error("a mask of another size");
        }
        const auto* inputs = features ? reinterpret_cast<const float*>(features->bytes().data()) : nullptr;
        const auto* bits = allowed ? reinterpret_cast<const std::uint8_t*>(allowed->bytes().data()) : nullptr;
        const policy::Choice choice =
            chooser.policy->act(inputs, index, bits, chooser.explore, nullptr, sampler_of(chooser.sampler), chooser.scratch);
        if (spec.actions.discrete) {
            const long long action = choice.index;
            return checked(Py_BuildValue("(LLd)", action, action, choice.log_prob));
        }
        const auto size = static_cast<Py_ssize_t>(spec.actions.size());
        return checked(Py_BuildValue("(y#y#d)", reinterpret_cast<const char*>(choice.raw), size * Py_ssize_t{sizeof(float)},
                                     reinterpret_cast<const char*>(choice.act), size * Py_ssize_t{sizeof(double)}, choice.log_prob));
    });
}

PyType_Slot kChooserSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(chooser_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(chooser_call)},
    {0, nullptr},
};

PyType_Spec kChooserSpec = {"rl4sys_zmq._native.Chooser", sizeof(ChooserObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                            kChooserSlots};

PyObject* sampler_new(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&] {
        const char* seed = nullptr;
        Py_ssize_t size = 0;
        double place = 0.0;
        if (!PyArg_ParseTuple(args, "y#d", &seed, &size, &place)) throw PythonError{};
        const std::vector<std::uint32_t> words = seed_words({seed, static_cast<std::size_t>(size)});
        auto* out = allocate<SamplerObject>(type);
        new (&out->sampler) policy::Sampler(words, place);
        return Ref(reinterpret_cast<PyObject*>(out));
    });
}

void sampler_dealloc(PyObject* self) {
    reinterpret_cast<SamplerObject*>(self)->sampler.~Sampler();
    free_object(self);
}

PyObject* sampler_uniform(PyObject* self, PyObject*) {
    return PyFloat_FromDouble(reinterpret_cast<SamplerObject*>(self)->sampler.uniform());
}

std::size_t count_of(PyObject* number) {
    const std::size_t count = PyLong_AsSize_t(number);
    if (PyErr_Occurred()) throw PythonError{};
    return count;
}

PyObject* sampler_random_bytes(PyObject* self, PyObject* number) {
    return guarded([&] {
        std::string out;
        out.reserve(8 * count_of(number));
        for (std::size_t n = count_of(number); n; --n) support::append(out, reinterpret_cast<SamplerObject*>(self)->sampler.bits64());
        return bytes_object(out);
    });
}

PyObject* sampler_normals(PyObject* self, PyObject* number) {
    return guarded([&] {
        const std::size_t count = count_of(number);
        const float* drawn = reinterpret_cast<SamplerObject*>(self)->sampler.normals(count);
        return bytes_object(support::bytes_of(drawn, count * sizeof(float)));
    });
}

PyMethodDef kSamplerMethods[] = {
    {"uniform", sampler_uniform, METH_NOARGS, "The next number in [0, 1)."},
    {"random_bytes", sampler_random_bytes, METH_O, "The next random bytes, eight for each of the given count."},
    {"normals", sampler_normals, METH_O, "The next standard normal numbers, as the bytes of float32."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot kSamplerSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(sampler_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(sampler_dealloc)},
    {Py_tp_methods, kSamplerMethods},
    {0, nullptr},
};

PyType_Spec kSamplerSpec = {"rl4sys_zmq._native.Sampler", sizeof(SamplerObject), 0, Py_TPFLAGS_DEFAULT, kSamplerSlots};

PyTypeObject* add_type(PyObject* module, PyType_Spec& spec) {
    auto* const type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)).release());
    if (PyModule_AddType(module, type) < 0) throw PythonError{};
    return type;
}

}  // namespace

Ref policy_object(std::shared_ptr<const policy::Policy> policy) {
    auto* out = allocate<PolicyObject>(policy_class);
    new (&out->policy) std::shared_ptr<const policy::Policy>(std::move(policy));
    return Ref(reinterpret_cast<PyObject*>(out));
}

const std::shared_ptr<const policy::Policy>& policy_of(PyObject* object) {
    if (Py_TYPE(object) != policy_class) {
        PyErr_SetString(PyExc_TypeError, "not a compiled policy");
        throw PythonError{};
    }
    return reinterpret_cast<PolicyObject*>(object)->policy;
}

policy::Sampler& sampler_of(PyObject* object) {
    if (Py_TYPE(object) != sampler_class) {
        PyErr_SetString(PyExc_TypeError, "not a sampler");
        throw PythonError{};
    }
    return reinterpret_cast<SamplerObject*>(object)->sampler;
}

std::vector<std::uint32_t> seed_words(std::string_view bytes) {
    std::vector<std::uint32_t> out((bytes.size() + 3) / 4);
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    while (out.size() > 1 && !out.back()) out.pop_back();
    if (out.empty()) out.push_back(0);
    return out;
}

void add_policy_types(PyObject* module) {
    policy_class = add_type(module, kPolicySpec);
    sampler_class = add_type(module, kSamplerSpec);
    chooser_class = add_type(module, kChooserSpec);
}

}  // namespace rl4sys::python
