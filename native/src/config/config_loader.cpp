// The configuration files of agents (rl4sys_zmq/config/agent.py): a table says how each key is checked, read and written.
#include "rl4sys/config_loader.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <tuple>

#include "config/options.h"

namespace rl4sys {
namespace {

using cppclient::AgentConfig;
using cppclient::ConfigurationError;
using nlohmann::json;

constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;
constexpr std::size_t kLongestKey = 64;
constexpr double kLongest = 10.0 * 365 * 86'400, kSimilar = 0.65;
constexpr const char* kFlat[] = {"input_size", "act_dim", "act_limit", "continuous"};

/// What a value must be.
struct Check {
    std::string wanted;               // for errors: "true or false"; or the whole error, with `is_refusal`
    std::function<bool(json&)> fits;  // can change the value to its usual form. An exception has the error's text
    bool is_refusal = false;
};

using Member = std::variant<std::monostate, std::string AgentConfig::*, bool AgentConfig::*, std::int32_t AgentConfig::*,
                            std::int64_t AgentConfig::*, double AgentConfig::*, std::optional<std::int64_t> AgentConfig::*,
                            std::optional<double> AgentConfig::*>;

/// One key of a file. Without a member, its value is checked only, or read elsewhere.
struct Row {
    std::vector<std::string> names;
    Member member;
    Check check;
};

std::string shown(const json& value) {
    std::string text =
        value.is_string() ? "'" + value.get<std::string>() + "'" : value.dump(-1, ' ', false, json::error_handler_t::replace);
    return text.size() > 40 ? text.substr(0, 37) + "..." : text;
}

json checked_value(const Row& row, const std::string& key, const json& given) {
    json value = given;
    try {
        if (row.check.fits(value)) return value;
    } catch (const ConfigurationError&) {
        throw;  // it names a key in this mapping
    } catch (const std::runtime_error& error) {
        throw ConfigurationError(key + ": " + error.what());
    }
    throw ConfigurationError(
        key + ": " + (row.check.is_refusal ? row.check.wanted : "expected " + row.check.wanted + ", not " + shown(given)));
}

bool is_printable(const json& value, std::ptrdiff_t most) {
    if (!value.is_string() || value == "") return false;
    const auto& text = value.get_ref<const std::string&>();
    return std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 32 || c == 127; }) &&
           std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }) <= most;
}

bool is_name(const json& value) {
    constexpr std::string_view kEnds = ". ";
    if (!is_printable(value, 200)) return false;
    const auto& text = value.get_ref<const std::string&>();
    return text.find_first_of("/\\:") == text.npos && kEnds.find(text.front()) == kEnds.npos &&
           kEnds.find(text.back()) == kEnds.npos;
}

bool is_algorithm(json& value) {
    if (!is_printable(value, 256)) return false;
    value = config::algorithm_key(value.get<std::string>());
    return true;
}

bool is_address(json& value) { return value.is_string() && !config::uri_of(value.get<std::string>()).empty(); }

bool is_compression(json& value) {
    if (value == "off" || value == "zstd") value = value == "zstd";
    return value.is_boolean();
}

bool is_space(json& value) { return value.is_object() && (config::space_of(value), true); }

bool are_weights(json& value) {
    const json valid = {{"wire_dtype", {nullptr, "fp32", "bf16", "grid"}}, {"level", {nullptr, 0, 1, "auto"}}};
    if (!value.is_object()) return false;
    json out = json::object();
    for (const auto& [key, item] : value.items()) {
        if (!valid.contains(key))
            throw ConfigurationError("weights." + key + ": no such key; the valid ones are level, wire_dtype");
        const json& choices = valid[key];
        if (std::find(choices.begin(), choices.end(), item) == choices.end() || item.is_number_float())
            throw ConfigurationError("weights." + key + ": expected one of " + choices.dump() + ", not " + shown(item));
        if (!item.is_null()) out[key] = item;
    }
    value = std::move(out);
    return true;
}

Check integer(std::int64_t low, std::int64_t high = kMaxCount) {
    return {"an integer from " + std::to_string(low) + " to " + std::to_string(high),
            [=](json& v) { return v.is_number_integer() && low <= v && v <= high; }};
}

// `above`: `low` itself is not valid.
Check number(double low, double high = kLongest, bool above = false) {
    char text[80];
    std::snprintf(text, sizeof text, above ? "a number above %.12g and at most %.12g" : "a number from %.12g to %.12g", low,
                  high);
    return {text, [=](json& v) { return v.is_number() && low <= v && v <= high && !(above && v == low); }};
}

Check one_of(std::initializer_list<const char*> choices) {
    std::string wanted;
    for (const char* choice : choices) wanted += (wanted.empty() ? "'" : " or '") + std::string(choice) + "'";
    return {wanted, [all = std::set<json>(choices.begin(), choices.end())](json& v) { return all.count(v) > 0; }};
}

Check upper(Check check) {
    return {check.wanted, [fits = check.fits](json& v) {
                if (v.is_string())
                    for (char& c : v.get_ref<std::string&>()) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
                return fits(v);
            }};
}

Check or_null(Check check) {
    return {check.wanted + ", or null", [fits = check.fits](json& v) { return v.is_null() || fits(v); }};
}

// For what only the Python actor has.
Check only(std::initializer_list<json> usual, const char* instead) {
    return {instead, [all = std::set<json>(usual)](json& v) { return all.count(v) > 0; }, true};
}

const std::vector<Row>& rows() {
    using C = AgentConfig;
    static const Check flag{"true or false", [](json& v) { return v.is_boolean(); }},
        mapping{"a mapping", [](json& v) { return v.is_object(); }},
        path{"a path", [](json& v) { return v.is_string() && v != ""; }},
        name{"1 to 200 printable characters without / \\ :, not starting or ending with a dot or space", is_name};
    static const std::vector<Row> out = {
        {{"client_id"}, &C::client_id, name},
        {{"algorithm_name", "algorithm"}, &C::algorithm_name, or_null({"text of 1 to 256 printable characters", is_algorithm})},
        {{"type", "algorithm_type"}, &C::algorithm_type, or_null(one_of({"onpolicy", "offpolicy"}))},
        {{"algorithm_parameters"}, {}, mapping},
        {{"train_server_address", "server_address"}, &C::train_server_address,
         {"an address (host:port with a port from 1 to 65535, tcp://host:port or ipc://path)", is_address}},
        {{"observation_space"}, &C::observation_space, or_null({"a mapping", is_space})},
        {{"action_space"}, &C::action_space, or_null({"a mapping", is_space})},
        {{"act_limit"}, &C::act_limit, or_null(number(0, 1e30, true))},
        {{"input_size"}, {}, or_null(integer(1, 1 << 24))},
        {{"act_dim"}, {}, or_null(integer(1, 1 << 24))},
        {{"continuous"}, {}, or_null(flag)},
        {{"actor_id"}, &C::actor_id, or_null(name)},
        {{"debug"}, &C::debug, flag},
        {{"log_level"}, &C::log_level, or_null(upper(one_of({"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"})))},
        {{"connection_timeout_seconds", "connect_timeout_s", "timeout"}, &C::connection_timeout_seconds, number(0)},
        {{"request_timeout_seconds"}, &C::request_timeout_seconds, number(0)},
        {{"fallback"}, &C::fallback, one_of({"raise", "random"})},
        {{"send_frequency"}, &C::send_frequency, integer(1, 8192)},
        {{"linger_ms"}, &C::linger_ms, integer(0, 3'600'000)},
        {{"enable_compression", "compression"}, &C::enable_compression, {"'off' or 'zstd'", is_compression}},
        {{"max_traj_length"}, &C::max_traj_length, integer(1)},
        {{"rollout_length"}, &C::rollout_length, or_null(integer(1, 1 << 20))},
        {{"overflow"}, &C::overflow, one_of({"drop_oldest", "wait"})},
        {{"wait_timeout_s"}, &C::wait_timeout_s, number(0)},
        {{"queue_items"}, &C::queue_items, integer(1, 1 << 24)},
        {{"queue_bytes"}, &C::queue_bytes, integer(1)},
        {{"swap"}, &C::swap, one_of({"step", "episode"})},
        {{"seed"}, &C::seed, or_null(integer(0, std::numeric_limits<std::int64_t>::max()))},
        {{"explore"}, &C::explore, flag},
        {{"report_returns"}, &C::report_returns, flag},
        {{"on_bad_input"}, &C::on_bad_input, one_of({"raise", "drop"})},
        {{"reward_timeout_s"}, &C::reward_timeout_s, number(0)},
        {{"keys"}, &C::keys, or_null(path)},
        {{"policy_cache"}, &C::policy_cache, or_null(path)},
        {{"policy_max_age_s"}, &C::policy_max_age_s, or_null(number(0, kLongest, true))},
        {{"on_stale"}, &C::on_stale, one_of({"keep", "baseline", "raise"})},
        {{"weights"}, &C::weights, {"a mapping", are_weights}},
        // Without effect here.
        {{"inference_timeout_s"}, {}, number(0, kLongest, true)},
        {{"jpeg_quality"}, {}, integer(1, 100)},
        {{"native"}, {}, or_null(one_of({"auto", "always", "never"}))},
        {{"spool_max_bytes"}, {}, integer(1 << 16)},
        {{"spool_max_age_s"}, {}, or_null(number(0, kLongest, true))},
        // Refused here.
        {{"spool"}, {}, only({nullptr}, "the C++ client keeps its queue in memory; leave it out, or use the Python actor")},
        {{"relays"}, {}, only({nullptr, json::array()},
         "the C++ client takes its weights from the learner; give an empty list, or use the Python actor")},
        {{"inference"}, {}, only({"local"},
         "the C++ client acts by its own copy of the policy; give local, or use the Python actor")},
        {{"report_system"}, {}, only({false}, "the C++ client does not report; give false, or use the Python actor")},
        {{"sidecar"}, {}, only({false}, "the C++ client keeps its sockets in this process; give false, or use the Python actor")},
        {{"image_codec"}, {}, only({"off"}, "the C++ client sends no images; give off, or use the Python actor")},
        {{"plugins"}, {}, only({json::array()},
         "the C++ client imports no Python modules; give an empty list, or use the Python actor")},
        {{"guard_rails"}, {}, only({}, "this version does not have this option yet; leave it out")},
    };
    return out;
}

// The share of characters in common blocks, as Python's difflib counts them.
std::size_t in_common(std::string_view a, std::string_view b) {
    std::size_t best = 0, at_a = 0, at_b = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        for (std::size_t j = 0; j < b.size(); ++j) {
            std::size_t size = 0;
            while (i + size < a.size() && j + size < b.size() && a[i + size] == b[j + size]) ++size;
            if (size > best) std::tie(best, at_a, at_b) = std::tuple(size, i, j);
        }
    if (!best) return 0;
    return best + in_common(a.substr(0, at_a), b.substr(0, at_b)) + in_common(a.substr(at_a + best), b.substr(at_b + best));
}

const Row& row_of(const std::string& key) {
    for (const Row& row : rows())
        if (std::find(row.names.begin(), row.names.end(), key) != row.names.end()) return row;
    std::pair<double, std::string> near(kSimilar, "");
    for (const Row& row : rows())
        for (const std::string& one : row.names) {
            const std::size_t common = in_common(one, key.substr(0, kLongestKey)), all = one.size() + key.size();
            near = std::max(near, {2.0 * static_cast<double>(common) / static_cast<double>(all), one});
        }
    throw ConfigurationError(key + ": no such key; " +
                             (near.second.empty() ? "if it is a parameter of the algorithm, put it under 'algorithm_parameters'"
                                                  : "did you mean '" + near.second + "'?"));
}

// Moves the keys of RL4Sys's sections, and the actor's keys among the parameters, to where this library has them.
json expanded(const json& given, const std::string& source) {
    const std::map<std::string, std::set<std::string>> sections = {{"network_architecture", {"hidden_sizes", "activation"}},
                                                                   {"training", {"batch_size", "epochs"}},
                                                                   {"communication", {"server_address", "timeout"}}};
    json out = given;
    json& parameters = *out.emplace("algorithm_parameters", json::object()).first;
    checked_value(row_of("algorithm_parameters"), "algorithm_parameters", parameters);
    for (const auto& [section, keys] : sections) {
        if (!out.contains(section)) continue;
        const json inner = checked_value(row_of("algorithm_parameters"), section, out[section]);
        out.erase(section);
        for (const auto& [key, value] : inner.items()) {
            const std::string dotted = section + "." + key;
            if (!keys.count(key)) throw ConfigurationError(dotted + ": no such key");
            const auto [at, is_new] = (section == "communication" ? out : parameters).emplace(key, value);
            if (!is_new && *at != value) throw ConfigurationError(dotted + ": " + shown(value) + " contradicts " + shown(*at));
        }
        const json stem = std::filesystem::path(source).stem().string();
        out.emplace("client_id", is_name(stem) ? stem : "default");
    }
    for (const char* key : {"max_traj_length", "type"}) {
        if (parameters.contains(key)) out.emplace(key, parameters[key]);
        parameters.erase(key);
    }
    return out;
}

void add_parameter(AgentConfig& config, const std::string& key, const json& value) {
    auto& simple = config.algorithm_parameters;
    if (value.is_boolean())
        simple[key] = value.get<bool>();
    else if (value.is_number_integer() && value.dump() == std::to_string(value.get<std::int32_t>()))
        simple[key] = value.get<std::int32_t>();
    else if (value.is_number_float())
        simple[key] = value.get<double>();
    else if (value.is_string())
        simple[key] = value.get<std::string>();
    else
        config.other_parameters[key] = value.dump();
}

// Calls `use` with the member of a row that has one.
template <class Use>
void with_member(const Row& row, const Use& use) {
    const auto call = [&](auto member) {
        if constexpr (!std::is_same_v<decltype(member), std::monostate>) use(member);
    };
    std::visit(call, row.member);
}

template <class T>
void set(T& to, const json& value) {
    if constexpr (std::is_same_v<T, std::string>)
        to = value.is_string() ? value.get<std::string>() : value.dump();
    else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
        to = static_cast<T>(std::min<std::int64_t>(value.get<std::int64_t>(), std::numeric_limits<T>::max()));
    else
        to = value.get<T>();
}

template <class T>
void set(std::optional<T>& to, const json& value) {
    set(to.emplace(), value);
}

AgentConfig read(const json& given, const std::string& source) {
    if (!given.is_object())
        throw ConfigurationError("expected a mapping at the top level, not " + std::string(given.type_name()));
    AgentConfig config;
    config.algorithm_name.clear();
    std::map<std::string, std::pair<std::string, json>> said;  // by the row's key: the key in the file, and the value
    const json all = expanded(given, source);
    for (const auto& [key, written] : all.items()) {
        const Row& row = row_of(key);
        const json value = checked_value(row, key, written);
        const auto [before, is_new] = said.emplace(row.names[0], std::pair(key, value));
        if (!is_new && before->second.second != value)
            throw ConfigurationError(key + ": " + shown(written) + " contradicts '" + before->second.first +
                                     "', which means the same");
        if (!value.is_null()) with_member(row, [&](auto member) { set(config.*member, value); });
    }
    if (!said.count("client_id")) throw ConfigurationError("client_id is missing; give it in the file");
    json parameters = said["algorithm_parameters"].second;
    for (const std::string key : kFlat) {
        const std::string dotted = "algorithm_parameters." + key;
        const json inner = checked_value(row_of(key), dotted, parameters.value(key, json())), outer = said[key].second;
        if (!inner.is_null() && !outer.is_null() && inner != outer)
            throw ConfigurationError(key + ": " + shown(outer) + " contradicts '" + dotted + "': " + shown(inner));
        if (!outer.is_null() && key != "act_limit") parameters[key] = outer;
    }
    for (const auto& [key, value] : parameters.items()) add_parameter(config, key, value);
    config::convert(config);
    return config;
}

nlohmann::ordered_json written(const AgentConfig& config) {
    AgentConfig usual;
    usual.client_id.clear();
    usual.algorithm_name.clear();
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    for (const Row& row : rows())
        with_member(row, [&](auto member) {
            const auto given = std::optional(config.*member);  // one that is optional itself stays the same
            if (given != usual.*member) out[row.names[0]] = *given;
        });
    for (const char* key : {"observation_space", "action_space", "weights"})
        if (out.contains(key)) out[key] = config::parse(out[key].get<std::string>(), key);
    out["algorithm_parameters"] = config::parameters_of(config);
    return out;
}

}  // namespace

json config::parse(const std::string& text, const std::string& source) {
    constexpr int kMaxNested = 64;
    std::vector<std::set<std::string>> seen;
    const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
        if (depth > kMaxNested) throw ConfigurationError(source + ": is nested too deeply");
        if (event == json::parse_event_t::object_start) seen.emplace_back();
        if (event == json::parse_event_t::object_end) seen.pop_back();
        if (event != json::parse_event_t::key) return true;
        const auto key = parsed.get<std::string>();
        if (!seen.back().insert(key).second) throw ConfigurationError(source + ": " + key + ": given twice in one mapping");
        return key.rfind("_comment", 0) != 0;
    };
    try {
        return json::parse(text, check);  // it skips a byte order mark
    } catch (const json::exception& error) {
        throw ConfigurationError(source + ": not JSON: " + error.what());
    }
}

AgentConfig config::checked(const AgentConfig& config) { return read(written(config), ""); }

namespace cppclient {

ConfigurationError::ConfigurationError(const std::string& message) : std::runtime_error(message) {}

AgentConfig ConfigLoader::loadFromFile(const std::string& filePath) {
    const std::string suffix = std::filesystem::path(filePath).extension().string();
    if (suffix == ".yaml" || suffix == ".yml")
        throw ConfigurationError(filePath + ": the C++ client reads JSON; write the file as JSON");
    std::ifstream file(filePath, std::ios::binary);
    if (!file || std::filesystem::is_directory(filePath))
        throw ConfigurationError(filePath + ": no such file, or it cannot be read");
    const json given = config::parse({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}, filePath);
    try {
        return read(given, filePath);
    } catch (const ConfigurationError& error) {
        throw ConfigurationError(filePath + ": " + error.what());
    }
}

AgentConfig ConfigLoader::loadFromString(const std::string& jsonContent) {
    return read(config::parse(jsonContent, "the configuration"), "");
}

void ConfigLoader::validateConfig(const AgentConfig& config) { config::checked(config); }

void ConfigLoader::saveToFile(const AgentConfig& config, const std::string& filePath) {
    std::ofstream file(filePath, std::ios::binary | std::ios::trunc);
    file << configToJsonString(config) << std::endl;
    if (!file) throw ConfigurationError(filePath + ": cannot be written");
}

std::string ConfigLoader::configToJsonString(const AgentConfig& config) { return written(config).dump(2); }

}  // namespace cppclient
}  // namespace rl4sys
