#include "rl4sys/config_loader.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <set>

#include "api/options.h"
#include "config/text.h"

namespace rl4sys {

using nlohmann::json;

json config::parse(const std::string& text, const std::string& source) {
    constexpr int kMaxNested = 64;
    std::vector<std::set<std::string>> seen;
    const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
        if (depth > kMaxNested) throw cppclient::ConfigurationError(source + ": is nested too deeply");
        if (event == json::parse_event_t::object_start) seen.emplace_back();
        if (event == json::parse_event_t::object_end) seen.pop_back();
        if (event != json::parse_event_t::key) return true;
        const auto key = parsed.get<std::string>();
        if (!seen.back().insert(key).second)
            throw cppclient::ConfigurationError(source + ": " + key + ": given twice in one mapping");
        return key.rfind("_comment", 0) != 0;
    };
    try {
        const std::size_t start = text.rfind("\xEF\xBB\xBF", 0) == 0 ? 3 : 0;
        return json::parse(text.begin() + static_cast<std::ptrdiff_t>(start), text.end(), check);
    } catch (const json::exception& error) {
        throw cppclient::ConfigurationError(source + ": not JSON: " + error.what());
    }
}

namespace cppclient {
namespace {

constexpr std::pair<const char*, const char*> kRefused[] = {
    {"spool", "the C++ client keeps its queue in memory; leave it out, or use the Python actor"},
    {"spool_max_bytes", "the C++ client has no spool; leave it out"},
    {"spool_max_age_s", "the C++ client has no spool; leave it out"},
    {"relays", "the C++ client takes its weights from the learner; give an empty list, or use the Python actor"},
    {"inference", "the C++ client acts by its own copy of the policy; give local, or use the Python actor"},
    {"sidecar", "the C++ client keeps its sockets in this process; give false, or use the Python actor"},
    {"image_codec", "the C++ client sends no images; give off, or use the Python actor"},
    {"plugins", "the C++ client imports no Python modules; give an empty list, or use the Python actor"},
    {"guard_rails", "this version does not have this option yet; leave it out"},
};
// Keys that say nothing here.
constexpr const char* kIgnored[] = {"inference_timeout_s", "jpeg_quality", "native"};
constexpr std::pair<const char*, const char*> kSynonyms[] = {
    {"algorithm", "algorithm_name"},
    {"algorithm_type", "type"},
    {"server_address", "train_server_address"},
    {"timeout", "connect_timeout_s"},
    {"connection_timeout_seconds", "connect_timeout_s"},
    {"enable_compression", "compression"},
};
const std::map<std::string, std::map<std::string, std::string>> kSections = {
    {"network_architecture", {{"hidden_sizes", "algorithm_parameters"}, {"activation", "algorithm_parameters"}}},
    {"training", {{"batch_size", "algorithm_parameters"}, {"epochs", "algorithm_parameters"}}},
    {"communication", {{"server_address", ""}, {"timeout", ""}}},
};

std::string shown(const json& value) {
    std::string text =
        value.is_string() ? "'" + value.get<std::string>() + "'" : value.dump(-1, ' ', false, json::error_handler_t::replace);
    return text.size() > 40 ? text.substr(0, 37) + "..." : text;
}

[[noreturn]] void refuse(const std::string& key, const char* wanted, const json& value) {
    throw ConfigurationError(key + ": expected " + wanted + ", not " + shown(value));
}

bool is_off(const json& value) {
    return value.is_null() || value == false || value == "local" || value == "off" || (value.is_array() && value.empty());
}

// The fewest insertions, deletions and replacements of characters.
std::size_t distance(const std::string& a, const std::string& b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t corner = row[0]++;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t above = row[j];
            row[j] = std::min({above + 1, row[j - 1] + 1, corner + (a[i - 1] != b[j - 1])});
            corner = above;
        }
    }
    return row.back();
}

using Read = std::function<void(const std::string&, const json&)>;

Read text(std::string& out) {
    return [&out](const std::string& key, const json& value) {
        if (value.is_null()) return;
        if (!value.is_string() || value.get<std::string>().empty()) refuse(key, "text", value);
        out = value.get<std::string>();
    };
}

Read number(double& out) {
    return [&out](const std::string& key, const json& value) {
        if (!value.is_number()) refuse(key, "a number", value);
        out = value.get<double>();
    };
}

Read number(std::optional<double>& out) {
    return [&out](const std::string& key, const json& value) {
        if (!value.is_null()) number(out.emplace())(key, value);
    };
}

template <class Integer>
Read integer(Integer& out) {
    return [&out](const std::string& key, const json& value) {
        if (!value.is_number_integer() ||
            (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()))
            refuse(key, "an integer", value);
        const auto given = value.get<std::int64_t>();
        if (given < std::numeric_limits<Integer>::min() || given > std::numeric_limits<Integer>::max())
            refuse(key, "a smaller integer", value);
        out = static_cast<Integer>(given);
    };
}

Read flag(bool& out) {
    return [&out](const std::string& key, const json& value) {
        if (!value.is_boolean()) refuse(key, "true or false", value);
        out = value.get<bool>();
    };
}

// A mapping, kept as JSON text.
Read mapping(std::string& out) {
    return [&out](const std::string& key, const json& value) {
        if (value.is_null()) return;
        if (!value.is_object()) refuse(key, "a mapping", value);
        out = value.dump();
    };
}

void add_parameter(AgentConfig& config, const std::string& key, const json& value) {
    if (value.is_boolean())
        config.algorithm_parameters[key] = value.get<bool>();
    else if (value.is_number_integer() && value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max())
        config.algorithm_parameters[key] = value.get<std::int32_t>();
    else if (value.is_number_float())
        config.algorithm_parameters[key] = value.get<double>();
    else if (value.is_string())
        config.algorithm_parameters[key] = value.get<std::string>();
    else
        config.other_parameters[key] = value.dump();
}

// How each key is read into a configuration.
std::map<std::string, Read> readers(AgentConfig& config) {
    const auto parameter = [&config](const std::string& key, const json& value) {
        if (!value.is_null()) add_parameter(config, key, value);
    };
    return {
        {"client_id", text(config.client_id)},
        {"actor_id", text(config.actor_id)},
        {"algorithm_name", text(config.algorithm_name)},
        {"type", text(config.algorithm_type)},
        {"train_server_address", text(config.train_server_address)},
        {"debug", flag(config.debug)},
        {"log_level", text(config.log_level)},
        {"connect_timeout_s", number(config.connection_timeout_seconds)},
        {"request_timeout_seconds", number(config.request_timeout_seconds)},
        {"fallback", text(config.fallback)},
        {"send_frequency", integer(config.send_frequency)},
        {"linger_ms", integer(config.linger_ms)},
        {"compression",
         [&config](const std::string& key, const json& value) {
             if (!value.is_boolean() && value != "off" && value != "zstd") refuse(key, "'off' or 'zstd'", value);
             config.enable_compression = value == true || value == "zstd";
         }},
        {"act_limit",
         [&config](const std::string& key, const json& value) {
             if (!value.is_null()) number(config.act_limit)(key, value);
         }},
        {"max_traj_length", integer(config.max_traj_length)},
        {"rollout_length",
         [&config](const std::string& key, const json& value) {
             if (!value.is_null()) integer(config.rollout_length)(key, value);
         }},
        {"overflow", text(config.overflow)},
        {"wait_timeout_s", number(config.wait_timeout_s)},
        {"queue_items", integer(config.queue_items)},
        {"queue_bytes", integer(config.queue_bytes)},
        {"swap", text(config.swap)},
        {"seed",
         [&config](const std::string& key, const json& value) {
             if (!value.is_null()) integer(config.seed.emplace())(key, value);
         }},
        {"explore", flag(config.explore)},
        {"report_returns", flag(config.report_returns)},
        {"on_bad_input", text(config.on_bad_input)},
        {"reward_timeout_s", number(config.reward_timeout_s)},
        {"keys", text(config.keys)},
        {"policy_cache", text(config.policy_cache)},
        {"policy_max_age_s", number(config.policy_max_age_s)},
        {"on_stale", text(config.on_stale)},
        {"observation_space", mapping(config.observation_space)},
        {"action_space", mapping(config.action_space)},
        {"weights", mapping(config.weights)},
        {"input_size", parameter},
        {"act_dim", parameter},
        {"continuous", parameter},
        {"algorithm_parameters",
         [&config](const std::string& key, const json& value) {
             if (!value.is_object()) refuse(key, "a mapping", value);
             for (const auto& [name, item] : value.items()) add_parameter(config, name, item);
         }},
    };
}

// Moves the keys of RL4Sys's sections, and the actor's keys among the parameters, to where this library has them.
json expanded(const json& given, const std::string& source) {
    json out = json::object();
    bool sections = false;
    for (const auto& [key, value] : given.items())
        if (!kSections.count(key)) out[key] = value;
    for (const auto& [section, known] : kSections) {
        if (!given.contains(section)) continue;
        sections = true;
        if (!given[section].is_object()) refuse(section, "a mapping", given[section]);
        for (const auto& [key, value] : given[section].items()) {
            const auto place = known.find(key);
            if (place == known.end()) throw ConfigurationError(section + "." + key + ": no such key");
            json& target = place->second.empty() ? out : out[place->second];
            if (target.contains(key) && target[key] != value)
                throw ConfigurationError(section + "." + key + ": " + shown(value) + " contradicts " + shown(target[key]));
            target[key] = value;
        }
    }
    if (out.contains("algorithm_parameters") && out["algorithm_parameters"].is_object())
        for (const char* key : {"max_traj_length", "type"}) {
            json& parameters = out["algorithm_parameters"];
            if (!parameters.contains(key)) continue;
            if (!out.contains(key)) out[key] = parameters[key];
            parameters.erase(key);
        }
    if (sections && !out.contains("client_id")) {
        const std::string stem = std::filesystem::path(source).stem().string();
        out["client_id"] = stem.empty() ? "default" : stem;
    }
    return out;
}

AgentConfig read(const json& given, const std::string& source) {
    if (!given.is_object())
        throw ConfigurationError("expected a mapping at the top level, not " + std::string(given.type_name()));
    AgentConfig config;
    const std::map<std::string, Read> known = readers(config);
    std::map<std::string, std::pair<std::string, json>> said;
    const json all = expanded(given, source);
    for (const auto& [given_key, value] : all.items()) {
        const std::string& written = given_key;
        const auto refused =
            std::find_if(std::begin(kRefused), std::end(kRefused), [&](const auto& one) { return written == one.first; });
        if (refused != std::end(kRefused)) {
            if (!is_off(value)) throw ConfigurationError(written + ": " + refused->second);
            continue;
        }
        if (std::any_of(std::begin(kIgnored), std::end(kIgnored), [&](const char* one) { return written == one; })) continue;
        const auto synonym =
            std::find_if(std::begin(kSynonyms), std::end(kSynonyms), [&](const auto& one) { return written == one.first; });
        const std::string key = synonym != std::end(kSynonyms) ? synonym->second : written;
        const auto reader = known.find(key);
        if (reader == known.end()) {
            std::string near;
            for (const auto& [name, _] : known)
                if (distance(written, name) <= 1 + written.size() / 4 &&
                    (near.empty() || distance(written, name) < distance(written, near)))
                    near = name;
            throw ConfigurationError(written + ": no such key; " +
                                     (near.empty() ? "if it is a parameter of the algorithm, put it under 'algorithm_parameters'"
                                                   : "did you mean '" + near + "'?"));
        }
        const auto [before, is_new] = said.emplace(key, std::pair(written, value));
        if (!is_new && before->second.second != value)
            throw ConfigurationError(written + ": " + shown(value) + " contradicts '" + before->second.first +
                                     "', which means the same");
        reader->second(written, value);
    }
    for (const char* key : {"client_id", "algorithm_name", "train_server_address"})
        if (!said.count(key)) throw ConfigurationError(std::string(key) + " is missing; give it in the file");
    ConfigLoader::validateConfig(config);
    return config;
}

}  // namespace

ConfigurationError::ConfigurationError(const std::string& message) : std::runtime_error(message) {}

AgentConfig ConfigLoader::loadFromFile(const std::string& filePath) {
    const std::string suffix = std::filesystem::path(filePath).extension().string();
    if (suffix == ".yaml" || suffix == ".yml")
        throw ConfigurationError(filePath + ": the C++ client reads JSON; write the file as JSON");
    std::ifstream file(filePath, std::ios::binary);
    if (!file) throw ConfigurationError(filePath + ": no such file, or it cannot be read");
    const std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    try {
        return read(config::parse(content, filePath), filePath);
    } catch (const ConfigurationError& error) {
        const std::string what = error.what();
        throw ConfigurationError(what.rfind(filePath, 0) == 0 ? what : filePath + ": " + what);
    }
}

AgentConfig ConfigLoader::loadFromString(const std::string& jsonContent) {
    return read(config::parse(jsonContent, "the configuration"), "");
}

void ConfigLoader::validateConfig(const AgentConfig& config) { api::options_of(config); }

void ConfigLoader::saveToFile(const AgentConfig& config, const std::string& filePath) {
    std::ofstream file(filePath, std::ios::binary | std::ios::trunc);
    file << configToJsonString(config) << "\n";
    file.flush();
    if (!file) throw ConfigurationError(filePath + ": cannot be written");
}

std::string ConfigLoader::configToJsonString(const AgentConfig& config) {
    const AgentConfig usual;
    nlohmann::ordered_json out = {{"client_id", config.client_id}, {"algorithm_name", config.algorithm_name}};
    nlohmann::ordered_json parameters = nlohmann::ordered_json::object();
    for (const auto& [key, value] : config.algorithm_parameters)
        std::visit([&, name = &key](const auto& x) { parameters[*name] = x; }, value);
    for (const auto& [key, text] : config.other_parameters) parameters[key] = nlohmann::ordered_json::parse(text);
    out["algorithm_parameters"] = parameters;
    out["train_server_address"] = config.train_server_address;
    const auto put = [&](const char* key, const auto& value, const auto& without) {
        if (value != without) out[key] = value;
    };
    put("type", config.algorithm_type, usual.algorithm_type);
    put("act_limit", config.act_limit, usual.act_limit);
    put("max_traj_length", config.max_traj_length, usual.max_traj_length);
    put("send_frequency", config.send_frequency, usual.send_frequency);
    put("connection_timeout_seconds", config.connection_timeout_seconds, usual.connection_timeout_seconds);
    put("request_timeout_seconds", config.request_timeout_seconds, usual.request_timeout_seconds);
    put("enable_compression", config.enable_compression, usual.enable_compression);
    put("debug", config.debug, usual.debug);
    put("log_level", config.log_level, usual.log_level);
    put("actor_id", config.actor_id, usual.actor_id);
    put("fallback", config.fallback, usual.fallback);
    put("linger_ms", config.linger_ms, usual.linger_ms);
    put("rollout_length", config.rollout_length, usual.rollout_length);
    put("overflow", config.overflow, usual.overflow);
    put("wait_timeout_s", config.wait_timeout_s, usual.wait_timeout_s);
    put("queue_items", config.queue_items, usual.queue_items);
    put("queue_bytes", config.queue_bytes, usual.queue_bytes);
    put("swap", config.swap, usual.swap);
    if (config.seed) out["seed"] = *config.seed;
    put("explore", config.explore, usual.explore);
    put("report_returns", config.report_returns, usual.report_returns);
    put("on_bad_input", config.on_bad_input, usual.on_bad_input);
    put("reward_timeout_s", config.reward_timeout_s, usual.reward_timeout_s);
    put("keys", config.keys, usual.keys);
    put("policy_cache", config.policy_cache, usual.policy_cache);
    if (config.policy_max_age_s) out["policy_max_age_s"] = *config.policy_max_age_s;
    put("on_stale", config.on_stale, usual.on_stale);
    for (const auto& [key, space] : {std::pair("observation_space", &config.observation_space),
                                     std::pair("action_space", &config.action_space), std::pair("weights", &config.weights)})
        if (!space->empty()) out[key] = nlohmann::ordered_json::parse(*space);
    return out.dump(2);
}

}  // namespace cppclient
}  // namespace rl4sys
