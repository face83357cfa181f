// The Python types of policies and random numbers.
#pragma once

#include <memory>

#include "policy/policy.h"
#include "python/convert.h"

namespace rl4sys::python {

/// A new `_native.Policy`.
Ref policy_object(std::shared_ptr<const policy::Policy> policy);

/// The policy of a `_native.Policy`. Throws PythonError for another object.
const std::shared_ptr<const policy::Policy>& policy_of(PyObject* object);

/// The random numbers of a `_native.Sampler`. Throws PythonError for another object.
policy::Sampler& sampler_of(PyObject* object);

/// The 32-bit words of a non-negative integer as little-endian bytes, lowest first.
std::vector<std::uint32_t> seed_words(std::string_view bytes);

}  // namespace rl4sys::python
