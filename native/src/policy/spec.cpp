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
    const auto* text = value.get<std::string>();
    if (text && *text == "inf") return kInfinity;
    if (text && *text == "-inf") return -kInfinity;
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

// The entry of a table of names; null for an unknown name.
template <class T, std::size_t N>
const T* find_name(const std::pair<const char*, T> (&table)[N], const std::string& name) {
    for (const auto& [known, entry] : table)
        if (name == known) return &entry;
    return nullptr;
}

// The numpy string of a dtype name.
std::string dtype_of(const std::string& name) {
    constexpr std::pair<const char*, const char*> kNames[] = {
        {"bool", "|b1"},  {"int8", "|i1"},   {"int16", "<i2"},  {"int32", "<i4"},   {"int64", "<i8"},   {"uint8", "|u1"},
        {"uint16", "<u2"}, {"uint32", "<u4"}, {"uint64", "<u8"}, {"float16", "<f2"}, {"float32", "<f4"}, {"float64", "<f8"},
    };
    const char* const* found = find_name(kNames, name);
    if (!found) invalid("unknown dtype " + name.substr(0, 40));
    return *found;
}

std::vector<double> bounds(const Map& form, const char* key, double missing, std::size_t size) {
    const Value* value = form.find(key);
    const List* list = value ? value->get<List>() : nullptr;
    if (!list) return std::vector<double>(size, value ? number(*value, key) : missing);
    if (list->size() != size) invalid(std::string(key) + " has another length than the box");
    std::vector<double> out;
    for (const Value& item : *list) out.push_back(number(item, key));
    return out;
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

// Compares the tensors that the layers and the head need with those of the spec, in order.
struct Needed {
    void add(const std::string& name, const std::vector<std::uint64_t>& shape, bool exact = false) {
        if (at == own.size()) invalid("the tensors do not match the layers");
        const Tensor& one = own[at++];
        if (one.name != name || one.shape != shape || !one.is_float32() || one.exact != exact)
            invalid("the tensors do not match the layers: " + one.name.substr(0, 40) + ", expected " + name);
        elements += one.size();
    }

    const std::vector<Tensor>& own;
    std::size_t at = 0, elements = 0;
};

using Numbers = std::map<std::string, int>;  // of the layers so far, by group

Layer read_layer(const Value& item, std::size_t inputs, std::size_t features, Needed& needed, Numbers& numbers) {
    const Map* form = item.get<Map>();
    if (!form) invalid("a layer is not a map");
    const auto& kind = need<std::string>(*form, "kind", "a name");
    Layer out{LayerKind::dense, inputs, inputs, Function::identity, needed.elements};
    if (kind == "dense" || kind == "gru") {
        check_keys(*form, {"kind", "units"}, kind == "dense" ? "a dense layer" : "a gru");
        const std::int64_t units = whole(form->find("units"), 0, "units");
        if (units < 1 || static_cast<std::uint64_t>(units) > kMaxElements) invalid("a layer has no valid number of units");
        out.outputs = static_cast<std::size_t>(units);
        const std::string group = kind == "dense" ? "layers" : kind, name = group + "." + std::to_string(numbers[group]++) + ".";
        if (kind == "dense") {
            needed.add(name + "weight", {out.outputs, inputs});
            needed.add(name + "bias", {out.outputs});
        } else {
            out.kind = LayerKind::gru;
            needed.add(name + "weight_ih", {3 * out.outputs, inputs});
            needed.add(name + "weight_hh", {3 * out.outputs, out.outputs});
            needed.add(name + "bias_ih", {3 * out.outputs});
            needed.add(name + "bias_hh", {3 * out.outputs});
        }
    } else if (kind == "activation") {
        constexpr std::pair<const char*, Function> kFunctions[] = {
            {"tanh", Function::tanh}, {"relu", Function::relu}, {"elu", Function::elu}, {"silu", Function::silu},
            {"gelu", Function::gelu}, {"identity", Function::identity}, {"leaky_relu", Function::leaky_relu},
        };
        check_keys(*form, {"kind", "function"}, "an activation");
        const auto& name = need<std::string>(*form, "function", "a name");
        const Function* function = find_name(kFunctions, name);
        if (!function) invalid("unknown activation " + name.substr(0, 40));
        out.kind = LayerKind::activation;
        out.function = *function;
    } else if (kind == "normalise") {
        check_keys(*form, {"kind"}, "a normalisation");
        if (inputs != features) invalid("a normalisation is not the first layer");
        out.kind = LayerKind::normalise;
        needed.add("obs_mean", {inputs}, true);
        needed.add("obs_scale", {inputs}, true);
    } else {
        throw Unsupported("the compiled form has no layer of kind '" + kind.substr(0, 40) + "'");
    }
    return out;
}

Head read_head(const Map& document, const Space& actions, std::size_t& outputs) {
    const auto& name = need<std::string>(document, "head", "a name");
    constexpr std::pair<const char*, HeadKind> kHeads[] = {
        {"categorical", HeadKind::categorical}, {"gaussian", HeadKind::gaussian},
        {"squashed_gaussian", HeadKind::squashed_gaussian}, {"q_values", HeadKind::q_values},
    };
    const HeadKind* kind = find_name(kHeads, name);
    if (!kind) throw Unsupported("the compiled form has no head '" + name.substr(0, 40) + "'");
    Head out;
    out.kind = *kind;
    outputs = actions.size() * (out.kind == HeadKind::squashed_gaussian ? 2 : 1);
    if (actions.discrete != (out.kind == HeadKind::categorical || out.kind == HeadKind::q_values))
        invalid("a head " + name + " cannot act in this space");
    if (const Value* squash = document.find("squash")) {
        const auto* how = squash->get<std::string>();
        if (!how || (*how != "clip" && *how != "tanh")) invalid("squash is neither clip nor tanh");
        out.squash = *how == "tanh";
    }
    check_keys(document, {"layers_version", "layers", "head", "squash", "log_std_min", "log_std_max", "atoms", "v_min", "v_max", "epsilon_ladder"},
               "the policy");
    const auto within = [&](const char* key, double least, double most, double missing) {
        const Value* given = document.find(key);
        const double value = given ? number(*given, key) : missing;
        if (!(least <= value && value <= most)) invalid(std::string(key) + " is out of range");
        return value;
    };
    out.log_std_min = within("log_std_min", -20.0, 2.0, out.log_std_min);
    out.log_std_max = within("log_std_max", -20.0, 2.0, out.log_std_max);
    out.epsilon_ladder = within("epsilon_ladder", 0.0, 100.0, out.epsilon_ladder);
    if ((out.squash || out.kind == HeadKind::squashed_gaussian) && !actions.bounded()) invalid("the head needs bounded actions");
    return out;
}

}  // namespace

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
    out.discrete = type == "Discrete";
    out.dtype = out.discrete ? "<i8" : "<f4";
    if (!out.discrete && type != "Box") throw Unsupported("the compiled form has no space " + type.substr(0, 40));
    if (form.find("dtype")) out.dtype = dtype_of(need<std::string>(form, "dtype", "a name"));
    if (out.discrete) {
        check_keys(form, {"type", "n", "start", "dtype"}, "a Discrete");
        out.n = whole(form.find("n"), 0, "n");
        out.start = whole(form.find("start"), 0, "start");
        if (out.n < 1 || static_cast<std::uint64_t>(out.n) > kMaxElements) invalid("a discrete space needs n >= 1");
    } else {
        check_keys(form, {"type", "shape", "dtype", "low", "high"}, "a Box");
        out.shape = sizes(form.find("shape"), "shape");
        const auto size = static_cast<std::size_t>(product(out.shape));
        out.low = bounds(form, "low", -kInfinity, size);
        out.high = bounds(form, "high", kInfinity, size);
        for (std::size_t i = 0; i < size; ++i)
            if (!(out.low[i] <= out.high[i])) invalid("a box needs low <= high");
    }
    if (out.discrete ? out.dtype != "<i8" : out.dtype != "<f4" && out.dtype != "<f8")
        throw Unsupported("the compiled form has no " + type + " of dtype " + out.dtype);
    return out;
}

std::vector<Tensor> read_tensors(const List& form) {
    if (form.empty() || form.size() > kMaxTensors) invalid(std::to_string(form.size()) + " tensors");
    std::vector<Tensor> out;
    std::set<std::string> names;
    for (const Value& item : form) {
        const List* list = item.get<List>();
        if (!list || list->size() < 2 || list->size() > 4 || !(*list)[0].get<std::string>()) invalid("a tensor is not a list");
        const Value dtype = list->size() > 2 ? (*list)[2] : "float32", exact = list->size() > 3 ? (*list)[3] : false;
        const auto& name = *(*list)[0].get<std::string>();
        if (!dtype.get<std::string>()) invalid("the dtype of a tensor is not a name");
        if (!exact.get<bool>()) invalid("`exact` of a tensor is not true or false");
        const auto shape = sizes(&(*list)[1], "the shape of a tensor");
        out.push_back({name, shape, dtype_of(*dtype.get<std::string>()), *exact.get<bool>()});
        if (!names.insert(out.back().name).second) invalid("two tensors have the same name");
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
    Needed needed{out.tensors};
    Numbers numbers;
    out.features = out.observations.size();
    std::size_t width = out.features;
    for (const Value& item : layers) {
        out.layers.push_back(read_layer(item, width, out.features, needed, numbers));
        width = out.layers.back().outputs;
        if (out.layers.back().kind == LayerKind::gru) {
            if (out.state_size) invalid("a network has several recurrent layers");
            out.state_size = width;
        }
    }
    out.head = read_head(document, out.actions, out.outputs);
    if (width != out.outputs) invalid("the layers have another number of outputs than the head needs");
    out.head.tensor = needed.elements;
    if (out.head.kind == HeadKind::gaussian) needed.add("log_std", {out.outputs});
    if (out.head.kind == HeadKind::q_values) needed.add("epsilon", {1}, true);
    out.weights = needed.elements;
    if (needed.at != out.tensors.size()) invalid("the tensors do not match the layers");
    const auto& columns = need<List>(form, "columns", "a list");
    if (columns.size() != (out.state_size ? 1u : 0u)) invalid("the extra columns do not match the recurrent state");
    return out;
}

}  // namespace rl4sys::policy
