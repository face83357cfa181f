#include "api/agent.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "hash/xxh3.h"
#include "libraries/linked.h"
#include "rl4sys/config_loader.h"
#include "support/bytes.h"

namespace rl4sys::api {
namespace {

using actor::Episode;
using actor::Step;
using cppclient::RL4SysAction;
using cppclient::RL4SysTrajectory;
using policy::Space;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMaxHost = 40;  // characters of the host's name in the default name of an actor
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSlice = 0.25;         // longest sleep of a waiting host thread
constexpr double kClientStart = 600.0;  // longest wait while the learner answers that it starts the training
constexpr double kSilence = 5.0;
constexpr std::size_t kManyLate = 1024;  // episodes that wait for rewards, above which those that do not are removed
constexpr std::uint64_t kDefaultSegment = 128;
constexpr std::uint64_t kStride = 0x9E3779B97F4A7C15;  // between the ids of episodes

std::uint64_t random_bits() {
    const std::vector<std::uint32_t> words = support::system_seed(2);
    return std::uint64_t{words[0]} << 32 | words[1];
}

// The name of an actor that has none (names.py): its host, its process and a random number.
std::string new_actor_id() {
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    std::string out(host.data());
    for (char& letter : out)
        if (!std::isalnum(static_cast<unsigned char>(letter)) && !std::strchr("._-", letter)) letter = '-';
    out.erase(0, out.find_first_not_of('.'));
    out = out.substr(0, out.find_last_not_of('.') + 1).substr(0, kMaxHost);
    std::array<char, 9> number{};
    std::snprintf(number.data(), number.size(), "%08x", static_cast<unsigned>(support::system_seed(1)[0]));
    return (out.empty() ? "host" : out) + "." + std::to_string(getpid()) + "-" + number.data();
}

// The Unix time in nanoseconds with 24 random low bits (delivery/incarnation.py).
std::uint64_t first_incarnation() {
    const std::chrono::nanoseconds now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::max<std::int64_t>(now.count(), 0)) >> 24 << 24 |
           (support::system_seed(1)[0] % 0xFFFFFF + 1);
}

unsigned char* page_emptied_by_fork() {
    void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    madvise(page, kPage, MADV_WIPEONFORK);
    return new (page) unsigned char(1);
}

void check_size(Code code, const char* what, std::size_t size, std::size_t wanted) {
    if (size != wanted) throw Failure(code, "the ", what, " has ", size, " elements; expected ", wanted);
}

void act(Step& step, std::int64_t index) {
    step.index = index;
    step.act.clear();
    step.raw.clear();
}

// The first allowed discrete action, or the middle of a Box (the value nearest 0 in an unbounded dimension).
void act_idle(Step& step, const Space& actions) {
    const auto allowed = std::find(step.mask.begin(), step.mask.end(), 1);
    act(step, actions.start + (allowed == step.mask.end() ? 0 : allowed - step.mask.begin()));
    for (std::size_t i = 0; i < actions.low.size(); ++i) {
        const double low = actions.low[i], high = actions.high[i];
        const bool bounded = std::isfinite(low) && std::isfinite(high);
        step.act.push_back(static_cast<float>(bounded ? low / 2 + high / 2 : std::min(std::max(0.0, low), high)));
    }
}

}  // namespace

Spaces spaces_of(const Options& options, const policy::Policy* policy) {
    if (policy) return {policy->spec().observations, policy->spec().actions};
    if (!options.observations || !options.actions)
        throw Failure(Code::unavailable, "there is no policy, and the configuration has not both spaces");
    return {*options.observations, *options.actions};
}

void read_observation(const Space& space, const float* observation, std::size_t size, std::vector<std::uint8_t>& out) {
    check_size(Code::observation, "observation", size, space.discrete ? 1 : space.size());
    if (!observation) throw Failure(Code::observation, "the observation is null");
    const float* const bad = std::find_if_not(observation, observation + size, [](float x) { return std::isfinite(x); });
    if (bad != observation + size) throw Failure(Code::observation, "observation element ", bad - observation, " is not finite");
    const bool single = space.dtype == "<f4";
    out.resize(size * (single ? sizeof(float) : sizeof(double)));
    if (space.discrete) {
        const auto value = static_cast<std::int64_t>(observation[0]);
        if (static_cast<float>(value) != observation[0] || value < space.start || value >= space.start + space.n)
            throw Failure(Code::observation, "observation ", observation[0], " is not one of the ", space.n, " integers from ",
                          space.start, " on");
        support::store(out.data(), value);
    } else if (single) {
        std::memcpy(out.data(), observation, out.size());
    } else {
        for (std::size_t i = 0; i < size; ++i)
            support::store(out.data() + i * sizeof(double), static_cast<double>(observation[i]));
    }
}

void act_randomly(Step& step, const Space& actions, policy::Sampler& sampler) {
    act_idle(step, actions);
    if (actions.discrete) {
        std::vector<std::int64_t> allowed;
        for (std::int64_t i = 0; i < actions.n; ++i)
            if (step.mask.empty() || step.mask[static_cast<std::size_t>(i)]) allowed.push_back(actions.start + i);
        step.index = allowed[static_cast<std::size_t>(sampler.uniform() * static_cast<double>(allowed.size()))];
    }
    for (std::size_t i = 0; i < step.act.size(); ++i) {
        const double low = actions.low[i], high = actions.high[i];
        const bool bounded = std::isfinite(low) && std::isfinite(high);
        const double drawn =
            bounded ? 2.0 * (low / 2 + (high / 2 - low / 2) * sampler.uniform()) : static_cast<double>(*sampler.normals(1));
        step.act[i] = static_cast<float>(std::min(std::max(drawn, low), high));
    }
}

std::string& last_error() noexcept {
    static thread_local std::string text;
    return text;
}

int keep_error() noexcept try {
    try {
        throw;
    } catch (const Failure& failure) {
        last_error() = failure.what();
        return static_cast<int>(failure.code);
    } catch (const cppclient::ConfigurationError& error) {
        last_error() = error.what();
        return static_cast<int>(Code::config);
    } catch (const std::exception& error) {
        last_error() = error.what();
    }
    return static_cast<int>(Code::internal);
} catch (...) {  // of another kind, or there is no memory for its text
    return static_cast<int>(Code::internal);
}

Parts::Parts(const Options& given, std::vector<std::uint32_t> seed_words, const void* agent)
    : options(given),
      seed(std::move(seed_words)),
      serial(random_bits()),
      owner(agent),
      context(libraries::linked_zmq().ctx_new()),
      outbox(options.settings.queue_items, options.settings.queue_bytes, !options.waits),
      io(options.settings, outbox, libraries::linked_zmq(), context, libraries::linked_zstd()),
      rules{outbox,
            pool,
            [this] { io.wake_unless_resting(); },
            [this](std::shared_ptr<Episode> episode) {
                keep(std::move(episode), actor::monotonic() + options.settings.reward_timeout_s);
            },
            [this] {
                if (options.drops_bad_input) count("bad_input.RewardError");
                return options.drops_bad_input;
            },
            !options.settings.explore,
            options.stores,
            options.settings.reward_timeout_s,
            options.settings.max_trajectory_steps},
      mark(page_emptied_by_fork(), [](volatile unsigned char* page) { munmap(const_cast<unsigned char*>(page), kPage); }),
      expire_at(kInfinity) {}

Parts::~Parts() {
    io.stop();
    if (context) libraries::linked_zmq().ctx_term(context);
}

void Parts::count(const char* name) {
    const std::lock_guard<std::mutex> lock(mutex);
    ++counters[name];
}

HostThread& Parts::thread() {
    static thread_local std::pair<std::uint64_t, HostThread*> last;  // a serial, and this thread's state there
    if (last.first == serial) return *last.second;
    const std::lock_guard<std::mutex> lock(mutex);
    std::unique_ptr<HostThread>& own = threads[std::this_thread::get_id()];
    if (!own) {
        // As Python's seed << 32 | number, without leading zero words.
        std::vector<std::uint32_t> words{static_cast<std::uint32_t>(threads.size() - 1)};
        words.insert(words.end(), seed.begin(), seed.end());
        while (words.size() > 1 && !words.back()) words.pop_back();
        const std::uint64_t name = hash::xxh3_64(options.settings.hello.actor_id);
        own = std::make_unique<HostThread>(words, static_cast<double>(name >> 11) * 0x1p-53);
    }
    last = {serial, own.get()};
    return *own;
}

actor::ActingPolicy Parts::current() const {
    const std::lock_guard<std::mutex> lock(io.host.mutex);
    return io.host.acting;
}

void Parts::keep(std::shared_ptr<Episode> episode, double until) {
    const std::lock_guard<std::mutex> lock(mutex);
    expire_at.store(std::min(expire_at.load(), until));
    late.push_back(std::move(episode));
    late_count.store(late.size());
}

void Parts::expire() {
    std::vector<std::shared_ptr<Episode>> waiting;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        waiting.swap(late);
        late_count.store(0);
        expire_at.store(kInfinity);
    }
    const double now = actor::monotonic();
    for (std::shared_ptr<Episode>& episode : waiting) {
        episode->expire(now);
        if (const double at = episode->deadline(); at < kInfinity) keep(std::move(episode), at);
    }
}

namespace {

Failure unavailable(const Parts& parts, const std::string& stage, double timeout_s) {
    const actor::HostLink& host = parts.io.host;
    const std::string& address = parts.options.settings.address;
    const std::string limit = config::text(" within ", std::max(0.0, timeout_s), " s (waiting for ",
                                           stage.empty() || !host.joined ? host.stage : stage, ")");
    if (!host.joined)
        return Failure(Code::unavailable, "no learner at ", address, limit,
                       "; start it, or correct the address; `rl4sys-learner doctor` tests each step");
    const char* const advice = "; `rl4sys-learner status` shows whether it trains; raise wait_timeout_s if it does";
    return Failure(Code::unavailable, "the learner at ", address, " answers, but did not continue", limit,
                   stage.empty() ? advice : "");
}

[[noreturn]] void fail_session(const actor::SessionError& error) {
    using Kind = actor::SessionError::Kind;
    const std::string field = error.field.empty() ? "" : " (" + error.field + ")";
    if (error.kind == Kind::refused)
        throw Failure(Code::refused, "the learner refuses this actor: ", name_of(error.code), field, ": ", error.text);
    if (error.kind == Kind::client_failed)
        throw Failure(Code::unavailable, "the learner has stopped the training of this policy: ", error.text);
    throw Failure(Code::config, error.text, "; use the Python actor for this policy");
}

// Waits until `ready` is true, which is called under the lock of the shared state. `waiting` is one more during that time.
template <class Ready>
void wait(Parts& parts, const Ready& ready, double timeout_s, const std::string& stage, std::atomic<int>* waiting = nullptr) {
    const auto leave = [](std::atomic<int>* count) { --*count; };
    const std::unique_ptr<std::atomic<int>, decltype(leave)> counted(waiting, leave);
    if (waiting) ++*waiting;
    actor::HostLink& host = parts.io.host;
    const double deadline = actor::monotonic() + timeout_s;
    parts.io.wake_now();
    std::unique_lock<std::mutex> lock(host.mutex);
    while (!ready(host)) {
        if (host.error) fail_session(*host.error);
        if (parts.closed.load() && !host.flushing.load()) throw Failure(Code::closed, "this agent was closed");
        const double left = deadline - actor::monotonic();
        if (left <= 0.0) throw unavailable(parts, stage, timeout_s);
        host.changed.wait_for(lock, std::chrono::duration<double>(std::min(left, kSlice)));
    }
}

void read_mask(const Parts& parts, const Space& space, const float* mask, std::size_t size, std::vector<std::uint8_t>& out) {
    out.clear();
    if (!mask || !size) return;
    if (!space.discrete) throw Failure(Code::mask, "the action space is continuous; a mask needs a discrete one");
    check_size(Code::mask, "mask", size, space.size());
    if (parts.options.settings.explore) {
        const std::lock_guard<std::mutex> lock(parts.io.host.mutex);
        const auto& parameters = parts.io.host.parameters;
        if (parameters && !parameters->no_masks.empty()) throw Failure(Code::mask, parameters->no_masks);
    }
    for (std::size_t i = 0; i < size; ++i) {
        if (mask[i] != 0.0f && mask[i] != 1.0f) throw Failure(Code::mask, "a mask must hold 0 and 1, not ", mask[i]);
        out.push_back(mask[i] != 0.0f);
    }
    if (std::find(out.begin(), out.end(), 1) == out.end()) throw Failure(Code::mask, "the mask forbids all ", size, " actions");
}

// Counts invalid input, whose exception is being handled, or throws that on.
void forgive(Parts& parts, Code code) {
    if (!parts.options.drops_bad_input) throw;
    parts.count(code == Code::mask ? "bad_input.MaskError" : "bad_input.ObservationError");
}

// Waits until the learner grants credit for a segment, and the policy version that it requires has arrived.
void admit(Parts& parts, Agent::Run& run) {
    actor::HostLink& host = parts.io.host;
    const auto ready = [&](const actor::HostLink& shared) {
        if (!shared.acting.policy) return false;
        const std::uint64_t finished = parts.outbox.counts().put_steps, wanted = finished + 2 * run.segment_steps;
        if (wanted > host.want_steps.load()) {
            host.want_steps.store(wanted);
            parts.io.wake_unless_resting();
        }
        const weights::Snapshot& snapshot = shared.acting.policy->snapshot();
        return static_cast<std::int64_t>(finished) < shared.gate.limit_steps && snapshot.generation == shared.gate.generation &&
               snapshot.version >= shared.gate.min_version;
    };
    {
        const std::lock_guard<std::mutex> lock(host.mutex);
        if (ready(host)) return;
    }
    wait(parts, ready, parts.options.settings.wait_timeout_s, "", &host.waiting);
    actor::ActingPolicy acting = parts.current();
    if (!parts.options.swap_episode || run.acting.policy->snapshot().generation != acting.policy->snapshot().generation)
        run.acting = std::move(acting);
}

// False if the policy's output is not finite.
bool choose_by_policy(const Agent::Run& run, HostThread& thread, const float* observation, Step& step) {
    const policy::Policy& policy = *run.acting.policy;
    const policy::PolicySpec& spec = policy.spec();
    if (thread.spec != policy.shared_spec()) {
        thread.scratch.emplace(spec);
        thread.spec = policy.shared_spec();
    }
    step.generation = policy.snapshot().generation;
    step.version = policy.snapshot().version;
    step.state = step.after = run.recurrent;
    const std::int64_t index =
        spec.observations.discrete ? static_cast<std::int64_t>(observation[0]) - spec.observations.start : 0;
    const policy::Choice choice = policy.act(observation, index, step.allowed(), run.parts->options.settings.explore,
                                             step.after.empty() ? nullptr : step.after.data(), thread.sampler, *thread.scratch);
    if (!std::isfinite(choice.log_prob)) return false;
    step.recorded = true;
    step.log_prob = choice.log_prob;
    act(step, choice.index);
    if (!spec.actions.discrete) {
        const std::size_t size = spec.actions.size();
        step.raw.assign(choice.raw, choice.raw + size);
        step.act.assign(choice.act, choice.act + size);
    }
    return true;
}

}  // namespace

Agent::Agent(const cppclient::AgentConfig& given, Fallback baseline, cppclient::LogSink sink)
    : config(given), baseline_(std::move(baseline)), next_episode_(random_bits()) {
    Options options = config::options_of(given);
    if (options.log_level || sink)
        options.settings.log = [its = cppclient::Logger("rl4sys", options.log_level.value_or(cppclient::LogLevel::INFO), sink)](
                                   actor::LogLevel level, const std::string& text) {
            its.log(static_cast<cppclient::LogLevel>(level), text);
        };
    if (options.settings.hello.actor_id.empty()) options.settings.hello.actor_id = new_actor_id();
    options.settings.hello.incarnation = first_incarnation();
    parts_ = std::make_shared<Parts>(options, options.settings.seed ? *options.settings.seed : support::system_seed(4), this);
    parts_->io.start();
    used_.store(parts_.get(), std::memory_order_release);
    try {
        connect();
    } catch (...) {
        close(0.0);
        throw;
    }
}

Agent::~Agent() {
    close(2.0);
    // The parent's threads do not exist here, so its parts cannot be taken down.
    if (parts_->in_child()) new std::shared_ptr<Parts>(std::move(parts_));
}

void Agent::log(actor::LogLevel level, const std::string& text) const {
    if (const actor::LogSink& sink = parts_->options.settings.log) sink(level, text);
}

void Agent::connect() {
    const double timeout = parts_->options.settings.connect_timeout_s, began = actor::monotonic();
    const bool can_start = !parts_->options.waits && (baseline_ || config.fallback == "random") && parts_->options.observations &&
                           parts_->options.actions;
    const auto has_policy = [](const actor::HostLink& host) { return host.acting.policy && host.parameters; };
    const double limit = began + (!can_start && timeout > 0.0 ? kClientStart : 0.0);
    double until = began + timeout, left = timeout;
    while (true) {
        try {
            return wait(*parts_, has_policy, left, "");
        } catch (const Failure& failure) {
            const double later = std::min(parts_->io.host.starting_at.load() + std::max(kSilence, timeout), limit);
            if (failure.code != Code::unavailable || (later <= until && !can_start)) throw;
            if (later <= until) {
                absence_ = failure.what();
                const char* const by = baseline_ ? "its baseline" : "random actions";
                return log(actor::LogLevel::warning,
                           config::text(config.client_id, ": ", absence_, "; until the first policy arrives, the actor acts by ",
                                        by, ", and records no steps"));
            }
            until = later;
            left = until - actor::monotonic();
        }
    }
}

Parts& Agent::use() {
    Parts* const parts = used_.load(std::memory_order_acquire);
    if (!parts->in_child()) return *parts;
    const std::lock_guard<std::mutex> lock(forking_);
    if (used_.load()->in_child()) become_child();
    return *used_.load();
}

// In a forked child, the agent becomes another actor, with the parent's policy. The parent's parts stay in memory untouched.
void Agent::become_child() {
    if (parts_->closed.load()) throw Failure(Code::closed, "this agent is closed");
    Options options = parts_->options;
    options.settings.hello.actor_id = new_actor_id();
    options.settings.hello.incarnation = first_incarnation();
    options.settings.policy_cache.clear();
    std::vector<std::uint32_t> seed{static_cast<std::uint32_t>(getpid())};
    seed.insert(seed.end(), parts_->seed.begin(), parts_->seed.end());
    auto child = std::make_shared<Parts>(options, std::move(seed), this);
    child->counters["forks"] = 1;
    child->io.inherit(parts_->io);
    new std::shared_ptr<Parts>(parts_);
    parts_ = std::move(child);
    parts_->io.start();
    used_.store(parts_.get(), std::memory_order_release);
}

std::int64_t Agent::version() const {
    const actor::ActingPolicy acting = current();
    return acting.policy ? static_cast<std::int64_t>(acting.policy->snapshot().version) : -1;
}

void Agent::wait_version(std::int64_t version, double timeout_s) {
    const auto there = [&](const actor::HostLink& host) {
        return host.acting.policy && static_cast<std::int64_t>(host.acting.policy->snapshot().version) >= version;
    };
    wait(use(), there, timeout_s, config::text("version ", version));
}

bool Agent::roll_back() {
    const actor::ActingPolicy acting = current();
    if (!acting.policy || !use().io.roll_back(acting.policy.get())) return false;
    parts_->count("rollbacks");
    return true;
}

void Agent::flush(double timeout_s) {
    Parts& parts = use();
    const auto stored = [target = parts.outbox.counts().put_items](const actor::HostLink& host) {
        return host.settled >= target && !host.error;
    };
    wait(parts, stored, timeout_s, "the ack of all finished segments", &parts.io.host.flushing);
}

void Agent::close(double timeout_s) noexcept {
    Parts& parts = *parts_;
    if (parts.in_child() || parts.closed.exchange(true)) return;  // a child that never used the agent has nothing to close
    try {
        parts.io.host.leaving.store(true);
        std::unique_lock<std::mutex> lock(parts.io.host.mutex);
        const bool idle = parts.io.host.error || parts.io.host.settled >= parts.outbox.counts().put_items;
        lock.unlock();
        if (timeout_s > 0.0 && !idle) flush(timeout_s);
    } catch (const std::exception& error) {
        log(actor::LogLevel::warning, config.client_id + ": closed with undelivered segments: " + error.what());
    }
    parts.io.stop();
    const std::lock_guard<std::mutex> lock(parts.mutex);
    parts.late.clear();
}

void Agent::request(std::shared_ptr<RL4SysTrajectory>& trajectory, const float* observation, std::size_t size, const float* mask,
                    std::size_t mask_size, RL4SysAction& action) {
    Parts& parts = use();
    if (parts.closed.load(std::memory_order_relaxed)) throw Failure(Code::closed, "this agent is closed");
    if (trajectory) {
        const Run& run = *trajectory->state_;
        if (run.parts && run.parts.get() != &parts) {
            own(*trajectory);
            trajectory = nullptr;  // it stays with the parent process
        } else if (run.episode && run.episode->done() && !run.completed) {
            end(*trajectory, nullptr, false, nullptr, 0, nullptr, 0);
        }
    }
    // Usually the trajectory acts with the newest policy: no lock.
    const policy::Policy* const newest = parts.io.host.current.load(std::memory_order_acquire);
    const bool changes = newest && !(trajectory && trajectory->state_->acting.policy.get() == newest);
    actor::ActingPolicy acting = changes ? parts.current() : actor::ActingPolicy();
    const Spaces spaces = spaces_of(parts.options, changes ? acting.policy.get() : newest);

    if (!action.step_ || action.step_.use_count() > 1) action.step_ = std::make_shared<Step>();
    Step& step = *action.step_;
    step.part.reset();
    step.reward.reset();
    step.bytes.clear();
    step.done = step.added = step.recorded = false;
    step.log_prob = 0.0;
    if (!step.extra.empty()) step.extra.clear();
    bool bad = false;
    try {
        read_observation(spaces.observations, observation, size, step.observation);
        read_mask(parts, spaces.actions, mask, mask_size, step.mask);
    } catch (const Failure& failure) {
        forgive(parts, failure.code);
        step.observation.assign(
            spaces.observations.discrete ? 8 : spaces.observations.size() * wire::item_bytes(spaces.observations.dtype), 0);
        step.mask.clear();
        bad = true;
    }
    if (parts.late_count.load(std::memory_order_relaxed) &&
        (actor::monotonic() >= parts.expire_at.load() || parts.late_count.load() > kManyLate))
        parts.expire();
    if (!trajectory || trajectory->isCompleted()) trajectory = std::make_shared<RL4SysTrajectory>();
    Run& run = *trajectory->state_;
    if (!run.episode) begin(run);
    if (acting.policy) {
        const bool keeps =
            parts.options.swap_episode && run.acting.policy &&
            run.acting.policy->snapshot().generation == acting.policy->snapshot().generation &&
            !parts.io.was_rolled_back(run.acting.policy->snapshot().generation, run.acting.policy->snapshot().version);
        if (!keeps) run.acting = std::move(acting);
    }
    if (run.acting.policy) {
        const std::size_t states = run.acting.policy->spec().state_size;
        if (run.recurrent.size() != states) run.recurrent.assign(states, 0.0f);
        const bool starts =
            run.episode->prepare(run.acting.policy->snapshot().generation, step.observation.data(), step.allowed());
        if (starts && parts.options.waits) admit(parts, run);
    }
    HostThread& thread = parts.thread();
    if (!bad) {
        choose(run, thread, observation, size, step);
    } else if (thread.acted) {
        step.index = thread.last_index;
        step.act = thread.last_act;
    } else {
        act_idle(step, spaces_of(parts.options, run.acting.policy.get()).actions);
    }
    if (parts.options.drops_bad_input && step.recorded) {
        thread.acted = true;
        thread.last_index = step.index;
        thread.last_act = step.act;
    }
    step.episode = run.episode;
    run.episode->note(step);
}

void Agent::begin(Run& run) {
    run.parts = parts_;
    run.episode = std::shared_ptr<Episode>(new Episode(parts_->rules, parts_->counts, next_episode_.fetch_add(kStride)),
                                           [parts = parts_](Episode* episode) { delete episode; });
    const actor::Settings& settings = parts_->options.settings;
    std::uint64_t steps = settings.segment_steps, longest = kDefaultSegment;
    {
        const std::lock_guard<std::mutex> lock(parts_->io.host.mutex);
        if (const auto& parameters = parts_->io.host.parameters) {
            if (!steps) steps = parameters->rollout_length;
            longest = parameters->max_segment_steps;
        }
    }
    steps = std::min({steps ? steps : kDefaultSegment, longest, std::uint64_t{settings.max_trajectory_steps}});
    run.segment_steps = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, steps));
}

void Agent::choose(Run& run, HostThread& thread, const float* observation, std::size_t size, Step& step) {
    Parts& parts = *run.parts;
    const Options& options = parts.options;
    bool stale = false;
    const policy::Policy* const newest = run.acting.policy.get();
    step.generation = newest ? newest->snapshot().generation : 0;
    step.version = newest ? newest->snapshot().version : 0;
    if (run.acting.policy && options.on_stale != Options::Stale::keep && options.settings.policy_max_age_s) {
        const double age = actor::monotonic() - parts.io.host.current_at.load(), most = *options.settings.policy_max_age_s;
        stale = age > most;
        if (stale && options.on_stale == Options::Stale::raise)
            throw Failure(Code::stale, "the learner has been silent for ", age, " s; policy_max_age_s is ", most);
    }
    for (bool first = true; run.acting.policy && !stale; first = false) {
        if (choose_by_policy(run, thread, observation, step)) return;
        if (!first) break;
        parts.count("policies_not_finite");
        const std::shared_ptr<const policy::Policy> bad = run.acting.policy;
        const bool back = parts.io.roll_back(bad.get());
        run.acting = parts.current();
        std::fill(run.recurrent.begin(), run.recurrent.end(), 0.0f);  // it can be what is not finite
        if (!back || run.acting.policy == bad) break;
        parts.count("rollbacks");
        log(actor::LogLevel::error,
            config::text("policy version ", bad->snapshot().version, " gives no finite action; going back to version ",
                         run.acting.policy->snapshot().version));
    }
    const Space& actions = spaces_of(options, run.acting.policy.get()).actions;
    if (baseline_ || stale) return act_by_baseline(step, actions, observation, size);
    if (run.acting.policy) return act_idle(step, actions);
    parts.count("random_actions");
    act_randomly(step, actions, thread.sampler);
}

void Agent::act_by_baseline(Step& step, const Space& actions, const float* observation, std::size_t size) {
    parts_->count("baseline_actions");
    act_idle(step, actions);
    if (!baseline_) return;
    const std::size_t wanted = actions.discrete ? 1 : actions.size();
    std::vector<float> chosen;
    try {
        chosen = baseline_({observation, observation + size}, {step.mask.begin(), step.mask.end()}, wanted);
    } catch (...) {
    }
    const auto usable = [&](float x) {
        const auto start = static_cast<float>(actions.start);
        return std::isfinite(x) && (!actions.discrete || (x >= start && x < start + static_cast<float>(actions.n)));
    };
    if (chosen.size() != wanted || !std::all_of(chosen.begin(), chosen.end(), usable))
        parts_->count("baseline_errors");
    else if (actions.discrete)
        step.index = static_cast<std::int64_t>(chosen[0]);
    else
        step.act = std::move(chosen);
}

// The content of a trajectory of this agent.
Agent::Run& Agent::own(RL4SysTrajectory& trajectory) const {
    const std::shared_ptr<Parts>& parts = trajectory.state_->parts;
    if (!parts || parts->owner != this) throw Failure(Code::action, "the trajectory is not from requestForAction of this agent");
    return *trajectory.state_;
}

void Agent::add(RL4SysTrajectory& trajectory, const RL4SysAction& action) {
    own(trajectory);
    trajectory.addAction(action);
}

void Agent::add_to(Run& run, Step& step) {
    if (!step.episode) throw Failure(Code::action, "no request has given this action; add one from requestForAction");
    if (run.parts->in_child()) return;  // the trajectory belongs to the parent of this forked process
    const bool lenient = !run.parts->options.waits;
    Episode::Added result = Episode::Added::out_of_order;
    if (step.episode == run.episode) result = run.episode->add(step, run.acting.shape, run.segment_steps);
    if (result == Episode::Added::stored) {
        run.recurrent = step.after;
    } else if (result == Episode::Added::already_stored) {
        if (!lenient || !step.done) throw Failure(Code::action, "this action is stored already");
    } else if (lenient) {
        run.parts->counts.late_dropped.fetch_add(1);
    } else {
        throw Failure(Code::action,
                      result == Episode::Added::ended
                          ? "an action was added after the end of its trajectory; this trajectory has ended; requestForAction "
                            "starts another"
                          : "an action was added after a later one; add actions in the order in which they were requested");
    }
}

void Agent::end_run(Run& run, bool truncated, const void* final_observation, const std::uint8_t* final_mask) {
    if (run.parts->in_child() || run.episode->completed()) return;
    if (run.parts->options.waits && run.episode->lacks_rewards())
        throw Failure(Code::reward, "a step has no reward; call updateActionReward before markEndOfTrajectory");
    run.episode->end(truncated, final_observation, final_mask);
    run.acting = {};
}

void Agent::end(RL4SysTrajectory& trajectory, RL4SysAction* last, bool truncated, const float* final_observation,
                std::size_t size, const float* final_mask, std::size_t mask_size) {
    Run& run = own(trajectory);
    if (run.completed || run.parts->in_child()) return;
    std::vector<std::uint8_t> final_bytes, allowed;
    if (truncated && parts_->options.stores) {
        const actor::ActingPolicy acting = run.acting.policy ? run.acting : current();
        const Spaces spaces = spaces_of(parts_->options, acting.policy.get());
        try {
            if (size)
                read_observation(spaces.observations, final_observation, size, final_bytes);
            else if (parts_->options.settings.explore)
                throw Failure(Code::observation, "truncated needs finalObs, the observation after the last action");
            read_mask(*parts_, spaces.actions, final_mask, mask_size, allowed);
        } catch (const Failure& failure) {
            forgive(*parts_, failure.code);
            final_bytes.clear();
        }
    }
    if (last && last->step_ && last->step_->episode && !last->step_->added) add_to(run, *last->step_);
    end_run(run, truncated, final_bytes.empty() ? nullptr : final_bytes.data(), allowed.empty() ? nullptr : allowed.data());
    if (last && last->step_) last->step_->done = true;
    run.completed = true;
}

}  // namespace rl4sys::api
