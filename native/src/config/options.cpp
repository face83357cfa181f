// Checks of a configuration, and its conversion for the agent (rl4sys_zmq/config/agent.py).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "api/options.h"
#include "config/text.h"
#include "rl4sys/config_loader.h"
#include "rl4sys/logger.h"

namespace rl4sys::api {
namespace {

using cppclient::AgentConfig;
using cppclient::ConfigurationError;
using nlohmann::json;

constexpr double kLongest = 10.0 * 365 * 86'400;
constexpr std::size_t kKeyFileBytes = 4096, kKeyChars = 40, kMaxName = 200;
constexpr std::string_view kFlat[] = {"input_size", "act_dim", "act_limit", "continuous"};

[[noreturn]] void refuse(const std::string& key, const std::string& wanted, const std::string& given) {
    throw ConfigurationError(key + ": expected " + wanted + ", not " + given);
}

void check_number(const char* key, double value, double low, double high = kLongest) {
    if (value >= low && value <= high) return;
    char text[80];
    std::snprintf(text, sizeof text, "a number from %.12g to %.12g", low, high);
    refuse(key, text, json(value).dump());
}

void check_integer(const char* key, std::int64_t value, std::int64_t low, std::int64_t high) {
    if (value < low || value > high)
        refuse(key, "an integer from " + std::to_string(low) + " to " + std::to_string(high), std::to_string(value));
}

bool one_of(const char* key, const std::string& value, const char* usual, const char* other) {
    if (value != usual && value != other) refuse(key, std::string("'") + usual + "' or '" + other + "'", "'" + value + "'");
    return value == other;
}

void check_name(const char* key, const std::string& value) {
    const bool bad_end = value.empty() || std::strchr(". ", value.front()) || std::strchr(". ", value.back());
    const bool bad = std::any_of(value.begin(), value.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 32 || std::strchr("/\\:\x7f", c); });
    if (bad_end || bad || value.size() > kMaxName)
        refuse(key, "1 to 200 printable characters without / \\ :, not starting or ending with a dot or space",
               "'" + value + "'");
}

// The form in which names of algorithms are compared: PPO, sb3:TRPO.
std::string algorithm_key(std::string name) {
    const auto change = [](std::string& text, int (*by)(int)) {
        for (char& c : text)
            if (static_cast<unsigned char>(c) < 128) c = static_cast<char>(by(c));
    };
    const std::size_t colon = name.find(':');
    if (colon == std::string::npos) {
        change(name, std::toupper);
        return name == "TRPO" ? "sb3:TRPO" : name;
    }
    std::string library = name.substr(0, colon), own = name.substr(colon + 1);
    change(library, std::tolower);
    if (own.find(':') == std::string::npos) change(own, std::toupper);
    return library + ":" + own;
}

std::string address_of(const std::string& given) {
    constexpr const char* kForms = "an address (host:port, tcp://host:port or ipc://path)";
    const auto bad = [&](const char* wanted) { refuse("train_server_address", wanted, "'" + given + "'"); };
    std::string scheme = "tcp", rest = given;
    if (const std::size_t at = given.find("://"); at != std::string::npos) {
        scheme = given.substr(0, at);
        rest = given.substr(at + 3);
    }
    if ((scheme != "tcp" && scheme != "ipc") || rest.empty()) bad(kForms);
    if (scheme != "tcp") return scheme + "://" + rest;
    const std::size_t colon = rest.rfind(':');
    const std::string host = colon == std::string::npos ? "" : rest.substr(0, colon),
                      port = colon == std::string::npos ? "" : rest.substr(colon + 1);
    const bool bracketed = !host.empty() && host.front() == '[' && host.back() == ']';
    if (host.empty() || host.find_first_of(" \t/@") != std::string::npos || (host.find(':') != std::string::npos && !bracketed))
        bad(kForms);
    const bool digits =
        !port.empty() && port.size() < 6 && std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || std::stoi(port) < 1 || std::stoi(port) > 65535) bad("an address with a port from 1 to 65535");
    return "tcp://" + host + ":" + std::to_string(std::stoi(port));
}

wire::Value value_of(const json& from) {
    switch (from.type()) {
        case json::value_t::boolean:
            return from.get<bool>();
        case json::value_t::number_integer:
            return from.get<std::int64_t>();
        case json::value_t::number_unsigned:
            return from.get<std::uint64_t>();
        case json::value_t::number_float:
            return from.get<double>();
        case json::value_t::string:
            return from.get<std::string>();
        case json::value_t::array: {
            wire::List out;
            for (const json& item : from) out.push_back(value_of(item));
            return out;
        }
        case json::value_t::object: {
            wire::Map out;
            for (const auto& [key, item] : from.items()) out.set(key, value_of(item));
            return out;
        }
        default:
            return {};
    }
}

// The parameters in `kFlat`, which describe the spaces.
struct Sizes {
    std::optional<std::int64_t> input_size, act_dim;
    std::optional<double> act_limit;
    bool continuous = false;
};

Sizes sizes_of(const AgentConfig& config) {
    Sizes out;
    const auto find = [&](const char* key) {
        const auto found = config.algorithm_parameters.find(key);
        return found == config.algorithm_parameters.end() ? nullptr : &found->second;
    };
    const auto whole = [&](const char* key) -> std::optional<std::int64_t> {
        const auto* value = find(key);
        if (!value) return std::nullopt;
        const auto* number = std::get_if<std::int32_t>(value);
        if (!number) refuse(std::string("algorithm_parameters.") + key, "an integer", "another type");
        check_integer(key, *number, 1, 1 << 24);
        return *number;
    };
    out.input_size = whole("input_size");
    out.act_dim = whole("act_dim");
    if (const auto* value = find("continuous")) {
        const auto* flag = std::get_if<bool>(value);
        if (!flag) refuse("continuous", "true or false", "another type");
        out.continuous = *flag;
    }
    if (config.act_limit != 0.0) out.act_limit = config.act_limit;
    if (const auto* value = find("act_limit")) {
        const auto* number = std::get_if<double>(value);
        const auto* integer = std::get_if<std::int32_t>(value);
        if (!number && !integer) refuse("act_limit", "a number", "another type");
        const double limit = number ? *number : *integer;
        if (out.act_limit && *out.act_limit != limit)
            throw ConfigurationError("act_limit: contradicts 'algorithm_parameters.act_limit'");
        out.act_limit = limit;
    }
    if (out.act_limit && !(*out.act_limit > 0.0 && *out.act_limit <= 1e30))
        refuse("act_limit", "a number above 0", json(*out.act_limit).dump());
    return out;
}

policy::Space space_of(const char* key, const wire::Map& form) {
    try {
        return policy::read_space(form);
    } catch (const policy::Unsupported& error) {
        throw ConfigurationError(std::string(key) + ": " + error.what() +
                                 "; use a Box of float32 or float64, a Discrete, or the Python actor");
    } catch (const std::exception& error) {
        throw ConfigurationError(std::string(key) + ": " + error.what());
    }
}

void take_spaces(const AgentConfig& config, Options& out) {
    const Sizes sizes = sizes_of(config);
    delivery::Hello& hello = out.settings.hello;
    if (!config.observation_space.empty()) {
        hello.observation_space = *value_of(config::parse(config.observation_space, "observation_space")).get<wire::Map>();
        out.observations = space_of("observation_space", hello.observation_space);
        if (sizes.input_size && static_cast<std::size_t>(*sizes.input_size) != out.observations->size())
            throw ConfigurationError("input_size: contradicts 'observation_space' of " +
                                     std::to_string(out.observations->size()) + " elements");
    } else if (sizes.input_size) {
        hello.observation_space.set("type", "Box");
        hello.observation_space.set("shape", wire::List{*sizes.input_size});
        hello.observation_space.set("dtype", "float32");
        out.observations = space_of("input_size", hello.observation_space);
    } else {
        throw ConfigurationError("algorithm_parameters.input_size is missing; give it, or an observation_space");
    }
    if (!config.action_space.empty()) {
        hello.action_space = *value_of(config::parse(config.action_space, "action_space")).get<wire::Map>();
        out.actions = space_of("action_space", hello.action_space);
        if (sizes.act_dim && static_cast<std::size_t>(*sizes.act_dim) != out.actions->size())
            throw ConfigurationError("act_dim: contradicts 'action_space' of " + std::to_string(out.actions->size()));
        return;
    }
    if (!sizes.act_dim) throw ConfigurationError("algorithm_parameters.act_dim is missing; give it, or an action_space");
    if (!sizes.continuous) {
        hello.action_space.set("type", "Discrete");
        hello.action_space.set("n", *sizes.act_dim);
        hello.action_space.set("start", 0);
    } else {
        if (!sizes.act_limit)
            throw ConfigurationError("act_limit is missing: continuous actions need act_limit or an action_space");
        hello.action_space.set("type", "Box");
        hello.action_space.set("shape", wire::List{*sizes.act_dim});
        hello.action_space.set("dtype", "float32");
        hello.action_space.set("low", -*sizes.act_limit);
        hello.action_space.set("high", *sizes.act_limit);
    }
    out.actions = space_of("act_dim", hello.action_space);
}

void take_parameters(const AgentConfig& config, wire::Map& out) {
    std::map<std::string, wire::Value> all;
    for (const auto& [key, value] : config.algorithm_parameters)
        std::visit([&, name = &key](const auto& x) { all[*name] = x; }, value);
    for (const auto& [key, text] : config.other_parameters)
        all[key] = value_of(config::parse(text, "algorithm_parameters." + key));
    for (const std::string_view key : kFlat) all.erase(std::string(key));
    if (const auto theirs = all.find("entropy_coef"); theirs != all.end()) {
        if (all.count("ent_coef")) throw ConfigurationError("entropy_coef: means the same as 'ent_coef'; leave one out");
        all["ent_coef"] = theirs->second;
        all.erase("entropy_coef");
    }
    for (auto& [key, value] : all) {
        if (const auto* x = value.get<double>(); x && !std::isfinite(*x))
            throw ConfigurationError(key + " is not a finite number");
        out.set(key, std::move(value));
    }
}

// Reads the key file of a user, which the Python library writes (rl4sys_zmq/security/keys.py).
io::CurveKeys read_keys(const std::string& path) {
    const auto fail = [&](const std::string& why) { throw ConfigurationError("keys: " + path + ": " + why); };
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) fail("no such file; create the keys first, or give the folder that has them");
    if (fd < 0 && errno == ELOOP) fail("is a symbolic link, which others could redirect; give the file itself");
    if (fd < 0) fail(std::string("cannot be read: ") + std::strerror(errno) + "; it must belong to the user who runs this");
    struct stat about {};
    std::string text(kKeyFileBytes + 1, '\0');
    const bool known = ::fstat(fd, &about) == 0;
    const ssize_t got = ::read(fd, text.data(), text.size());
    ::close(fd);
    if (!known || got < 0 || !S_ISREG(about.st_mode)) fail("cannot be read: it is not a plain file");
    if (about.st_uid != ::geteuid()) fail("belongs to another account; copy it, so that it is yours");
    if (about.st_mode & (S_IRWXG | S_IRWXO)) fail("other accounts can read it; run chmod 600 on it");
    text.resize(static_cast<std::size_t>(got));
    if (text.size() > kKeyFileBytes) fail("is too long for a key file; give another file");
    std::map<std::string, std::string> table;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        at = end + 1;
        const std::size_t equals = line.find('='), open = line.find_first_of("'\"", equals == std::string::npos ? 0 : equals);
        if (line.empty() || line[0] == '#') continue;
        const std::size_t close = open == std::string::npos ? open : line.find(line[open], open + 1);
        if (equals == std::string::npos || close == std::string::npos) fail("is damaged; copy it again, or create new keys");
        table[line.substr(0, line.find_first_of(" =\t"))] = line.substr(open + 1, close - open - 1);
    }
    for (const char* key : {"public", "secret", "learner"})
        if (table[key].size() != kKeyChars) fail(std::string(key) + ": missing or invalid; create new keys");
    return {table["public"], table["secret"], table["learner"]};
}

}  // namespace

std::optional<int> log_level_of(const AgentConfig& config) {
    using cppclient::LogLevel;
    if (config.debug) return static_cast<int>(LogLevel::DEBUG);
    if (config.log_level.empty()) return std::nullopt;
    std::string level = config.log_level;
    for (char& c : level) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    constexpr const char* kLevels[] = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"};
    for (int n = 0; n < 5; ++n)
        if (level == kLevels[n]) return n;
    refuse("log_level", "DEBUG, INFO, WARNING, ERROR or CRITICAL", "'" + config.log_level + "'");
}

Options options_of(const AgentConfig& config) {
    Options out;
    actor::Settings& settings = out.settings;
    delivery::Hello& hello = settings.hello;
    check_name("client_id", config.client_id);
    if (!config.actor_id.empty()) check_name("actor_id", config.actor_id);
    if (config.algorithm_name.empty())
        throw ConfigurationError("algorithm_name is missing; give the name of an algorithm, such as PPO");
    if (!config.algorithm_type.empty()) one_of("type", config.algorithm_type, "onpolicy", "offpolicy");
    check_integer("max_traj_length", config.max_traj_length, 1, std::numeric_limits<std::int32_t>::max());
    check_integer("send_frequency", config.send_frequency, 1, 8192);
    check_number("connect_timeout_s", config.connection_timeout_seconds, 0.0);
    check_number("request_timeout_seconds", config.request_timeout_seconds, 0.0);
    check_integer("linger_ms", config.linger_ms, 0, 3'600'000);
    check_integer("rollout_length", config.rollout_length, 0, 1 << 20);
    check_number("wait_timeout_s", config.wait_timeout_s, 0.0);
    check_integer("queue_items", config.queue_items, 1, 1 << 24);
    check_integer("queue_bytes", config.queue_bytes, 1, std::int64_t{1} << 40);
    check_number("reward_timeout_s", config.reward_timeout_s, 0.0);
    if (config.seed) check_integer("seed", *config.seed, 0, std::numeric_limits<std::int64_t>::max());
    if (config.policy_max_age_s && !(*config.policy_max_age_s > 0.0 && *config.policy_max_age_s <= kLongest))
        refuse("policy_max_age_s", "a number above 0", json(*config.policy_max_age_s).dump());
    log_level_of(config);
    out.fallback_random = one_of("fallback", config.fallback, "raise", "random");
    out.waits = one_of("overflow", config.overflow, "drop_oldest", "wait") && config.explore;
    out.swap_episode = one_of("swap", config.swap, "step", "episode");
    out.drops_bad_input = one_of("on_bad_input", config.on_bad_input, "raise", "drop");
    if (config.on_stale == "baseline")
        out.on_stale = Options::Stale::baseline;
    else if (config.on_stale == "raise")
        out.on_stale = Options::Stale::raise;
    else if (config.on_stale != "keep")
        refuse("on_stale", "'keep' or 'baseline' or 'raise'", "'" + config.on_stale + "'");
    if (out.fallback_random && config.overflow == "wait")
        throw ConfigurationError("fallback: an actor with overflow: wait never acts without its learner; remove one");
    out.stores = config.explore || config.report_returns;
    out.request_timeout_s = config.request_timeout_seconds;

    hello.client_id = config.client_id;
    hello.actor_id = config.actor_id;
    hello.algorithm_name = algorithm_key(config.algorithm_name);
    hello.algorithm_type = config.algorithm_type;
    hello.submits = out.stores;
    hello.library = "rl4sys_zmq " RL4SYS_VERSION;
    if (!config.weights.empty()) hello.weights = *value_of(config::parse(config.weights, "weights")).get<wire::Map>();
    take_parameters(config, hello.algorithm_parameters);
    take_spaces(config, out);
    settings.address = address_of(config.train_server_address);
    if (!config.keys.empty()) settings.keys = read_keys(config.keys);
    settings.explore = config.explore;
    settings.drops = !out.waits;
    settings.compress = config.enable_compression;
    settings.queue_items = static_cast<std::size_t>(config.queue_items);
    settings.queue_bytes = static_cast<std::size_t>(config.queue_bytes);
    settings.linger_s = static_cast<double>(config.linger_ms) / 1e3;
    settings.send_frequency = static_cast<std::uint32_t>(config.send_frequency);
    settings.connect_timeout_s = config.connection_timeout_seconds;
    settings.reward_timeout_s = config.reward_timeout_s;
    settings.wait_timeout_s = config.wait_timeout_s;
    settings.policy_max_age_s = config.policy_max_age_s;
    settings.segment_steps = static_cast<std::uint32_t>(config.rollout_length);
    settings.max_trajectory_steps = static_cast<std::uint32_t>(config.max_traj_length);
    settings.policy_cache = config.policy_cache;
    if (config.seed) {
        const auto seed = static_cast<std::uint64_t>(*config.seed);
        settings.seed = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
    }
    return out;
}

}  // namespace rl4sys::api
