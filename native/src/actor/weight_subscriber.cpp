#include "actor/weight_subscriber.h"

#include <algorithm>

namespace rl4sys::actor {
namespace {

using wire::Kind;
using wire::Received;

constexpr std::size_t kMaxWeightBytes = io::kMaxFrameBytes - 5;  // what fits into a frame, with the trailer
constexpr std::size_t kPreviousKept = 2, kMaxFrames = 32;
constexpr double kFetchRetry = 1.0;
constexpr char kWeightsTopic = 'W', kBeaconTopic = 'B';

// The address of the learner's PUB socket, with the host of the learner in the place of "*".
std::string seen_from(const std::string& pub, const std::string& learner) {
    constexpr std::string_view kAnyHost = "tcp://*:";
    if (pub.rfind(kAnyHost, 0) != 0) return pub;
    const std::size_t colon = learner.rfind(':');
    return learner.substr(0, colon + 1) + pub.substr(kAnyHost.size());
}

// True for tcp://HOST:PORT, ipc://PATH and inproc://NAME.
bool is_address(const std::string& text) {
    const std::size_t scheme = text.find("://"), colon = text.rfind(':');
    if (scheme == std::string::npos || scheme + 3 == text.size()) return false;
    const std::string name = text.substr(0, scheme), port = text.substr(colon + 1);
    if (name != "tcp") return name == "ipc" || name == "inproc";
    if (colon <= scheme + 3 || port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos) return false;
    return std::stoi(port) >= 1 && std::stoi(port) <= 65'535;
}

}  // namespace

void WeightSubscriber::describe(std::shared_ptr<const policy::PolicySpec> spec, wire::Map document) {
    spec_ = std::move(spec);
    shape_ = std::make_shared<const SegmentShape>(*spec_);
    tensors_.emplace(spec_->tensors);
    const std::lock_guard<std::mutex> lock(host_.mutex);
    host_.document = std::make_shared<const wire::Map>(std::move(document));
    ++host_.documents;
}

void WeightSubscriber::join(const Received& welcome, double now) {
    auto spec = std::make_shared<const policy::PolicySpec>(policy::read_spec(welcome.map("spec")));
    if (settings_.learners_relays && !welcome.list("relays").empty() && welcome.bytes("tag_key").size() == 32)
        throw policy::Unsupported("the compiled form takes no weights from relays");
    const auto refuse = [](Refusal code, const std::string& text, const char* field) {
        throw SessionError{SessionError::Kind::refused, code, text, field};
    };
    if (spec_ && !(spec_->observations == spec->observations && spec_->actions == spec->actions))
        refuse(Refusal::mismatch, "it now has other spaces than in the last session", "observation_space");
    if (spec_ && spec_->state_size != spec->state_size)
        refuse(Refusal::mismatch, "its policy now has other extra columns than in the last session", "spec");
    const std::size_t bytes = 4 * spec->weights + weights::TensorSizes(spec->tensors).other_bytes;
    if (bytes > kMaxWeightBytes)
        refuse(Refusal::too_large, "its policy has " + std::to_string(bytes) + " bytes of weights; this actor accepts at most " +
                                       std::to_string(kMaxWeightBytes), "spec");
    std::string pub = seen_from(welcome.text("pub"), settings_.address);
    if (!is_address(pub)) throw ProtocolError(Refusal::spec, "'" + pub.substr(0, 80) + "' is not an address");
    describe(std::move(spec), welcome.map("spec"));
    policy_id_ = welcome.bytes("policy_id");
    topic_ = welcome.bytes("topic");
    pub_ = std::move(pub);
    generation_ = welcome.integer("generation");
    subscribe(now);
}

void WeightSubscriber::note_alarms(const Received& beacon) {
    const std::lock_guard<std::mutex> lock(host_.mutex);
    host_.alarms.clear();
    for (const auto& [name, value] : beacon.map("alarms").items)
        if (const auto* count = value.get<std::int64_t>(); count && *count > 0) host_.alarms[name] = static_cast<std::uint64_t>(*count);
}

void WeightSubscriber::subscribe(double now) {
    sub_.reset();
    silence_.restart(now);
    sub_ = std::make_unique<io::Socket>(zmq_, context_, io::Socket::Role::sub, pub_, settings_.keys);
    sub_->subscribe(kBeaconTopic + topic_);
    sub_->subscribe(kWeightsTopic + topic_);
    // In this order, no update is missed.
    fetch(whole_, now);
}

void WeightSubscriber::fetch(bool whole, double now) {
    whole_ = whole;
    fetch_at_ = now + delivery::jittered(kFetchRetry, random_);
    ++counters_["fetches"];
    const auto base = whole ? nullptr : newest();
    send_fetch_(base ? delivery::PolicyVersion{base->generation, base->version} : delivery::PolicyVersion{0, 0});
}

bool WeightSubscriber::receive_one(double now) {
    if (!sub_) return false;
    const std::optional<io::Message> message = sub_->receive(kMaxFrames);
    if (!message) return false;
    const wire::Frames& frames = message->frames();
    try {
        if (frames.empty()) throw ProtocolError(Refusal::frames, "too many frames");
        silence_.restart(now);
        if (frames[0].empty()) return true;
        if (frames[0][0] == kWeightsTopic && (frames.size() == 3 || frames.size() == 4)) {
            on_update(frames[1], frames[2], now);
        } else if (frames[0][0] == kBeaconTopic) {
            const Received beacon = wire::decode({frames.begin() + 1, frames.end()});
            if (beacon.kind == Kind::beacon) on_beacon(beacon, now);
        }
    } catch (const ProtocolError& error) {
        ++counters_[std::string("refused.") + name_of(error.code)];
    }
    return true;
}

void WeightSubscriber::on_fetched(const Received& reply, double now) {
    if (reply.body.empty() || reply.body.size() % 2)
        throw ProtocolError(Refusal::frames, std::to_string(reply.body.size()) + " frames of weights; expected pairs of them");
    for (std::size_t n = 0; n < reply.body.size(); n += 2) on_update(reply.body[n], reply.body[n + 1], now);
}

void WeightSubscriber::tick(double now) {
    if (sub_ && silence_.expired(now)) {
        ++counters_["redials.weights"];
        subscribe(now);
    } else if (fetch_at_ != 0.0 && now >= fetch_at_) {
        fetch(whole_, now);
    }
}

void WeightSubscriber::on_update(std::string_view header, std::string_view payload, double now) {
    if (!spec_) return;
    const weights::Header head = weights::read_header(header);
    if (head.policy_id() != policy_id_ || head.generation != generation_) {
        ++counters_["weights_ignored"];
        return;
    }
    const auto base = newest();
    if (base && base->generation == head.generation && head.new_version <= base->version && !whole_) {
        if (head.new_version == base->version) fetch_at_ = 0.0;  // the policy was current
        return;
    }
    if (is_rejected(head.generation, head.new_version)) {
        fetch_at_ = 0.0;
        return;
    }
    try {
        const weights::Snapshot* before = newest_.size() > 1 ? newest_.front().get() : nullptr;
        swap(std::make_shared<const weights::Snapshot>(weights::apply_update(head, payload, base.get(), *tensors_, before, zstd_)));
        fetch_at_ = 0.0;
        whole_ = false;
        ++counters_["weights_applied"];
        if (settings_.notice) settings_.notice(Notice::policy);
    } catch (const WeightsError& error) {
        ++counters_["weights_refused." + error.reason];
        if (fetch_at_ == 0.0) fetch(error.reason != "gap", now);
    }
}

void WeightSubscriber::on_beacon(const Received& beacon, double now) {
    note_alarms(beacon);
    const std::uint64_t generation = beacon.integer("generation"), version = beacon.integer("version");
    // With another generation, the session over the ROUTER will report it.
    if (fetch_at_ != 0.0 || generation != generation_ || is_rejected(generation, version)) return;
    const auto policy = acting();
    const weights::Snapshot* const has = policy ? &policy->snapshot() : nullptr;
    if (!newest() || !has || has->generation != generation || version > has->version) {
        ++counters_["resyncs.beacon"];
        fetch(false, now);
    } else if (version == has->version && beacon.integer("digest") != has->digest) {
        ++counters_["resyncs.digest"];
        fetch(true, now);
    }
}

void WeightSubscriber::swap(std::shared_ptr<const weights::Snapshot> snapshot) {
    auto policy = std::make_shared<const policy::Policy>(spec_, snapshot);
    newest_.push_back(std::move(snapshot));
    if (newest_.size() > 2) newest_.pop_front();
    const std::lock_guard<std::mutex> lock(host_.mutex);
    if (host_.acting.policy) previous_.push_back(std::move(host_.acting.policy));
    if (previous_.size() > kPreviousKept) previous_.pop_front();
    host_.acting = {std::move(policy), shape_};
    host_.current.store(host_.acting.policy.get(), std::memory_order_release);
    host_.notify();
}

bool WeightSubscriber::roll_back(const policy::Policy* bad) {
    const std::lock_guard<std::mutex> lock(host_.mutex);
    if (host_.acting.policy.get() != bad) return true;  // a newer version has arrived
    if (previous_.empty()) return false;
    rejected_.erase(rejected_.begin(), rejected_.lower_bound({bad->snapshot().generation, 0}));
    rejected_.insert({bad->snapshot().generation, bad->snapshot().version});
    host_.acting.policy = std::move(previous_.back());
    previous_.pop_back();
    host_.current.store(host_.acting.policy.get(), std::memory_order_release);
    return true;
}

}  // namespace rl4sys::actor
