// The conversion of a configuration for the agent.
#include "config/options.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "rl4sys/config_loader.h"

namespace rl4sys::config {
namespace {

using cppclient::AgentConfig;
using cppclient::ConfigurationError;

wire::Map wire_map(const json& form) {
    const std::vector<std::uint8_t> bytes = json::to_msgpack(form);
    return *wire::unpack({reinterpret_cast<const char*>(bytes.data()), bytes.size()}).get<wire::Map>();
}

// The elements of a bound in one list, rounded as Python rounds them. JSON has no infinity: it is text, as in spaces.
void append_bound(json& out, const json& bound, bool single) {
    if (bound.is_array()) {
        for (const json& item : bound) append_bound(out, item, single);
    } else if (const double rounded = single && bound.is_number() ? bound.get<float>() : 0.0; std::isinf(rounded)) {
        out.push_back(rounded > 0 ? "inf" : "-inf");
    } else {
        out.push_back(single && bound.is_number() ? json(rounded) : bound);
    }
}

// Reads the key file of a user, which the Python library writes (rl4sys_zmq/security/keys.py).
io::CurveKeys read_keys(const std::string& path) {
    constexpr std::size_t kFileBytes = 4096, kKeyChars = 40;
    const auto fail = [&](const std::string& why) { throw ConfigurationError("keys: " + path + ": " + why); };
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) fail("no such file; create the keys first, or give the folder that has them");
    if (fd < 0 && errno == ELOOP) fail("is a symbolic link, which others could redirect; give the file itself");
    if (fd < 0) fail(std::string("cannot be read: ") + std::strerror(errno) + "; it must belong to the user who runs this");
    struct stat about {};
    std::string text(kFileBytes + 1, '\0');
    const bool known = ::fstat(fd, &about) == 0;
    const ssize_t got = ::read(fd, text.data(), text.size());
    ::close(fd);
    if (!known || got < 0 || !S_ISREG(about.st_mode)) fail("cannot be read: it is not a plain file");
    if (about.st_uid != ::geteuid()) fail("belongs to another account; copy it, so that it is yours");
    if (about.st_mode & (S_IRWXG | S_IRWXO)) fail("other accounts can read it; run chmod 600 on it");
    text.resize(static_cast<std::size_t>(got));
    if (text.size() > kFileBytes) fail("is too long for a key file; give another file");
    const auto value = [&](const std::string& key) {
        const std::size_t begin = std::min(("\n" + text).find("\n" + key), text.size());
        const std::string line = text.substr(begin, text.find('\n', begin) - begin);  // never the secret of the next line
        const std::size_t open = line.find_first_of("'\""), close = open == line.npos ? open : line.find(line[open], open + 1);
        if (line.find_first_of(" =\t") != key.size() || close == line.npos || close - open - 1 != kKeyChars)
            fail(key + ": missing or invalid; create new keys");
        return line.substr(open + 1, kKeyChars);
    };
    return {value("public"), value("secret"), value("learner")};
}

// Takes the spaces, and removes the parameters that describe them.
void take_spaces(const AgentConfig& config, json& parameters, Options& out) {
    const auto take = [&](const char* key) {
        const json value = parameters.value(key, json());
        parameters.erase(key);
        return value;
    };
    const json inputs = take("input_size"), size = take("act_dim"), continuous = take("continuous"), inner = take("act_limit");
    const json limit = config.act_limit != 0.0 ? json(config.act_limit) : inner;
    json box, actions;  // that the sizes describe
    if (!inputs.is_null()) box = {{"type", "Box"}, {"shape", {inputs}}, {"dtype", "float32"}};
    if (continuous == true && config.action_space.empty()) {
        if (size.is_null())
            throw ConfigurationError("act_dim is missing: continuous: true needs act_dim and act_limit, or an action_space");
        if (limit.is_null())
            throw ConfigurationError("act_limit is missing: continuous actions need act_limit or an action_space");
        const double most = limit.get<double>();
        actions = {{"type", "Box"}, {"shape", {size}}, {"dtype", "float32"}, {"low", -most}, {"high", most}};
    } else if (!size.is_null()) {
        actions = {{"type", "Discrete"}, {"n", size}, {"start", 0}};
    }
    const auto set = [](const char* key, const std::string& given, json form, const char* size_key, const json& its_size,
                        std::optional<policy::Space>& space) {
        if (!given.empty()) form = parse(given, key);
        if (form.is_null()) return wire::Map();
        space = space_of(form);
        if (!its_size.is_null() && its_size != space->size())
            throw ConfigurationError(text(size_key, ": ", its_size, " contradicts '", key, "' of ", space->size(), " elements"));
        return wire_map(form);
    };
    delivery::Hello& hello = out.settings.hello;
    hello.observation_space = set("observation_space", config.observation_space, box, "input_size", inputs, out.observations);
    hello.action_space = set("action_space", config.action_space, actions, "act_dim", size, out.actions);
    if (out.actions && continuous == out.actions->discrete)
        throw ConfigurationError("continuous: " + continuous.dump() + " contradicts 'action_space'");
}

}  // namespace

json parameters_of(const AgentConfig& config) {
    json out = json::object();
    for (const auto& [key, value] : config.algorithm_parameters)
        std::visit([&, name = &key](const auto& x) { out[*name] = x; }, value);
    for (const auto& [key, text] : config.other_parameters) out[key] = parse(text, "algorithm_parameters." + key);
    return out;
}

policy::Space space_of(json& form) {
    const json dtype = form.value("dtype", json());
    if (form.value("type", json()) == "Discrete") {
        for (const char* known :
             {"int8", "int16", "int32", "uint8", "uint16", "uint32", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4"})
            if (dtype == known) form.erase("dtype");  // learners use int64
    } else if (dtype == "<f4" || dtype == "<f8") {
        form["dtype"] = dtype == "<f4" ? "float32" : "float64";
    }
    for (const char* key : {"low", "high"}) {
        if (!form.contains(key)) continue;
        json flat = json::array();
        append_bound(flat, form[key], dtype.is_null() || form["dtype"] == "float32");
        form[key] = form[key].is_array() ? flat : flat[0];
    }
    try {
        return policy::read_space(wire_map(form));
    } catch (const policy::Unsupported& error) {
        throw std::runtime_error(std::string(error.what()) +
                                 "; use a Box of float32 or float64, a Discrete, or the Python actor");
    }
}

std::string uri_of(const std::string& address) {
    constexpr const char* kSpace = " \t\n\v\f\r";
    const std::size_t begin = address.find_first_not_of(kSpace), colons = address.find("://");
    if (begin == address.npos) return "";
    const std::string scheme = colons == address.npos ? "tcp" : address.substr(begin, colons - begin);
    std::string rest = address.substr(colons == address.npos ? begin : colons + 3);
    rest.erase(rest.find_last_not_of(kSpace) + 1);
    if (scheme == "ipc" && !rest.empty()) return "ipc://" + rest;
    const std::size_t colon = rest.rfind(':');
    if (scheme != "tcp" || colon == rest.npos || !colon) return "";
    const std::string host = rest.substr(0, colon), digits = rest.substr(colon + 1);
    const bool bracketed = host.front() == '[' && host.back() == ']';
    if (host.find_first_of(" \t\n\v\f\r/@") != host.npos || (host.find(':') != host.npos && !bracketed)) return "";
    const long port = digits.find_first_not_of("0123456789") == digits.npos ? std::strtol(digits.c_str(), nullptr, 10) : 0;
    return port >= 1 && port <= 65535 ? "tcp://" + host + ":" + std::to_string(port) : "";
}

std::string algorithm_key(std::string name) {
    const auto change = [&](std::size_t from, std::size_t to, char first, char last) {
        for (std::size_t i = from; i < to; ++i)
            if (name[i] >= first && name[i] <= last) name[i] = static_cast<char>(name[i] ^ 0x20);
    };
    const std::size_t colon = name.find(':');
    change(0, colon == name.npos ? 0 : colon, 'A', 'Z');
    // The path of a user's own class keeps its case.
    if (name.find(':', colon + 1) == name.npos || colon == name.npos) change(colon + 1, name.size(), 'a', 'z');
    return name == "TRPO" ? "sb3:TRPO" : name;
}

Options convert(const AgentConfig& config) {
    Options out;
    json parameters = parameters_of(config);
    take_spaces(config, parameters, out);
    if (config.fallback == "random" && !(out.observations && out.actions))
        throw ConfigurationError(
            "fallback: random actions need both spaces; set observation_space and action_space, or input_size and act_dim");
    if (config.fallback == "random" && config.overflow == "wait")
        throw ConfigurationError("fallback: an actor with overflow: wait never acts without its learner; remove one");
    for (const auto& [key, value] : parameters.items())
        if (value.is_number_float() && !std::isfinite(value.get<double>()))
            throw ConfigurationError(key + " is not a finite number");
    if (const json theirs = parameters.value("entropy_coef", json()); parameters.erase("entropy_coef"))
        if (*parameters.emplace("ent_coef", theirs).first != theirs)
            throw ConfigurationError("algorithm_parameters.entropy_coef: " + theirs.dump() +
                                     " contradicts 'ent_coef': " + parameters["ent_coef"].dump());
    out.waits = config.overflow == "wait" && config.explore;
    out.swap_episode = config.swap == "episode";
    out.drops_bad_input = config.on_bad_input == "drop";
    out.stores = config.explore || config.report_returns;
    if (config.on_stale != "keep") out.on_stale = config.on_stale == "raise" ? Options::Stale::raise : Options::Stale::baseline;
    constexpr std::string_view kLevels[] = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"};
    for (int level = 4; level >= 0; --level)
        if (config.log_level == kLevels[level] || (config.debug && !level))
            out.log_level = static_cast<cppclient::LogLevel>(level);

    actor::Settings& settings = out.settings;
    delivery::Hello& hello = settings.hello;
    hello.client_id = config.client_id;
    hello.actor_id = config.actor_id;
    hello.algorithm_name = config.algorithm_name;
    hello.algorithm_type = config.algorithm_type;
    hello.submits = out.stores;
    hello.library = "rl4sys_zmq " RL4SYS_VERSION;
    try {
        hello.algorithm_parameters = wire_map(parameters);
    } catch (const ProtocolError& error) {
        throw ConfigurationError("algorithm_parameters: " + error.detail);
    }
    if (!config.weights.empty()) hello.weights = wire_map(parse(config.weights, "weights"));
    settings.address = uri_of(config.train_server_address);
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

Options options_of(const AgentConfig& config) {
    Options out = convert(checked(config));
    if (!config.keys.empty()) out.settings.keys = read_keys(config.keys);
    return out;
}

}  // namespace rl4sys::config
