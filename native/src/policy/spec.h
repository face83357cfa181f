// The description from which an actor builds a policy: spaces, layers, head and tensors, as a Welcome has them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "policy/kernels.h"
#include "weights/tensors.h"
#include "wire/value.h"

namespace rl4sys::policy {

/// A policy or a space that only the pure Python form of the actor has.
class Unsupported : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// A Box or a Discrete space.
struct Space {
    bool discrete = false;
    std::vector<std::uint64_t> shape;  // of a Box
    std::string dtype;
    std::vector<double> low, high;     // of a Box: for each element
    std::int64_t n = 0, start = 0;     // of a Discrete

    std::size_t size() const noexcept { return discrete ? static_cast<std::size_t>(n) : low.size(); }
    bool bounded() const noexcept;
    bool operator==(const Space& other) const noexcept;
};

/// Reads the JSON form of a space. Throws ProtocolError `spec`, or Unsupported for another kind.
Space read_space(const wire::Map& form);

/// Reads a list [name, shape, dtype, exact], whose last two may be left out. Throws ProtocolError `spec`.
std::vector<weights::Tensor> read_tensors(const wire::List& form);

/// The kinds of layers that the compiled form has.
enum class LayerKind : std::uint8_t { dense, activation, normalise, gru };

struct Layer {
    LayerKind kind;
    std::size_t inputs = 0, outputs = 0;
    Function function = Function::identity;
    std::size_t tensor = 0;  // offset of its weights in the flat array
};

enum class HeadKind : std::uint8_t { categorical, gaussian, squashed_gaussian, q_values };

struct Head {
    HeadKind kind = HeadKind::categorical;
    bool squash = false;
    double log_std_min = -20.0, log_std_max = 2.0;
    double epsilon_ladder = 0.0;
    std::size_t tensor = 0;  // offset of log_std or epsilon in the flat array
};

/// A checked description of a policy of the kind `layers`.
struct PolicySpec {
    Space observations, actions;
    std::vector<Layer> layers;
    Head head;
    std::vector<weights::Tensor> tensors;
    std::size_t features = 0, outputs = 0, state_size = 0, weights = 0;
};

/// Reads the field `spec` of a Welcome. Throws ProtocolError `spec`, or Unsupported.
PolicySpec read_spec(const wire::Map& form);

}  // namespace rl4sys::policy
