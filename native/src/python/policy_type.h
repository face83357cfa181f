// What the Python types of policies and random numbers hold: `Policy` a PolicyPointer, `Sampler` a policy::Sampler.
#pragma once

#include <memory>

#include "policy/policy.h"
#include "python/convert.h"

namespace rl4sys::python {

using PolicyPointer = std::shared_ptr<const policy::Policy>;

/// A policy bound to the random numbers and buffers of one thread, in a `Chooser`.
struct Chooser {
    PolicyPointer policy;
    Ref owner;  // of the sampler
    policy::Sampler& sampler;
    policy::Scratch scratch;
    bool explore;
};

/// True for a `_native.IoThread`.
bool is_io(PyObject* object) noexcept;
/// The policy that a `_native.IoThread` has now; null without one. The object must be one.
const policy::Policy* current_policy(PyObject* io) noexcept;

}  // namespace rl4sys::python
