// The agent behind the C++ and the C interface (rl4sys_zmq/actor/agent.py, acting.py).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "actor/episode.h"
#include "actor/io_thread.h"
#include "config/options.h"
#include "policy/policy.h"

namespace rl4sys::api {

using config::Options;

/// Why a call failed. The numbers are those of rl4sys.h.
enum class Code { config = 1, unavailable, refused, observation, mask, action, reward, stale, closed, buffer, internal };

class Failure : public std::runtime_error {
public:
    template <class... Values>
    explicit Failure(Code why, const Values&... text) : std::runtime_error(config::text(text...)), code(why) {}

    Code code;
};

/// The text of the last failure in this thread.
std::string& last_error() noexcept;

/// Keeps the text of the exception that is being handled, and returns its code.
int keep_error() noexcept;

/// Runs a call. Returns 0, or the code of its exception, whose text is kept.
template <class Call>
int guarded(const Call& call) noexcept {
    try {
        call();
        return 0;
    } catch (...) {
        return keep_error();
    }
}

/// Returns the `size` elements of an action. The mask is empty if all actions are allowed. Another size or an exception: none.
using Fallback =
    std::function<std::vector<float>(const std::vector<float>& observation, const std::vector<float>& mask, std::size_t size)>;

struct Spaces {
    const policy::Space &observations, &actions;
};

/// The spaces of a policy, or without one those of the configuration. Throws Failure if there are none.
Spaces spaces_of(const Options& options, const policy::Policy* policy);

/// Converts an observation to the bytes of its space. Throws Failure.
void read_observation(const policy::Space& space, const float* observation, std::size_t size, std::vector<std::uint8_t>& out);

/// Takes a uniformly random action that the mask allows. A dimension with an infinite bound gets a clipped normal number.
void act_randomly(actor::Step& step, const policy::Space& actions, policy::Sampler& sampler);

/// The state of an agent for one host thread.
struct HostThread {
    HostThread(const std::vector<std::uint32_t>& seed, double place) : sampler(seed, place) {}

    policy::Sampler sampler;
    std::optional<policy::Scratch> scratch;
    std::shared_ptr<const policy::PolicySpec> spec;  // for which `scratch` is
    std::vector<float> last_act;                     // the last act, for use after invalid input
    std::int64_t last_index = 0;
    bool acted = false;
};

/// The parts of an agent in one process. Episodes keep them in memory.
struct Parts {
    Parts(const Options& options, std::vector<std::uint32_t> seed_words, const void* agent);
    ~Parts();

    HostThread& thread();
    actor::ActingPolicy current() const;
    /// Keeps an episode that waits for rewards until a time.
    void keep(std::shared_ptr<actor::Episode> episode, double until);
    void expire();
    void count(const char* name);
    /// True in a forked child. It costs no system call.
    bool in_child() const noexcept { return !*mark; }

    const Options options;
    const std::vector<std::uint32_t> seed;
    const std::uint64_t serial;
    const void* const owner;  // the agent
    void* const context;
    actor::Outbox outbox;
    actor::ColumnPool pool;
    actor::IoThread io;
    actor::EpisodeRules rules;
    actor::EpisodeCounts counts;
    const std::unique_ptr<volatile unsigned char, void (*)(volatile unsigned char*)> mark;  // a page that a child finds empty
    std::atomic<bool> closed{false};
    std::atomic<double> expire_at;  // of the first segment that waits for rewards
    std::atomic<std::size_t> late_count{0};

    std::mutex mutex;  // of what follows
    std::map<std::thread::id, std::unique_ptr<HostThread>> threads;
    std::vector<std::shared_ptr<actor::Episode>> late;  // episodes that wait for rewards
    delivery::Counters counters;
};

}  // namespace rl4sys::api

/// The content of a trajectory: its running episode, and the policy with which it acts.
struct rl4sys::cppclient::RL4SysTrajectory::State {
    std::shared_ptr<api::Parts> parts;  // null: no agent has used the trajectory
    std::shared_ptr<actor::Episode> episode;
    actor::ActingPolicy acting;
    std::vector<float> recurrent;  // after the last added step
    std::uint32_t segment_steps = 0;
    std::vector<RL4SysAction> actions;  // without an agent: all; else copies of those in the open segment
    std::int32_t version = 0;
    bool completed = false;
};

namespace rl4sys::api {

class Agent {
public:
    using Run = cppclient::RL4SysTrajectory::State;

    Agent(const cppclient::AgentConfig& config, Fallback baseline, cppclient::LogSink log);
    Agent(const Agent&) = delete;
    ~Agent();

    void request(std::shared_ptr<cppclient::RL4SysTrajectory>& trajectory, const float* observation, std::size_t size,
                 const float* mask, std::size_t mask_size, cppclient::RL4SysAction& action);
    void add(cppclient::RL4SysTrajectory& trajectory, const cppclient::RL4SysAction& action);
    void end(cppclient::RL4SysTrajectory& trajectory, cppclient::RL4SysAction* last, bool truncated,
             const float* final_observation, std::size_t size, const float* final_mask, std::size_t mask_size);
    void flush(double timeout_s);
    void close(double timeout_s) noexcept;
    /// The current policy; null before the first.
    actor::ActingPolicy current() const { return parts_->current(); }
    std::int64_t version() const;
    void wait_version(std::int64_t version, double timeout_s);
    bool roll_back();
    std::string stats() const;

    const cppclient::AgentConfig config;

    // What trajectories do without an agent at hand.
    static void add_to(Run& run, actor::Step& step);
    static void end_run(Run& run, bool truncated, const void* final_observation, const std::uint8_t* final_mask);

private:
    void connect();
    Parts& use();
    void become_child();
    Run& own(cppclient::RL4SysTrajectory& trajectory) const;
    void begin(Run& run);
    void choose(Run& run, HostThread& thread, const float* observation, std::size_t size, actor::Step& step);
    void act_by_baseline(actor::Step& step, const policy::Space& actions, const float* observation, std::size_t size);
    void log(actor::LogLevel level, const std::string& text) const;

    Fallback baseline_;
    std::atomic<Parts*> used_{nullptr};
    std::shared_ptr<Parts> parts_;
    std::mutex forking_;
    std::string absence_;
    std::atomic<std::uint64_t> next_episode_;
};

}  // namespace rl4sys::api
