// `Policy`: one version of a policy. `Sampler`: the random numbers of one thread. `Chooser`: a policy bound to a sampler.
#include <cstring>

#include "python/parts.h"
#include "support/bytes.h"

namespace rl4sys::python {
namespace {

int policy_buffer(PyObject* self, Py_buffer* view, int flags) {
    const std::vector<float>& flat = held<PolicyPointer>(self)->snapshot().flat;
    const auto bytes = static_cast<Py_ssize_t>(flat.size() * sizeof(float));
    return PyBuffer_FillInfo(view, self, const_cast<float*>(flat.data()), bytes, 1, flags);
}

wire::List policy_head(PolicyPointer& policy) {
    const weights::Snapshot& its = policy->snapshot();
    return {reinterpret_cast<std::uintptr_t>(policy.get()), its.generation, its.version, its.digest, wire::Bytes{its.others}};
}

Ref policy_bind(PolicyPointer& policy, PyObject* sampler, bool explore) {
    if (policy->spec().state_size) throw std::runtime_error("a policy with a state acts in numpy");
    auto& its = held_of<policy::Sampler>(sampler);
    return new_object<Chooser>(policy, Ref(Py_NewRef(sampler)), its, policy::Scratch(policy->spec()), explore);
}

Ref choose(Chooser& chooser, PyObject* observation, std::optional<Buffer> mask) {
    const policy::PolicySpec& spec = chooser.policy->spec();
    const policy::Space &observations = spec.observations, &actions = spec.actions;
    std::optional<Buffer> features;
    std::int64_t index = 0;
    if (PyLong_Check(observation)) {
        index = argument<std::int64_t>(observation);
        if (!observations.discrete || index < 0 || index >= observations.n) throw std::runtime_error("no such observation");
    } else {
        features.emplace(observation);
        if (observations.discrete || features->bytes().size() != spec.features * sizeof(float))
            throw std::runtime_error("an observation of another size");
    }
    if (mask && (!actions.discrete || mask->bytes().size() != actions.size())) throw std::runtime_error("a mask of another size");
    const auto* const inputs = features ? features->as<float>() : nullptr;
    const auto* const allowed = mask ? mask->as<std::uint8_t>() : nullptr;
    const policy::Choice choice =
        chooser.policy->act(inputs, index, allowed, chooser.explore, nullptr, chooser.sampler, chooser.scratch);
    if (actions.discrete) {
        const long long action = choice.index;
        return checked(Py_BuildValue("(LLd)", action, action, choice.log_prob));
    }
    const auto size = static_cast<Py_ssize_t>(actions.size());
    return checked(Py_BuildValue("(y#y#d)", reinterpret_cast<const char*>(choice.raw), size * Py_ssize_t{sizeof(float)},
                                 reinterpret_cast<const char*>(choice.act), size * Py_ssize_t{sizeof(double)}, choice.log_prob));
}

// `seed` is a non-negative integer as little-endian bytes.
Ref new_sampler(Buffer seed, double place) {
    const std::string_view bytes = seed.bytes();
    std::vector<std::uint32_t> words((bytes.size() + 3) / 4);
    if (!bytes.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
    while (words.size() > 1 && !words.back()) words.pop_back();
    if (words.empty()) words.push_back(0);
    return new_object<policy::Sampler>(words, place);
}

Ref random_bytes(policy::Sampler& sampler, std::size_t count) {
    std::string out;
    out.reserve(8 * count);
    for (; count; --count) support::append(out, sampler.bits64());
    return bytes_object(out);
}

Ref normals(policy::Sampler& sampler, std::size_t count) {
    return bytes_object(support::bytes_of(sampler.normals(count), count * sizeof(float)));
}

PyMethodDef kPolicyMethods[] = {
    function<policy_head>("head"), function<policy_bind>("bind"),
    {},
};

PyMethodDef kChooserMethods[] = {
    function<choose>("choose"),
    {},
};

PyMethodDef kSamplerMethods[] = {
    function<&policy::Sampler::uniform>("uniform"), function<random_bytes>("random_bytes"), function<normals>("normals"),
    {},
};

}  // namespace

void add_policy_types(PyObject* module) {
    add_type_of<PolicyPointer>(module, "rl4sys_zmq._native.Policy", kPolicyMethods, {slot(Py_bf_getbuffer, policy_buffer)});
    add_type_of<Chooser>(module, "rl4sys_zmq._native.Chooser", kChooserMethods, {});
    const PyType_Slot create = slot(Py_tp_new, construct<new_sampler>);
    add_type_of<policy::Sampler>(module, "rl4sys_zmq._native.Sampler", kSamplerMethods, {create});
}

}  // namespace rl4sys::python
