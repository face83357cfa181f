#include "api/agent.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "api/trajectory.h"
#include "hash/xxh3.h"
#include "libraries/linked.h"
#include "rl4sys/config_loader.h"

namespace rl4sys::api {
namespace {

using actor::Episode;
using actor::Step;
using cppclient::RL4SysAction;
using cppclient::RL4SysTrajectory;
using policy::Space;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kSlice = 0.25;         // longest sleep of a waiting host thread
constexpr double kClientStart = 600.0;  // longest wait while the learner answers that it starts the training
constexpr double kSilence = 5.0;
constexpr std::size_t kManyLate = 1024;  // episodes that wait for rewards, above which those that do not are removed
constexpr std::uint32_t kDefaultSegment = 128;

std::vector<std::uint32_t> seed_of(const Options& options) {
    return options.settings.seed ? *options.settings.seed : support::system_seed(4);
}

std::string random_name() {
    std::string out;
    for (const std::uint32_t word : support::system_seed(4)) {
        char text[9];
        std::snprintf(text, sizeof text, "%08x", word);
        out += text;
    }
    return out;
}

// The Unix time in nanoseconds with 24 random low bits (delivery/incarnation.py).
std::uint64_t first_incarnation() {
    const auto now =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    const std::uint64_t random = support::system_seed(1)[0] & 0xFFFFFF;
    const std::uint64_t least = now > 0 ? static_cast<std::uint64_t>(now) : 0;
    return std::min(least, (std::uint64_t{1} << 62) - 1) >> 24 << 24 | (random ? random : 1);
}

std::string short_number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", value);
    return text;
}

std::uint64_t next_serial() noexcept {
    static std::atomic<std::uint64_t> next{1};
    return next.fetch_add(1);
}

}  // namespace

std::string& last_error() noexcept {
    static thread_local std::string text;
    return text;
}

ForkMark::ForkMark() : page_(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (page_ == MAP_FAILED) throw std::bad_alloc();
    madvise(page_, 4096, MADV_WIPEONFORK);
    *static_cast<unsigned char*>(page_) = 1;
}

ForkMark::~ForkMark() { munmap(page_, 4096); }

Parts::Parts(const Options& given, std::vector<std::uint32_t> seed_words)
    : options(given),
      seed(std::move(seed_words)),
      serial(next_serial()),
      place(static_cast<double>(hash::xxh3_64(options.settings.hello.actor_id) >> 11) * 0x1p-53),
      context(libraries::linked_zmq().ctx_new()),
      outbox(options.settings.queue_items, options.settings.queue_bytes, !options.waits),
      io(options.settings, outbox, libraries::linked_zmq(), context, libraries::linked_zstd()),
      rules{outbox,
            pool,
            [this] { io.wake_unless_resting(); },
            [this](std::shared_ptr<Episode> episode) {
                const std::lock_guard<std::mutex> lock(mutex);
                const double at = actor::monotonic() + options.settings.reward_timeout_s;
                if (at < expire_at.load()) expire_at.store(at);
                late.push_back(std::move(episode));
                late_count.store(late.size());
            },
            [this] {
                if (options.drops_bad_input) count("bad_input.RewardError");
                return options.drops_bad_input;
            },
            !options.settings.explore,
            options.stores,
            options.settings.reward_timeout_s,
            options.settings.max_trajectory_steps},
      expire_at(kInfinity) {}

Parts::~Parts() {
    io.stop();
    if (context) libraries::linked_zmq().ctx_term(context);
}

void Parts::count(const char* name, std::uint64_t by) {
    const std::lock_guard<std::mutex> lock(mutex);
    counters[name] += by;
}

HostThread& Parts::thread() {
    struct Last {
        std::uint64_t serial = 0;
        HostThread* thread = nullptr;
    };
    static thread_local Last last;
    if (last.serial == serial) return *last.thread;
    const std::lock_guard<std::mutex> lock(mutex);
    std::unique_ptr<HostThread>& own = threads[std::this_thread::get_id()];
    if (!own) {
        // As Python's seed << 32 | number, without leading zero words.
        std::vector<std::uint32_t> words{static_cast<std::uint32_t>(threads.size() - 1)};
        words.insert(words.end(), seed.begin(), seed.end());
        while (words.size() > 1 && !words.back()) words.pop_back();
        own = std::make_unique<HostThread>(words, place);
    }
    last = {serial, own.get()};
    return *own;
}

void Parts::expire() {
    std::vector<std::shared_ptr<Episode>> waiting, kept;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        waiting.swap(late);
        late_count.store(0);
        expire_at.store(kInfinity);
    }
    const double now = actor::monotonic();
    double next = kInfinity;
    for (auto& episode : waiting) {
        episode->expire(now);
        const double at = episode->deadline();
        next = std::min(next, at);
        if (at < kInfinity) kept.push_back(std::move(episode));
    }
    const std::lock_guard<std::mutex> lock(mutex);
    late.insert(late.end(), std::make_move_iterator(kept.begin()), std::make_move_iterator(kept.end()));
    late_count.store(late.size());
    expire_at.store(std::min(expire_at.load(), next));
}

Agent::Agent(const cppclient::AgentConfig& given, Fallback baseline, cppclient::LogSink sink)
    : config(given),
      options_(options_of(given)),
      baseline_(std::move(baseline)),
      sink_(std::move(sink)),
      level_(log_level_of(given)) {
    if (sink_ && !level_) level_ = static_cast<int>(cppclient::LogLevel::INFO);
    if (level_) options_.settings.log = [this](actor::LogLevel level, const std::string& text) { log(level, text); };
    delivery::Hello& hello = options_.settings.hello;
    if (hello.actor_id.empty()) hello.actor_id = random_name();
    hello.incarnation = first_incarnation();
    const std::vector<std::uint32_t> words = support::system_seed(2);
    ids_.seed(std::uint64_t{words[0]} << 32 | words[1]);
    parts_ = std::make_shared<Parts>(options_, seed_of(options_));
    parts_->owner = this;
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
    if (parts_->mark.is_child()) new std::shared_ptr<Parts>(std::move(parts_));
}

void Agent::log(actor::LogLevel level, const std::string& text) const {
    if (level_ && static_cast<int>(level) >= *level_) write_line(sink_, static_cast<cppclient::LogLevel>(level), "rl4sys", text);
}

Failure Agent::unavailable(const std::string& stage, double timeout_s) const {
    const actor::HostLink& host = parts_->io.host;
    const std::string limit = " within " + short_number(std::max(0.0, timeout_s)) + " s";
    if (!host.joined)
        return Failure(Code::unavailable, "no learner at " + options_.settings.address + limit + " (waiting for " + host.stage +
                                              "); start it, or correct the address; `rl4sys-learner doctor` tests each step");
    std::string text = "the learner at " + options_.settings.address + " answers, but did not continue" + limit + " (waiting for " +
                       (stage.empty() ? host.stage : stage) + ")";
    if (stage.empty()) text += "; `rl4sys-learner status` shows whether it trains; raise wait_timeout_s if it does";
    return Failure(Code::unavailable, text);
}

void Agent::fail_session(const actor::SessionError& error) const {
    using Kind = actor::SessionError::Kind;
    switch (error.kind) {
        case Kind::refused:
            throw Failure(Code::refused, "the learner refuses this actor: " + std::string(name_of(error.code)) +
                                             (error.field.empty() ? "" : " (" + error.field + ")") + ": " + error.text);
        case Kind::client_failed:
            throw Failure(Code::unavailable, "the learner has stopped the training of this policy: " + error.text);
        case Kind::config:
        case Kind::unsupported:
            break;
    }
    throw Failure(Code::config, error.text + "; use the Python actor for this policy");
}

// Waits until `ready` is true, which is called under the lock of the shared state.
template <class Ready>
void Agent::wait(const Ready& ready, double timeout_s, const std::string& stage) const {
    actor::HostLink& host = parts_->io.host;
    const double deadline = actor::monotonic() + timeout_s;
    parts_->io.wake_now();
    std::unique_lock<std::mutex> lock(host.mutex);
    while (!ready(host)) {
        if (host.error) fail_session(*host.error);
        if (parts_->closed.load() && !host.flushing.load()) throw Failure(Code::closed, "this agent was closed");
        const double left = deadline - actor::monotonic();
        if (left <= 0.0) throw unavailable(stage, timeout_s);
        host.changed.wait_for(lock, std::chrono::duration<double>(std::min(left, kSlice)));
    }
}

void Agent::connect() {
    const double timeout = options_.settings.connect_timeout_s;
    const bool can_start =
        !options_.waits && (baseline_ || options_.fallback_random) && options_.observations && options_.actions;
    const auto has_policy = [](const actor::HostLink& host) { return host.acting.policy && host.parameters; };
    actor::HostLink& host = parts_->io.host;
    const double began = actor::monotonic(), limit = began + (!can_start && timeout > 0.0 ? kClientStart : 0.0);
    double until = began + timeout, left = timeout;
    while (true) {
        try {
            wait(has_policy, left, "");
            return;
        } catch (const Failure& failure) {
            const double later = std::min(host.starting_at.load() + std::max(kSilence, timeout), limit);
            if (failure.code == Code::unavailable && later > until) {
                until = later;
                left = until - actor::monotonic();
                continue;
            }
            if (failure.code != Code::unavailable || !can_start) throw;
            absence_ = failure.what();
            log(actor::LogLevel::warning, config.client_id + ": " + absence_ +
                                              "; until the first policy arrives, the actor acts by " +
                                              (baseline_ ? "its baseline" : "random actions") + ", and records no steps");
            return;
        }
    }
}

Parts& Agent::use() {
    Parts* const parts = used_.load(std::memory_order_acquire);
    if (!parts->mark.is_child()) return *parts;
    const std::lock_guard<std::mutex> lock(forking_);
    if (used_.load()->mark.is_child()) become_child();
    return *used_.load();
}

// In a forked child, the agent becomes another actor, with the parent's policy. The parent's parts stay in memory untouched.
void Agent::become_child() {
    if (parts_->closed.load()) throw Failure(Code::closed, "this agent is closed");
    Options options = options_;
    options.settings.hello.actor_id = random_name();
    options.settings.hello.incarnation = first_incarnation();
    options.settings.policy_cache.clear();
    std::vector<std::uint32_t> seed{static_cast<std::uint32_t>(getpid())};
    seed.insert(seed.end(), parts_->seed.begin(), parts_->seed.end());
    auto child = std::make_shared<Parts>(options, std::move(seed));
    child->owner = this;
    child->counters["forks"] = 1;
    child->io.inherit(parts_->io);
    new std::shared_ptr<Parts>(parts_);
    options_ = std::move(options);
    parts_ = std::move(child);
    parts_->io.start();
    used_.store(parts_.get(), std::memory_order_release);
}

actor::ActingPolicy Agent::current() const {
    const std::lock_guard<std::mutex> lock(parts_->io.host.mutex);
    return parts_->io.host.acting;
}

std::int64_t Agent::version() const {
    const actor::ActingPolicy acting = current();
    return acting.policy ? static_cast<std::int64_t>(acting.policy->snapshot().version) : -1;
}

std::uint64_t Agent::digest() const {
    const actor::ActingPolicy acting = current();
    return acting.policy ? acting.policy->snapshot().digest : 0;
}

void Agent::wait_version(std::int64_t version, double timeout_s) {
    use();
    const auto there = [&](const actor::HostLink& host) {
        return host.acting.policy && static_cast<std::int64_t>(host.acting.policy->snapshot().version) >= version;
    };
    wait(there, timeout_s, "version " + std::to_string(version));
}

bool Agent::roll_back() {
    const actor::ActingPolicy acting = current();
    if (!acting.policy || !use().io.roll_back(acting.policy.get())) return false;
    parts_->count("rollbacks");
    return true;
}

void Agent::flush(double timeout_s) {
    Parts& parts = use();
    const std::uint64_t target = parts.outbox.counts().put_items;
    struct Flushing {
        std::atomic<int>& count;
        ~Flushing() { --count; }
    } flushing{parts.io.host.flushing};
    ++flushing.count;
    wait([target](const actor::HostLink& host) { return host.settled >= target && !host.error; }, timeout_s,
         "the ack of all finished segments");
}

void Agent::close(double timeout_s) noexcept {
    Parts& parts = *parts_;
    if (parts.mark.is_child() || parts.closed.exchange(true)) return;  // a child that never used the agent has nothing to close
    try {
        parts.io.host.leaving.store(true);
        bool idle;
        {
            const std::lock_guard<std::mutex> lock(parts.io.host.mutex);
            idle = parts.io.host.error || parts.io.host.settled >= parts.outbox.counts().put_items;
        }
        if (timeout_s > 0.0 && !idle) flush(timeout_s);
    } catch (const std::exception& error) {
        log(actor::LogLevel::warning, config.client_id + ": closed with undelivered segments: " + error.what());
    }
    parts.io.stop();
    const std::lock_guard<std::mutex> lock(parts.mutex);
    parts.late.clear();
}

const Space& Agent::actions_of(const actor::ActingPolicy& acting) const {
    return acting.policy ? acting.policy->spec().actions : *options_.actions;
}

void Agent::read_observation(const Space& space, const float* observation, std::size_t size,
                             std::vector<std::uint8_t>& out) const {
    const std::size_t wanted = space.discrete ? 1 : space.size();
    if (size != wanted || !observation)
        throw Failure(Code::observation,
                      "the observation has " + std::to_string(size) + " elements; expected " + std::to_string(wanted));
    for (std::size_t i = 0; i < size; ++i)
        if (!std::isfinite(observation[i]))
            throw Failure(Code::observation, "observation element " + std::to_string(i) + " is not finite");
    if (space.discrete) {
        const auto value = static_cast<std::int64_t>(observation[0]);
        if (static_cast<float>(value) != observation[0] || value < space.start || value >= space.start + space.n)
            throw Failure(Code::observation, "observation " + short_number(observation[0]) + " is not one of the " +
                                                 std::to_string(space.n) + " integers from " + std::to_string(space.start) +
                                                 " on");
        out.resize(sizeof value);
        std::memcpy(out.data(), &value, sizeof value);
    } else if (space.dtype == "<f4") {
        out.resize(size * sizeof(float));
        std::memcpy(out.data(), observation, out.size());
    } else {
        out.resize(size * sizeof(double));
        for (std::size_t i = 0; i < size; ++i) {
            const double value = observation[i];
            std::memcpy(out.data() + i * sizeof value, &value, sizeof value);
        }
    }
}

void Agent::read_mask(const Space& space, const float* mask, std::size_t size, std::vector<std::uint8_t>& out) const {
    out.clear();
    if (!mask || !size) return;
    if (!space.discrete) throw Failure(Code::mask, "the action space is continuous; a mask needs a discrete one");
    if (size != space.size())
        throw Failure(Code::mask, "the mask has " + std::to_string(size) + " elements; expected " + std::to_string(space.size()));
    if (options_.settings.explore) {
        const std::lock_guard<std::mutex> lock(parts_->io.host.mutex);
        const auto& parameters = parts_->io.host.parameters;
        if (parameters && !parameters->no_masks.empty()) throw Failure(Code::mask, parameters->no_masks);
    }
    bool any = false;
    for (std::size_t i = 0; i < size; ++i) {
        if (mask[i] != 0.0f && mask[i] != 1.0f)
            throw Failure(Code::mask, "a mask must hold 0 and 1, not " + short_number(mask[i]));
        out.push_back(mask[i] != 0.0f);
        any = any || out.back();
    }
    if (!any) throw Failure(Code::mask, "the mask forbids all " + std::to_string(size) + " actions");
}

void Agent::request(std::shared_ptr<RL4SysTrajectory>& trajectory, const float* observation, std::size_t size, const float* mask,
                    std::size_t mask_size, RL4SysAction& action) {
    Parts& parts = use();
    if (parts.closed.load(std::memory_order_relaxed)) throw Failure(Code::closed, "this agent is closed");
    if (trajectory) {
        const Run& run = trajectory->state_->run;
        if (run.parts && run.parts.get() != &parts) {
            if (run.parts->owner != this) throw Failure(Code::action, "this trajectory belongs to another agent");
            trajectory = nullptr;  // it stays with the parent process
        } else if (run.episode && run.episode->done() && !trajectory->isCompleted()) {
            end(*trajectory, nullptr, false, nullptr, 0, nullptr, 0);
        }
    }
    const policy::Policy* const newest = parts.io.host.current.load(std::memory_order_acquire);
    actor::ActingPolicy acting;
    if (trajectory && newest && trajectory->state_->run.acting.policy.get() == newest) {
        // The usual case: no lock.
    } else if (newest) {
        acting = current();
    }
    const bool known = !acting.policy && newest;
    const policy::PolicySpec* const spec = known ? &newest->spec() : acting.policy ? &acting.policy->spec() : nullptr;
    const Space &observations = spec ? spec->observations : *options_.observations,
                &actions = spec ? spec->actions : *options_.actions;

    if (!action.step_ || action.step_.use_count() > 1) action.step_ = std::make_shared<Step>();
    Step& step = *action.step_;
    step.part.reset();
    step.reward.reset();
    step.done = step.added = false;
    if (!step.extra.empty()) step.extra.clear();
    bool bad = false;
    try {
        read_observation(observations, observation, size, step.observation);
        read_mask(actions, mask, mask_size, step.mask);
    } catch (const Failure& failure) {
        if (!options_.drops_bad_input) throw;
        parts.count(failure.code == Code::mask ? "bad_input.MaskError" : "bad_input.ObservationError");
        step.observation.assign(observations.discrete ? 8 : observations.size() * wire::item_bytes(observations.dtype), 0);
        step.mask.clear();
        bad = true;
    }
    if (parts.late_count.load(std::memory_order_relaxed) &&
        (actor::monotonic() >= parts.expire_at.load() || parts.late_count.load() > kManyLate))
        parts.expire();
    if (!trajectory || trajectory->isCompleted()) trajectory = std::make_shared<RL4SysTrajectory>();
    Run& run = trajectory->state_->run;
    if (!run.episode) begin(run);
    if (acting.policy) {
        const bool keeps =
            options_.swap_episode && run.acting.policy &&
            run.acting.policy->snapshot().generation == acting.policy->snapshot().generation &&
            !parts.io.was_rolled_back(run.acting.policy->snapshot().generation, run.acting.policy->snapshot().version);
        if (!keeps) run.acting = std::move(acting);
    }
    if (run.acting.policy) {
        const std::size_t states = run.acting.policy->spec().state_size;
        if (run.state.size() != states) run.state.assign(states, 0.0f);
        const bool starts =
            run.episode->prepare(run.acting.policy->snapshot().generation, step.observation.data(), step.allowed());
        if (starts && options_.waits) admit(run);
    }
    HostThread& thread = parts.thread();
    if (bad) {
        step.recorded = false;
        step.index = thread.last_index;
        step.act = thread.last_act;
        if (!thread.acted) act_idle(step, actions);
        finish(step, actions, false);
    } else {
        choose(run, thread, observation, size, step);
        if (options_.drops_bad_input && step.recorded) {
            thread.acted = true;
            thread.last_index = step.index;
            thread.last_act = step.act;
        }
    }
    step.episode = run.episode;
    run.episode->note(step);
}

void Agent::begin(Run& run) {
    run.parts = parts_;
    std::uint64_t id;
    {
        const std::lock_guard<std::mutex> lock(random_mutex_);
        id = ids_();
    }
    const std::shared_ptr<Parts> parts = parts_;
    run.episode =
        std::shared_ptr<Episode>(new Episode(parts->rules, parts->counts, id), [parts](Episode* episode) { delete episode; });
    std::uint64_t learners = 0, longest = kDefaultSegment;
    {
        const std::lock_guard<std::mutex> lock(parts->io.host.mutex);
        if (parts->io.host.parameters) {
            learners = parts->io.host.parameters->rollout_length;
            longest = parts->io.host.parameters->max_segment_steps;
        }
    }
    const actor::Settings& settings = options_.settings;
    std::uint64_t steps = settings.segment_steps ? settings.segment_steps : learners ? learners : kDefaultSegment;
    steps = std::min(steps, longest);
    if (settings.max_trajectory_steps) steps = std::min<std::uint64_t>(steps, settings.max_trajectory_steps);
    run.segment_steps = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, steps));
}

bool Agent::granted(const Parts& parts, std::uint64_t steps, const actor::ActingPolicy& acting) const {
    actor::HostLink& host = parts_->io.host;
    const std::uint64_t finished = parts.outbox.counts().put_steps, wanted = finished + 2 * steps;
    if (wanted > host.want_steps.load()) {
        host.want_steps.store(wanted);
        parts_->io.wake_unless_resting();
    }
    const weights::Snapshot& snapshot = acting.policy->snapshot();
    return static_cast<std::int64_t>(finished) < host.gate.limit_steps && snapshot.generation == host.gate.generation &&
           snapshot.version >= host.gate.min_version;
}

// Waits until the learner grants credit for a segment, and the policy version that it requires has arrived.
void Agent::admit(Run& run) {
    if (!options_.settings.explore) return;
    actor::HostLink& host = parts_->io.host;
    const auto ready = [&](const actor::HostLink& shared) {
        return shared.acting.policy && granted(*parts_, run.segment_steps, shared.acting);
    };
    {
        const std::lock_guard<std::mutex> lock(host.mutex);
        if (ready(host)) return;
    }
    struct Waiting {
        std::atomic<int>& count;
        ~Waiting() { --count; }
    } waiting{host.waiting};
    ++waiting.count;
    wait(ready, options_.settings.wait_timeout_s, "");
    if (!options_.swap_episode || run.acting.policy->snapshot().generation != current().policy->snapshot().generation)
        run.acting = current();
}

void Agent::choose(Run& run, HostThread& thread, const float* observation, std::size_t size, Step& step) {
    const Space& actions = actions_of(run.acting);
    Parts& parts = *run.parts;
    if (!run.acting.policy) {  // no policy has arrived so far
        if (baseline_) {
            act_baseline(step, actions, observation, size);
        } else {
            parts.count("random_actions");
            act_random(step, actions, thread.sampler);
            finish(step, actions, false);
        }
        step.generation = step.version = 0;
        return;
    }
    const weights::Snapshot& snapshot = run.acting.policy->snapshot();
    step.generation = snapshot.generation;
    step.version = snapshot.version;
    if (options_.on_stale != Options::Stale::keep && options_.settings.policy_max_age_s) {
        const double age = actor::monotonic() - parts.io.host.current_at.load(), most = *options_.settings.policy_max_age_s;
        if (age > most) {
            if (options_.on_stale == Options::Stale::raise)
                throw Failure(Code::stale, "the learner has been silent for " + short_number(age) + " s; policy_max_age_s is " +
                                               short_number(most));
            act_baseline(step, actions, observation, size);
            return;
        }
    }
    step.state = run.state;
    step.after = run.state;
    if (choose_by(run.acting, thread, observation, step)) return;
    parts.count("policies_not_finite");
    const std::shared_ptr<const policy::Policy> bad = run.acting.policy;
    const bool back = parts.io.roll_back(bad.get());
    run.acting = current();
    std::fill(run.state.begin(), run.state.end(), 0.0f);  // the state can be what is not finite
    if (back && run.acting.policy != bad) {
        parts.count("rollbacks");
        log(actor::LogLevel::error, "policy version " + std::to_string(bad->snapshot().version) +
                                        " gives no finite action; going back to version " +
                                        std::to_string(run.acting.policy->snapshot().version));
        step.generation = run.acting.policy->snapshot().generation;
        step.version = run.acting.policy->snapshot().version;
        step.state = step.after = run.state;
        if (choose_by(run.acting, thread, observation, step)) return;
    }
    if (baseline_) {
        act_baseline(step, actions, observation, size);
    } else {
        act_idle(step, actions);
        finish(step, actions, false);
    }
}

// Chooses by a policy. False if its output is not finite.
bool Agent::choose_by(const actor::ActingPolicy& acting, HostThread& thread, const float* observation, Step& step) const {
    const policy::Policy& policy = *acting.policy;
    const policy::PolicySpec& spec = policy.spec();
    if (thread.spec != policy.shared_spec()) {
        thread.scratch.emplace(spec);
        thread.spec = policy.shared_spec();
    }
    const std::int64_t index =
        spec.observations.discrete ? static_cast<std::int64_t>(observation[0]) - spec.observations.start : 0;
    const policy::Choice choice = policy.act(observation, index, step.allowed(), options_.settings.explore,
                                             step.after.empty() ? nullptr : step.after.data(), thread.sampler, *thread.scratch);
    if (!std::isfinite(choice.log_prob)) return false;
    step.log_prob = choice.log_prob;
    if (spec.actions.discrete) {
        step.index = choice.index;
        step.raw.clear();
        step.act.clear();
    } else {
        const std::size_t size = spec.actions.size();
        step.raw.assign(choice.raw, choice.raw + size);
        step.act.resize(size);
        for (std::size_t i = 0; i < size; ++i) step.act[i] = static_cast<float>(choice.act[i]);
    }
    finish(step, spec.actions, true);
    return true;
}

void Agent::finish(Step& step, const Space& actions, bool recorded) const {
    step.recorded = recorded;
    if (!recorded) step.log_prob = 0.0;
    step.bytes.resize(actions.discrete ? sizeof step.index : step.act.size() * sizeof(float));
    if (!step.bytes.empty())
        std::memcpy(step.bytes.data(), actions.discrete ? static_cast<const void*>(&step.index) : step.act.data(),
                    step.bytes.size());
}

// The first allowed discrete action, or the middle of a Box (the value nearest 0 in an unbounded dimension).
void Agent::act_idle(Step& step, const Space& actions) const {
    step.raw.clear();
    step.act.clear();
    if (actions.discrete) {
        std::size_t first = 0;
        while (!step.mask.empty() && first + 1 < step.mask.size() && !step.mask[first]) ++first;
        step.index = actions.start + static_cast<std::int64_t>(first);
    }
    for (std::size_t i = 0; !actions.discrete && i < actions.size(); ++i) {
        const double low = actions.low[i], high = actions.high[i];
        const bool bounded = std::isfinite(low) && std::isfinite(high);
        step.act.push_back(static_cast<float>(bounded ? low / 2 + high / 2 : std::min(std::max(0.0, low), high)));
    }
}

// A uniformly random action that the mask allows. A dimension with an infinite bound gets a clipped normal number.
void Agent::act_random(Step& step, const Space& actions, policy::Sampler& sampler) const {
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

void Agent::act_baseline(Step& step, const Space& actions, const float* observation, std::size_t size) {
    parts_->count("baseline_actions");
    act_idle(step, actions);
    if (baseline_) {
        std::vector<float> mask(step.mask.begin(), step.mask.end()), act(actions.discrete ? 1 : actions.size());
        bool usable = false;
        try {
            usable = baseline_(observation, size, mask.empty() ? nullptr : mask.data(), mask.size(), act.data(), act.size());
        } catch (...) {
        }
        for (const float x : act) usable = usable && std::isfinite(x);
        if (actions.discrete)
            usable =
                usable && act[0] >= static_cast<float>(actions.start) && act[0] < static_cast<float>(actions.start + actions.n);
        if (!usable)
            parts_->count("baseline_errors");
        else if (actions.discrete)
            step.index = static_cast<std::int64_t>(act[0]);
        else
            step.act = std::move(act);
    }
    finish(step, actions, false);
}

std::shared_ptr<Step>& Agent::step_of(const RL4SysAction& action) { return const_cast<RL4SysAction&>(action).step_; }

void Agent::add(RL4SysTrajectory& trajectory, const RL4SysAction& action) {
    const Run& run = trajectory.state_->run;
    if (run.parts && run.parts->owner != this) throw Failure(Code::action, "this trajectory belongs to another agent");
    if (!action.step_ || !action.step_->episode || !run.parts)
        throw Failure(Code::action, "the action and the trajectory must come from requestForAction of this agent");
    trajectory.addAction(action);
}

void Agent::add_to(Run& run, Step& step) {
    if (!step.episode) throw Failure(Code::action, "no request has given this action; add one from requestForAction");
    if (run.parts->mark.is_child()) {
        return;  // the trajectory belongs to the parent of this forked process
    }
    const Options& options = run.parts->options;
    const bool lenient = !options.waits || !options.settings.explore;
    Episode::Added result = Episode::Added::out_of_order;
    if (step.episode == run.episode) result = run.episode->add(step, run.acting.shape, run.segment_steps);
    if (result == Episode::Added::stored) {
        run.state = step.after;
    } else if (result == Episode::Added::already_stored) {
        if (!lenient || !step.done) throw Failure(Code::action, "this action is stored already");
    } else if (lenient) {
        run.parts->counts.late_dropped.fetch_add(1);
    } else if (result == Episode::Added::ended) {
        throw Failure(
            Code::action,
            "an action was added after the end of its trajectory; this trajectory has ended; requestForAction starts another");
    } else {
        throw Failure(Code::action,
                      "an action was added after a later one; add actions in the order in which they were requested");
    }
}

void Agent::end_run(Run& run, bool truncated, const void* final_observation, const std::uint8_t* final_mask) {
    const Options& options = run.parts->options;
    if (run.parts->mark.is_child() || run.episode->completed()) return;
    if (options.waits && options.settings.explore && run.episode->lacks_rewards())
        throw Failure(Code::reward, "a step has no reward; call updateActionReward before markEndOfTrajectory");
    run.episode->end(truncated, final_observation, final_mask);
    run.acting = {};
}

void Agent::end(RL4SysTrajectory& trajectory, RL4SysAction* last, bool truncated, const float* final_observation,
                std::size_t size, const float* final_mask, std::size_t mask_size) {
    Run& run = trajectory.state_->run;
    if (!run.parts || run.parts->owner != this)
        throw Failure(Code::action, "there is no trajectory to end: expected one from requestForAction of this agent");
    if (trajectory.state_->completed || run.parts->mark.is_child()) return;
    std::vector<std::uint8_t> final_bytes, allowed;
    if (truncated && options_.stores) {
        const actor::ActingPolicy acting = run.acting.policy ? run.acting : current();
        const Space& observations = acting.policy ? acting.policy->spec().observations : *options_.observations;
        try {
            if (size)
                read_observation(observations, final_observation, size, final_bytes);
            else if (options_.settings.explore)
                throw Failure(Code::observation, "truncated needs finalObs, the observation after the last action");
            read_mask(actions_of(acting), final_mask, mask_size, allowed);
        } catch (const Failure& failure) {
            if (!options_.drops_bad_input) throw;
            run.parts->count(failure.code == Code::mask ? "bad_input.MaskError" : "bad_input.ObservationError");
            final_bytes.clear();
        }
    }
    if (last && last->step_ && last->step_->episode) {
        if (!last->step_->added) add_to(run, *last->step_);
    }
    end_run(run, truncated, final_bytes.empty() ? nullptr : final_bytes.data(), allowed.empty() ? nullptr : allowed.data());
    if (last && last->step_) last->step_->done = true;
    trajectory.state_->completed = true;
}

void Agent::set_reward(Step& step, double reward) {
    constexpr double kLargest = std::numeric_limits<float>::max();
    const char* problem = nullptr;
    if (!(reward >= -kLargest && reward <= kLargest))
        problem = "a reward must be finite in float32";
    else if (!step.episode)
        step.reward = reward;
    else if (!step.episode->set_reward(step, reward))
        problem = "the step's segment was queued for sending or dropped already";
    if (problem && !(step.episode && step.episode->rules().forgives_reward())) throw Failure(Code::reward, problem);
}

std::size_t Agent::action_size() const noexcept {
    return options_.actions ? (options_.actions->discrete ? 1 : options_.actions->size()) : 0;
}

std::size_t Agent::mask_size() const noexcept {
    return options_.actions && options_.actions->discrete ? options_.actions->size() : 0;
}

}  // namespace rl4sys::api
