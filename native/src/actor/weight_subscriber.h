// The receiver of the learner's weights: verified diffs from a PUB socket, and a fetch of what is missing
// (rl4sys_zmq/actor/io/weight_subscriber.py). The I/O thread uses it; any thread may call `roll_back`.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "actor/host_link.h"
#include "actor/settings.h"
#include "delivery/session.h"
#include "io/zmq.h"
#include "support/random.h"
#include "weights/update.h"

namespace rl4sys::actor {

class WeightSubscriber {
public:
    /// `context` is a ZeroMQ context that outlives this object. `fetch` asks the learner for what came after a version.
    WeightSubscriber(const Settings& settings, HostLink& host, delivery::Counters& counters, support::Random& random, support::Zstd& zstd,
                     const io::ZmqFunctions& zmq, void* context, std::function<void(delivery::PolicyVersion)> fetch)
        : settings_(settings), host_(host), counters_(counters), random_(random), zstd_(zstd), zmq_(zmq), context_(context),
          send_fetch_(std::move(fetch)) {}

    /// The policy that acts; null before the first.
    std::shared_ptr<const policy::Policy> acting() const noexcept {
        const std::lock_guard<std::mutex> lock(host_.mutex);
        return host_.acting.policy;
    }
    delivery::PolicyVersion held() const noexcept {
        const auto policy = acting();
        if (!policy) return {0, 0};
        return {policy->snapshot().generation, policy->snapshot().version};
    }
    bool fetching() const noexcept { return fetch_at_ != 0.0; }
    double next_deadline() const noexcept {
        return std::min(fetch_at_ != 0.0 ? fetch_at_ : kNever, sub_ ? silence_.deadline() : kNever);
    }
    io::Socket* socket() noexcept { return sub_.get(); }
    const std::shared_ptr<const policy::PolicySpec>& spec() const noexcept { return spec_; }
    std::shared_ptr<const weights::Snapshot> newest() const noexcept { return newest_.empty() ? nullptr : newest_.back(); }

    /// Starts with a policy of an earlier start, or of the parent of this process.
    /// `document` is the spec as a Welcome has it.
    void take_up(std::shared_ptr<const policy::PolicySpec> spec, std::shared_ptr<const weights::Snapshot> snapshot,
                 wire::Map document = {}) {
        describe(std::move(spec), std::move(document));
        swap(std::move(snapshot));
    }
    /// Subscribes to the weights of the policy in a Welcome, and fetches the newest. Throws ProtocolError, TransportError,
    /// Unsupported, and SessionError for a policy that does not fit this actor.
    void join(const wire::Received& welcome, double now);
    /// Closes the socket. The current policy stays in use.
    void leave() noexcept { sub_.reset(); }
    /// Processes one publication. Returns false if none is waiting.
    bool receive_one(double now);
    void on_fetched(const wire::Received& reply, double now);
    void note_alarms(const wire::Received& beacon);
    void tick(double now);
    /// Replaces the current policy, if it is `bad`, by the version before. Returns whether an earlier version acts now.
    bool roll_back(const policy::Policy* bad);
    /// True if a version was found to be bad. Any thread may call it.
    bool is_rejected(std::uint64_t generation, std::uint64_t version) const {
        const std::lock_guard<std::mutex> lock(host_.mutex);
        return rejected_.count({generation, version}) > 0;
    }

private:
    void describe(std::shared_ptr<const policy::PolicySpec> spec, wire::Map document);
    void subscribe(double now);
    void fetch(bool whole, double now);
    void on_update(std::string_view header, std::string_view payload, double now);
    void on_beacon(const wire::Received& beacon, double now);
    void swap(std::shared_ptr<const weights::Snapshot> snapshot);

    const Settings& settings_;
    HostLink& host_;
    delivery::Counters& counters_;
    support::Random& random_;
    support::Zstd& zstd_;
    const io::ZmqFunctions& zmq_;
    void* const context_;
    std::function<void(delivery::PolicyVersion)> send_fetch_;

    std::shared_ptr<const policy::PolicySpec> spec_;
    std::shared_ptr<const SegmentShape> shape_;
    std::optional<weights::TensorSizes> tensors_;
    std::deque<std::shared_ptr<const weights::Snapshot>> newest_;  // the last two that arrived, also if they were rolled back
    std::deque<std::shared_ptr<const policy::Policy>> previous_;   // under host_.mutex
    std::set<delivery::PolicyVersion> rejected_;                   // under host_.mutex
    std::string policy_id_, topic_, pub_;
    std::uint64_t generation_ = 0;
    std::unique_ptr<io::Socket> sub_;
    delivery::SilenceTimer silence_{5.0};  // of the publisher
    double fetch_at_ = 0.0;
    bool whole_ = false;
};

}  // namespace rl4sys::actor
