// The receiver of the learner's weights: verified diffs from a PUB socket, and a fetch of what is missing
// (rl4sys_zmq/actor/io/weight_subscriber.py). The I/O thread uses it; any thread may call `roll_back`.
#pragma once

#include <array>
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

/// A Welcome that this actor cannot use, for a reason that is not its form.
struct WelcomeRefused {
    Refusal code;
    std::string detail, field;
};

class WeightSubscriber {
public:
    WeightSubscriber(const Settings& settings, HostLink& host, delivery::Counters& counters, support::Random& random, support::Zstd& zstd,
                     std::function<void(delivery::PolicyVersion)> fetch);

    delivery::PolicyVersion held() const noexcept;
    bool fetching() const noexcept { return fetch_at_ != 0.0; }
    double next_deadline() const noexcept;
    io::Socket* socket() noexcept { return sub_.get(); }
    const std::shared_ptr<const policy::PolicySpec>& spec() const noexcept { return spec_; }
    std::shared_ptr<const weights::Snapshot> newest() const noexcept { return newest_.empty() ? nullptr : newest_.back(); }

    /// Starts with a policy of an earlier start, or of the parent of this process.
    /// `document` is the spec as a Welcome has it.
    void take_up(std::shared_ptr<const policy::PolicySpec> spec, std::shared_ptr<const weights::Snapshot> snapshot, wire::Map document = {});
    /// The spec of the policy as the last Welcome had it.
    const wire::Map& document() const noexcept { return document_; }
    /// Subscribes to the weights of the policy in a Welcome, and fetches the newest. Throws ProtocolError, WelcomeRefused, Unsupported.
    void join(const io::ZmqFunctions& zmq, void* context, const wire::Received& welcome, double now);
    /// Closes the socket. The current policy stays in use.
    void leave() noexcept { sub_.reset(); }
    /// Processes one publication. Returns false if none is waiting.
    bool receive_one(double now);
    void on_fetched(const wire::Received& reply, double now);
    void note_alarms(const wire::Received& beacon);
    void tick(const io::ZmqFunctions& zmq, void* context, double now);
    /// Replaces the current policy, if it is `bad`, by the version before. Returns whether an earlier version acts now.
    bool roll_back(const policy::Policy* bad);
    /// True if a version was found to be bad. Any thread may call it.
    bool is_rejected(std::uint64_t generation, std::uint64_t version) const;

private:
    void subscribe(const io::ZmqFunctions& zmq, void* context, double now);
    void fetch(bool whole, double now);
    void on_update(std::string_view header, std::string_view payload, double now);
    void on_beacon(const wire::Received& beacon, double now);
    void set_document(wire::Map document);
    std::uint64_t held_digest() const noexcept;
    void swap(std::shared_ptr<const weights::Snapshot> snapshot);

    const Settings& settings_;
    HostLink& host_;
    delivery::Counters& counters_;
    support::Random& random_;
    support::Zstd& zstd_;
    std::function<void(delivery::PolicyVersion)> send_fetch_;

    std::shared_ptr<const policy::PolicySpec> spec_;
    std::shared_ptr<const SegmentShape> shape_;
    std::optional<weights::TensorSizes> tensors_;
    std::deque<std::shared_ptr<const weights::Snapshot>> newest_;  // the last two that arrived, also if they were rolled back
    std::deque<std::shared_ptr<const policy::Policy>> previous_;   // under host_.mutex
    std::set<delivery::PolicyVersion> rejected_;                   // under host_.mutex
    wire::Map document_;
    std::string policy_id_, topic_, pub_;
    std::uint64_t generation_ = 0;
    std::unique_ptr<io::Socket> sub_;
    delivery::SilenceTimer silence_;
    double fetch_at_ = 0.0;
    bool whole_ = false;
};

}  // namespace rl4sys::actor
