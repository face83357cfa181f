#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "api/agent.h"
#include "rl4sys.h"
#include "rl4sys/config_loader.h"

struct rl4sys_agent {
    std::unique_ptr<rl4sys::api::Agent> own;
};

struct rl4sys_trajectory {
    std::shared_ptr<rl4sys::cppclient::RL4SysTrajectory> own;
    std::vector<float> mask;
};

struct rl4sys_step {
    rl4sys::cppclient::RL4SysAction own;
};

namespace {

using namespace rl4sys;

int fail(int code, const char* text) noexcept {
    try {
        api::last_error() = text;
    } catch (...) {
    }
    return code;
}

// Runs a call, and returns the code of its exception.
template <class Call>
int guarded(const Call& call) noexcept {
    try {
        call();
        return RL4SYS_OK;
    } catch (const api::Failure& failure) {
        return fail(static_cast<int>(failure.code), failure.what());
    } catch (const cppclient::ConfigurationError& error) {
        return fail(RL4SYS_CONFIG, error.what());
    } catch (const std::exception& error) {
        return fail(RL4SYS_INTERNAL, error.what());
    } catch (...) {
        return fail(RL4SYS_INTERNAL, "an unexpected error");
    }
}

void need(bool given, const char* what) {
    if (!given) throw api::Failure(api::Code::config, std::string(what) + " is null");
}

template <class Load>
int open(const Load& load, rl4sys_baseline baseline, void* user, rl4sys_agent** out) noexcept {
    if (out) *out = nullptr;
    return guarded([&] {
        need(out, "out");
        api::Fallback fallback;
        if (baseline)
            fallback = [baseline, user](const float* observation, std::size_t observation_size, const float* mask,
                                        std::size_t mask_size, float* action, std::size_t size) {
                return baseline(user, observation, observation_size, mask, mask_size, action, size) == 0;
            };
        auto agent = std::make_unique<rl4sys_agent>();
        agent->own = std::make_unique<api::Agent>(load(), std::move(fallback), cppclient::LogSink());
        *out = agent.release();
    });
}

}  // namespace

extern "C" {

int rl4sys_open_file(const char* path, rl4sys_baseline baseline, void* user, rl4sys_agent** out) {
    return open(
        [&] {
            need(path, "path");
            return cppclient::ConfigLoader::loadFromFile(path);
        },
        baseline, user, out);
}

int rl4sys_open_json(const char* text, rl4sys_baseline baseline, void* user, rl4sys_agent** out) {
    return open(
        [&] {
            need(text, "text");
            return cppclient::ConfigLoader::loadFromString(text);
        },
        baseline, user, out);
}

int rl4sys_close(rl4sys_agent* agent, double timeout_s) {
    if (!agent) return RL4SYS_OK;
    return guarded([&] {
        agent->own->close(timeout_s);
        delete agent;
    });
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
    return guarded([&] {
        need(agent && trajectory && observation && step, "an argument");
        if (mask) trajectory->mask.assign(mask, mask + mask_size);
        for (float& allowed : trajectory->mask) allowed = allowed != 0.0f;
        agent->own->request(trajectory->own, observation, observation_size, mask ? trajectory->mask.data() : nullptr,
                            mask ? mask_size : 0, step->own);
    });
}

int64_t rl4sys_act(const rl4sys_step* step) { return step ? step->own.act() : 0; }

size_t rl4sys_act_floats(const rl4sys_step* step, float* out, size_t size) {
    if (!step) return 0;
    const std::vector<float>& act = step->own.actFloats();
    if (out && size && !act.empty()) std::memcpy(out, act.data(), sizeof(float) * (act.size() < size ? act.size() : size));
    return act.size();
}

int rl4sys_add(rl4sys_agent* agent, rl4sys_trajectory* trajectory, rl4sys_step* step) {
    return guarded([&] {
        need(agent && trajectory && trajectory->own && step, "an argument, or there was no request");
        agent->own->add(*trajectory->own, step->own);
    });
}

int rl4sys_reward(rl4sys_step* step, double reward) {
    return guarded([&] {
        need(step, "step");
        step->own.setReward(reward);
    });
}

int rl4sys_end(rl4sys_agent* agent, rl4sys_trajectory* trajectory, rl4sys_step* step, int truncated,
               const float* final_observation, size_t observation_size) {
    return guarded([&] {
        need(agent && trajectory && trajectory->own, "an argument, or there was no request");
        agent->own->end(*trajectory->own, step ? &step->own : nullptr, truncated != 0, final_observation,
                        final_observation ? observation_size : 0, nullptr, 0);
    });
}

int rl4sys_flush(rl4sys_agent* agent, double timeout_s) {
    return guarded([&] {
        need(agent, "agent");
        agent->own->flush(timeout_s);
    });
}

int64_t rl4sys_version(const rl4sys_agent* agent) {
    std::int64_t out = -1;
    guarded([&] {
        need(agent, "agent");
        out = agent->own->version();
    });
    return out;
}

int rl4sys_wait_version(rl4sys_agent* agent, int64_t version, double timeout_s) {
    return guarded([&] {
        need(agent, "agent");
        agent->own->wait_version(version, timeout_s);
    });
}

int rl4sys_stats(const rl4sys_agent* agent, char* out, size_t size, size_t* length) {
    return guarded([&] {
        need(agent, "agent");
        const std::string text = agent->own->stats();
        if (length) *length = text.size();
        if (text.size() + 1 > size || !out)
            throw api::Failure(api::Code::buffer, "the text has " + std::to_string(text.size() + 1) + " bytes; the buffer has " +
                                                      std::to_string(size));
        std::memcpy(out, text.c_str(), text.size() + 1);
    });
}

const char* rl4sys_last_error(void) { return api::last_error().c_str(); }

}  // extern "C"
