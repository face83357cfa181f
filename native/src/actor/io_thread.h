// The actor's I/O thread. Only this thread uses the sockets, the session and the policy cache (rl4sys_zmq/actor/io/thread.py).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "actor/host_link.h"
#include "actor/outbox.h"
#include "actor/settings.h"
#include "actor/weight_subscriber.h"
#include "delivery/session.h"
#include "io/zmq.h"
#include "support/random.h"
#include "support/zstd.h"

namespace rl4sys::actor {

/// A file descriptor that ends the wait of the I/O thread. Any thread may call `set`, also in a signal handler.
class Wakeup {
public:
    Wakeup();
    Wakeup(const Wakeup&) = delete;
    ~Wakeup();
    void set() noexcept;
    void clear() noexcept;
    int fd() const noexcept { return fd_; }

private:
    std::atomic<bool> is_set_{false};
    int fd_;
};

/// What `stats` reports of the session.
struct SessionStatus {
    delivery::State state = delivery::State::joining;
    std::uint64_t in_flight = 0, unreceived = 0, accepted = 0, in_doubt = 0, durable = 0, incarnation = 0, origin = 0, generation = 0;
    std::uint64_t sent_steps = 0, credit_steps = 0;
    delivery::Verdicts verdicts{};
    delivery::Counters counters;
    Outbox::Counts outbox;  // at the time of the call

    /// The finished segments that the session does not have.
    std::size_t waiting() const noexcept { return outbox.items + outbox.in_hand; }
};

class IoThread {
public:
    /// `context` is a ZeroMQ context that outlives the thread.
    IoThread(const Settings& settings, Outbox& outbox, const io::ZmqFunctions& zmq, void* context, const support::ZstdFunctions& zstd);
    IoThread(const IoThread&) = delete;
    ~IoThread();

    void start();
    /// Asks the thread to send Bye and to end, and waits for it. In a forked child, where the thread does not exist, does nothing.
    void stop() noexcept;
    /// Asks the thread to send Bye and to end. Any thread may call it.
    void request_stop() noexcept;

    void wake_now() noexcept { wakeup_.set(); }
    /// Wakes the thread, unless it is in a short sleep after which it reads the outbox anyway.
    void wake_unless_resting() noexcept {
        if (!host.resting.load(std::memory_order_relaxed)) wakeup_.set();
    }
    bool roll_back(const policy::Policy* bad) { return subscriber_.roll_back(bad); }
    bool was_rolled_back(std::uint64_t generation, std::uint64_t version) const { return subscriber_.is_rejected(generation, version); }
    /// Starts with a policy of an earlier start, or of the parent of this process. Call it before `start`.
    void take_up(std::shared_ptr<const policy::PolicySpec> spec, std::shared_ptr<const weights::Snapshot> snapshot, wire::Map document) {
        subscriber_.take_up(std::move(spec), std::move(snapshot), std::move(document));
    }
    SessionStatus status() const;
    /// All of it but the counters.
    SessionStatus short_status() const;
    /// Keeps all locks while the process forks, so that the child can read.
    void hold();
    void let_go();

    HostLink host;

private:
    void run() noexcept;
    void serve();
    void turn();
    void wait();
    void read_dealer();
    void read_events();
    void perform(delivery::Actions actions);
    void on_joined(const wire::Received& welcome);
    void send_due(double now);
    void drop_stale(delivery::PolicyVersion held);
    std::vector<wire::SharedSegment> take_batch();
    void publish();
    void set_error(SessionError error);
    void set_stage(const std::string& stage);
    void log(LogLevel level, const std::string& text) const;
    std::uint64_t ahead(double now, std::uint64_t steps) const noexcept;

    const Settings& settings_;
    Outbox& outbox_;
    const io::ZmqFunctions& zmq_;
    void* context_;
    support::Zstd zstd_;
    support::Random random_;
    delivery::Counters counters_;
    delivery::ActorSession session_;
    WeightSubscriber subscriber_;
    Wakeup wakeup_;
    std::thread thread_;
    int pid_ = 0;
    std::atomic<bool> stopping_{false};
    std::unique_ptr<io::Socket> dealer_;
    const wire::Received* welcome_ = nullptr;  // while its actions are performed
    bool reconnect_ = false, had_session_ = false, busy_ = false;
    std::uint64_t seen_items_ = 0, first_version_ = 0, shipped_steps_ = 0;
    double segments_at_, oldest_since_ = 0.0, shipped_at_, events_at_ = 0.0;
    int version_errors_ = 0;
    std::string stage_ = "the learner to answer";

    SessionStatus status_;  // under host.mutex
};

/// Seconds of the monotonic clock.
double monotonic() noexcept;

}  // namespace rl4sys::actor
