#include <cstring>
#include <memory>
#include <vector>

#include "api/agent.h"
#include "rl4sys.h"
#include "rl4sys/config_loader.h"

using namespace rl4sys;
using api::Code;
using api::Failure;
using api::guarded;
using cppclient::ConfigLoader;

struct rl4sys_agent : api::Agent {
    using Agent::Agent;
};

struct rl4sys_trajectory {
    std::shared_ptr<cppclient::RL4SysTrajectory> own;
    std::vector<float> mask;
};

struct rl4sys_step {
    cppclient::RL4SysAction own;
    int failed = RL4SYS_ACTION;  // the code of the last request; this one if there was none
};

namespace {

template <class T>
T& need(T* given, const char* name) {
    if (!given) throw Failure(Code::config, name, " is null");
    return *given;
}

cppclient::RL4SysTrajectory& begun(rl4sys_trajectory* trajectory) {
    if (!need(trajectory, "trajectory").own) throw Failure(Code::action, "trajectory: no request has begun an episode");
    return *trajectory->own;
}

template <class Step>
auto& chosen(Step* step) {
    const int code = need(step, "step").failed;
    if (code) throw Failure(static_cast<Code>(code), "step: it has no action, because there was no request, or it failed");
    return step->own;
}

int open(cppclient::AgentConfig (*load)(const std::string&), const char* given, const char* name, rl4sys_baseline baseline,
         void* user, rl4sys_agent** out) noexcept {
    if (out) *out = nullptr;
    return guarded([&] {
        need(out, "out");
        need(given, name);
        api::Fallback fallback;
        if (baseline)
            fallback = [=](const std::vector<float>& observation, const std::vector<float>& mask, std::size_t size) {
                std::vector<float> action(size);
                const float* const allowed = mask.empty() ? nullptr : mask.data();
                const int failed = baseline(user, observation.data(), observation.size(), allowed, mask.size(), action.data(), size);
                return failed ? std::vector<float>() : action;
            };
        *out = new rl4sys_agent(load(given), std::move(fallback), nullptr);
    });
}

}  // namespace

extern "C" {

int rl4sys_open_file(const char* path, rl4sys_baseline baseline, void* user, rl4sys_agent** out) {
    return open(ConfigLoader::loadFromFile, path, "path", baseline, user, out);
}

int rl4sys_open_json(const char* text, rl4sys_baseline baseline, void* user, rl4sys_agent** out) {
    return open(ConfigLoader::loadFromString, text, "text", baseline, user, out);
}

int rl4sys_close(rl4sys_agent* agent, double timeout_s) {
    if (agent) agent->close(timeout_s);
    return guarded([&] { delete agent; });
}

int rl4sys_trajectory_new(rl4sys_trajectory** out) {
    return guarded([&] {
        need(out, "out");
        *out = new rl4sys_trajectory();
    });
}

void rl4sys_trajectory_free(rl4sys_trajectory* trajectory) { delete trajectory; }

int rl4sys_step_new(rl4sys_step** out) {
    return guarded([&] {
        need(out, "out");
        *out = new rl4sys_step();
    });
}

void rl4sys_step_free(rl4sys_step* step) { delete step; }

int rl4sys_request(rl4sys_agent* agent, rl4sys_trajectory* trajectory, const float* observation, size_t observation_size,
                   const uint8_t* mask, size_t mask_size, rl4sys_step* step) {
    const int code = guarded([&] {
        need(agent, "agent");
        need(observation, "observation");
        need(step, "step");
        std::vector<float>& allowed = need(trajectory, "trajectory").mask;
        allowed.assign(mask, mask + (mask ? mask_size : 0));
        for (float& one : allowed) one = one != 0.0f;
        agent->request(trajectory->own, observation, observation_size, allowed.data(), allowed.size(), step->own);
    });
    if (step) step->failed = code;
    return code;
}

int rl4sys_act(const rl4sys_step* step, int64_t* out) {
    return guarded([&] { need(out, "out") = chosen(step).act(); });
}

int rl4sys_act_floats(const rl4sys_step* step, float* out, size_t size, size_t* count) {
    return guarded([&] {
        const std::vector<float>& act = chosen(step).actFloats();
        if (count) *count = act.size();
        if (act.size() > size) throw Failure(Code::buffer, "out: the action has ", act.size(), " elements; size is ", size);
        if (!act.empty()) std::memcpy(&need(out, "out"), act.data(), sizeof(float) * act.size());
    });
}

int rl4sys_add(rl4sys_agent* agent, rl4sys_trajectory* trajectory, rl4sys_step* step) {
    return guarded([&] {
        cppclient::RL4SysTrajectory& to = begun(trajectory);
        need(agent, "agent").add(to, chosen(step));
    });
}

int rl4sys_reward(rl4sys_step* step, double reward) {
    return guarded([&] { need(step, "step").own.setReward(reward); });
}

int rl4sys_end(rl4sys_agent* agent, rl4sys_trajectory* trajectory, rl4sys_step* step, int truncated,
               const float* final_observation, size_t observation_size) {
    return guarded([&] {
        need(agent, "agent")
            .end(begun(trajectory), step && !step->failed ? &step->own : nullptr, truncated != 0, final_observation,
                 final_observation ? observation_size : 0, nullptr, 0);
    });
}

int rl4sys_flush(rl4sys_agent* agent, double timeout_s) {
    return guarded([&] { need(agent, "agent").flush(timeout_s); });
}

int64_t rl4sys_version(const rl4sys_agent* agent) {
    std::int64_t out = -1;
    guarded([&] { out = need(agent, "agent").version(); });
    return out;
}

int rl4sys_wait_version(rl4sys_agent* agent, int64_t version, double timeout_s) {
    return guarded([&] { need(agent, "agent").wait_version(version, timeout_s); });
}

int rl4sys_stats(const rl4sys_agent* agent, char* out, size_t size, size_t* length) {
    return guarded([&] {
        const std::string text = need(agent, "agent").stats();
        if (length) *length = text.size();
        if (text.size() + 1 > size) throw Failure(Code::buffer, "out: the text has ", text.size() + 1, " bytes; size is ", size);
        std::memcpy(&need(out, "out"), text.c_str(), text.size() + 1);
    });
}

const char* rl4sys_last_error(void) { return api::last_error().c_str(); }

}  // extern "C"
