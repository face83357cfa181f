#include "policy/spec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "support/errors.h"

namespace rl4sys::policy {
namespace {

using wire::List;
using wire::Map;
using weights::Tensor;
using wire::Value;

constexpr std::size_t kMaxTensors = 4096, kMaxLayers = 256, kMaxDimensions = 8;
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 26;
constexpr std::int64_t kLayersVersion = 1;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

[[noreturn]] void invalid(const std::string& detail) { throw ProtocolError(Refusal::spec, "not a policy spec: " + detail); }

template <class T>
const T& need(const Map& map, const char* key, const char* type) {
    const Value* value = map.find(key);
    const T* out = value ? value->get<T>() : nullptr;
    if (!out) invalid(std::string(key) + " is not " + type);
    return *out;
}

double number(const Value& value, const std::string& name) {
    if (const auto* x = value.get<double>()) return *x;
    if (const auto* n = value.get<std::int64_t>()) return static_cast<double>(*n);
    if (const auto* n = value.get<std::uint64_t>()) return static_cast<double>(*n);
    if (const auto* text = value.get<std::string>()) {
        if (*text == "inf") return kInfinity;
        if (*text == "-inf") return -kInfinity;
    }
    invalid(name + " is not a number");
}

std::uint64_t product(const std::vector<std::uint64_t>& shape) {
    std::uint64_t out = 1;
    for (const std::uint64_t n : shape) {
        if (n > kMaxElements || out * n > kMaxElements) invalid("an array is too large");
        out *= n;
    }
    return out;
}

std::vector<std::uint64_t> sizes(const Value* value, const std::string& name) {
    const List* list = value ? value->get<List>() : nullptr;
    if (!list || list->size() > kMaxDimensions) invalid(name + " is not a list of sizes");
    std::vector<std::uint64_t> out;
    for (const Value& item : *list) {
        const auto* n = item.get<std::int64_t>();
        if (!n || *n < 1) invalid(name + " is not a list of sizes");
        out.push_back(static_cast<std::uint64_t>(*n));
    }
    product(out);
    return out;
}

// The numpy string of a dtype name, such as "<f4" for "float32".
std::string dtype_of(const std::string& name) {
    static const std::map<std::string, std::string> kNames = {
        {"bool", "|b1"},  {"int8", "|i1"},   {"int16", "<i2"},  {"int32", "<i4"},   {"int64", "<i8"},   {"uint8", "|u1"},
        {"uint16", "<u2"}, {"uint32", "<u4"}, {"uint64", "<u8"}, {"float16", "<f2"}, {"float32", "<f4"}, {"float64", "<f8"},
    };
    const auto found = kNames.find(name);
    if (found == kNames.end()) invalid("unknown dtype " + name.substr(0, 40));
    return found->second;
}

std::vector<double> bounds(const Map& form, const char* key, double missing, std::size_t size) {
    const Value* value = form.find(key);
    if (!value) return std::vector<double>(size, missing);
    if (const List* list = value->get<List>()) {
        if (list->size() != size) invalid(std::string(key) + " has another length than the box");
        std::vector<double> out;
        for (const Value& item : *list) out.push_back(number(item, key));
        return out;
    }
    return std::vector<double>(size, number(*value, key));
}

void check_keys(const Map& form, std::initializer_list<std::string_view> known, const std::string& what) {
    for (const auto& [key, _] : form.items)
        if (std::find(known.begin(), known.end(), key) == known.end()) invalid(what + " has the unknown key " + key.substr(0, 40));
}

std::int64_t whole(const Value* value, std::int64_t missing, const std::string& name) {
    if (!value) return missing;
    const auto* n = value->get<std::int64_t>();
    if (!n) invalid(name + " is not an integer");
    return *n;
}

Function function_of(const std::string& name) {
    constexpr std::pair<const char*, Function> kFunctions[] = {
        {"tanh", Function::tanh}, {"relu", Function::relu}, {"elu", Function::elu},          {"silu", Function::silu},
        {"gelu", Function::gelu}, {"identity", Function::identity}, {"leaky_relu", Function::leaky_relu},
    };
    for (const auto& [known, function] : kFunctions)
        if (name == known) return function;
    invalid("unknown activation " + name.substr(0, 40));
}

std::size_t units_of(const Map& form) {
    const std::int64_t units = whole(form.find("units"), 0, "units");
    if (units < 1 || static_cast<std::uint64_t>(units) > kMaxElements) invalid("a layer has no valid number of units");
    return static_cast<std::size_t>(units);
}

// Compares the tensors of a layer with those of the spec, in order.
class TensorCursor {
public:
    explicit TensorCursor(const std::vector<Tensor>& tensors) : tensors_(tensors) {}

    std::size_t offset() const noexcept { return offset_; }

    void expect(const std::string& name, std::vector<std::uint64_t> shape, bool exact = false) {
        if (at_ == tensors_.size()) invalid("the tensors do not match the layers");
        const Tensor& own = tensors_[at_++];
        if (own.name != name || own.shape != shape || !own.is_float32() || own.exact != exact)
            invalid("the tensors do not match the layers: " + own.name.substr(0, 40) + ", expected " + name);
        offset_ += own.size();
    }

    void end() const {
        if (at_ != tensors_.size()) invalid("the tensors do not match the layers");
    }

private:
    const std::vector<Tensor>& tensors_;
    std::size_t at_ = 0, offset_ = 0;
};

Layer read_layer(const Value& item, std::size_t inputs, std::size_t features, TensorCursor& tensors, std::map<std::string, int>& numbers) {
    const Map* form = item.get<Map>();
    if (!form) invalid("a layer is not a map");
    const auto& kind = need<std::string>(*form, "kind", "a name");
    Layer out{LayerKind::dense, inputs, inputs, Function::identity, tensors.offset()};
    const auto prefix = [&](const char* group) { return std::string(group) + "." + std::to_string(numbers[group]++) + "."; };
    if (kind == "dense") {
        check_keys(*form, {"kind", "units"}, "a dense layer");
        out.outputs = units_of(*form);
        const std::string name = prefix("layers");
        tensors.expect(name + "weight", {out.outputs, inputs});
        tensors.expect(name + "bias", {out.outputs});
    } else if (kind == "activation") {
        check_keys(*form, {"kind", "function"}, "an activation");
        out.kind = LayerKind::activation;
        out.function = function_of(need<std::string>(*form, "function", "a name"));
    } else if (kind == "normalise") {
        check_keys(*form, {"kind"}, "a normalisation");
        out.kind = LayerKind::normalise;
        if (inputs != features) invalid("a normalisation is not the first layer");
        tensors.expect("obs_mean", {inputs}, true);
        tensors.expect("obs_scale", {inputs}, true);
    } else if (kind == "gru") {
        check_keys(*form, {"kind", "units"}, "a gru");
        out.kind = LayerKind::gru;
        out.outputs = units_of(*form);
        const std::string name = prefix("gru");
        tensors.expect(name + "weight_ih", {3 * out.outputs, inputs});
        tensors.expect(name + "weight_hh", {3 * out.outputs, out.outputs});
        tensors.expect(name + "bias_ih", {3 * out.outputs});
        tensors.expect(name + "bias_hh", {3 * out.outputs});
    } else {
        throw Unsupported("the compiled form has no layer of kind '" + kind.substr(0, 40) + "'");
    }
    return out;
}

Head read_head(const Map& document, const Space& actions, std::size_t& outputs) {
    const auto& name = need<std::string>(document, "head", "a name");
    Head out;
    outputs = actions.size();
    if (name == "categorical") {
        out.kind = HeadKind::categorical;
    } else if (name == "gaussian") {
        out.kind = HeadKind::gaussian;
    } else if (name == "squashed_gaussian") {
        out.kind = HeadKind::squashed_gaussian;
        outputs *= 2;
    } else if (name == "q_values") {
        out.kind = HeadKind::q_values;
    } else {
        throw Unsupported("the compiled form has no head '" + name.substr(0, 40) + "'");
    }
    if (actions.discrete != (out.kind == HeadKind::categorical || out.kind == HeadKind::q_values))
        invalid("a head " + name + " cannot act in this space");
    if (const Value* squash = document.find("squash")) {
        const auto* how = squash->get<std::string>();
        if (!how || (*how != "clip" && *how != "tanh")) invalid("squash is neither clip nor tanh");
        out.squash = *how == "tanh";
    }
    if (const Value* value = document.find("log_std_min")) out.log_std_min = number(*value, "log_std_min");
    if (const Value* value = document.find("log_std_max")) out.log_std_max = number(*value, "log_std_max");
    if (const Value* value = document.find("epsilon_ladder")) out.epsilon_ladder = number(*value, "epsilon_ladder");
    if ((out.squash || out.kind == HeadKind::squashed_gaussian) && !actions.bounded()) invalid("the head needs bounded actions");
    return out;
}

}  // namespace

std::size_t Space::size() const noexcept { return discrete ? static_cast<std::size_t>(n) : low.size(); }

bool Space::bounded() const noexcept {
    const auto finite = [](double x) { return std::isfinite(x); };
    return !discrete && std::all_of(low.begin(), low.end(), finite) && std::all_of(high.begin(), high.end(), finite);
}

bool Space::operator==(const Space& other) const noexcept {
    return discrete == other.discrete && shape == other.shape && dtype == other.dtype && low == other.low && high == other.high &&
           n == other.n && start == other.start;
}

Space read_space(const Map& form) {
    const auto& type = need<std::string>(form, "type", "the kind of a space");
    Space out;
    if (type == "Box") {
        check_keys(form, {"type", "shape", "dtype", "low", "high"}, "a Box");
        out.shape = sizes(form.find("shape"), "shape");
        out.dtype = form.find("dtype") ? dtype_of(need<std::string>(form, "dtype", "a name")) : "<f4";
        const std::size_t size = static_cast<std::size_t>(product(out.shape));
        out.low = bounds(form, "low", -kInfinity, size);
        out.high = bounds(form, "high", kInfinity, size);
        for (std::size_t i = 0; i < size; ++i)
            if (!(out.low[i] <= out.high[i])) invalid("a box needs low <= high");
        if (out.dtype != "<f4" && out.dtype != "<f8") throw Unsupported("the compiled form has no Box of dtype " + out.dtype);
    } else if (type == "Discrete") {
        check_keys(form, {"type", "n", "start", "dtype"}, "a Discrete");
        out.discrete = true;
        out.n = whole(form.find("n"), 0, "n");
        out.start = whole(form.find("start"), 0, "start");
        out.dtype = form.find("dtype") ? dtype_of(need<std::string>(form, "dtype", "a name")) : "<i8";
        if (out.n < 1 || static_cast<std::uint64_t>(out.n) > kMaxElements) invalid("a discrete space needs n >= 1");
        if (out.dtype != "<i8") throw Unsupported("the compiled form has no Discrete of dtype " + out.dtype);
    } else {
        throw Unsupported("the compiled form has no space " + type.substr(0, 40));
    }
    return out;
}

std::vector<Tensor> read_tensors(const List& form) {
    if (form.empty() || form.size() > kMaxTensors) invalid(std::to_string(form.size()) + " tensors");
    std::vector<Tensor> out;
    std::set<std::string> names;
    for (const Value& item : form) {
        const List* list = item.get<List>();
        if (!list || list->size() < 2 || list->size() > 4 || !(*list)[0].get<std::string>()) invalid("a tensor is not a list");
        Tensor tensor;
        tensor.name = *(*list)[0].get<std::string>();
        tensor.shape = sizes(&(*list)[1], "the shape of a tensor");
        if (list->size() > 2) {
            const auto* dtype = (*list)[2].get<std::string>();
            if (!dtype) invalid("the dtype of a tensor is not a name");
            tensor.dtype = dtype_of(*dtype);
        }
        if (list->size() > 3) {
            const bool* exact = (*list)[3].get<bool>();
            if (!exact) invalid("`exact` of a tensor is not true or false");
            tensor.exact = *exact;
        }
        if (!names.insert(tensor.name).second) invalid("two tensors have the same name");
        out.push_back(std::move(tensor));
    }
    return out;
}

PolicySpec read_spec(const Map& form) {
    check_keys(form, {"observation_space", "action_space", "kind", "document", "tensors", "columns", "blob"}, "the spec");
    const auto& kind = need<std::string>(form, "kind", "a name");
    if (kind != "layers") throw Unsupported("the compiled form has no policy of kind '" + kind.substr(0, 40) + "'");
    PolicySpec out;
    out.observations = read_space(need<Map>(form, "observation_space", "a map"));
    out.actions = read_space(need<Map>(form, "action_space", "a map"));
    out.tensors = read_tensors(need<List>(form, "tensors", "a list"));
    const auto& document = need<Map>(form, "document", "a map");
    if (whole(document.find("layers_version"), 0, "layers_version") != kLayersVersion) invalid("another version of layers");
    const auto& layers = need<List>(document, "layers", "a list");
    if (layers.empty() || layers.size() > kMaxLayers) invalid(std::to_string(layers.size()) + " layers");
    TensorCursor tensors(out.tensors);
    std::map<std::string, int> numbers;
    out.features = out.observations.size();
    std::size_t width = out.features;
    for (const Value& item : layers) {
        out.layers.push_back(read_layer(item, width, out.features, tensors, numbers));
        width = out.layers.back().outputs;
        if (out.layers.back().kind == LayerKind::gru) {
            if (out.state_size) invalid("a network has several recurrent layers");
            out.state_size = width;
        }
    }
    out.head = read_head(document, out.actions, out.outputs);
    if (width != out.outputs) invalid("the layers have another number of outputs than the head needs");
    out.head.tensor = tensors.offset();
    if (out.head.kind == HeadKind::gaussian) tensors.expect("log_std", {out.outputs});
    if (out.head.kind == HeadKind::q_values) tensors.expect("epsilon", {1}, true);
    tensors.end();
    out.weights = tensors.offset();
    const auto& columns = need<List>(form, "columns", "a list");
    if (columns.size() != (out.state_size ? 1u : 0u)) invalid("the extra columns do not match the recurrent state");
    return out;
}

}  // namespace rl4sys::policy
