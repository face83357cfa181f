#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "api/agent.h"

namespace rl4sys::api {

std::string Agent::stats() const {
    using Json = nlohmann::ordered_json;
    Parts& parts = *parts_;
    const actor::Outbox::Counts outbox = parts.outbox.counts();
    const actor::SessionStatus session = parts.io.status();
    const actor::HostLink& host = parts.io.host;
    constexpr const char* kStates[] = {"joining", "joined", "refused", "closed"};
    std::string error;
    actor::ActingPolicy acting;
    {
        const std::lock_guard<std::mutex> lock(host.mutex);
        acting = host.acting;
        error = host.error ? host.error->text : host.joined ? "" : absence_;
    }
    std::uint64_t dropped = 0;
    for (const auto& [reason, count] : outbox.dropped) dropped += count;
    Json verdicts = Json::object();
    for (std::size_t n = 0; n < delivery::kVerdicts; ++n) verdicts[delivery::verdict_names[n]] = session.verdicts[n];
    delivery::Counters counters = session.counters;
    {
        const std::lock_guard<std::mutex> lock(parts.mutex);
        for (const auto& [name, count] : parts.counters) counters[name] += count;
    }
    const actor::EpisodeCounts& counts = parts.counts;
    for (const auto& [name, count] : {std::pair("skipped_actions", &counts.skipped),
                                      {"unrecorded_actions", &counts.unrecorded},
                                      {"late_actions_dropped", &counts.late_dropped},
                                      {"ended_without_rewards", &counts.without_rewards},
                                      {"cleared_steps", &counts.cleared}})
        if (*count) counters[name] = *count;
    const std::optional<double> mean = counts.mean_return();
    const double age = actor::monotonic() - host.current_at.load();
    Json out = {
        {"client_id", config.client_id},
        {"actor_id", parts.options.settings.hello.actor_id},
        {"form", "compiled"},
        {"state", kStates[static_cast<int>(session.state)]},
        {"error", error},
        {"generation", acting.policy ? acting.policy->snapshot().generation : 0},
        {"version", acting.policy ? Json(acting.policy->snapshot().version) : Json(-1)},
        {"policy_age_s", acting.policy && std::isfinite(age) ? Json(std::round(std::max(0.0, age) * 1e3) / 1e3) : Json()},
        {"submitted", outbox.put_items},
        {"steps", outbox.put_steps},
        {"dropped_at_source", dropped},
        {"dropped", outbox.dropped},
        {"in_actor", outbox.items + session.unreceived},
        {"in_flight", session.in_flight},
        {"durable", session.durable},
        {"refused", verdicts["refused"]},
        {"accepted", session.accepted},
        {"in_doubt", session.in_doubt},
        {"verdicts", verdicts},
        {"credit_steps", session.credit_steps > session.sent_steps ? session.credit_steps - session.sent_steps : 0},
        {"waiting_for_rewards", std::max<std::int64_t>(0, counts.waiting)},
        {"episodes", counts.episodes.load()},
        {"mean_return", mean ? Json(*mean) : Json()},
        {"counters", counters},
    };
    return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace rl4sys::api
