// The settings of one actor, as its configuration gives them to the library.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "delivery/session.h"
#include "io/zmq.h"

namespace rl4sys::actor {

enum class LogLevel { debug, info, warning, error };

/// Called by the I/O thread. It must not call the library.
using LogSink = std::function<void(LogLevel, const std::string&)>;

/// What the program can do on after an event in the I/O thread.
enum class Notice { policy, ended };

struct Settings {
    delivery::Hello hello;
    std::string address;                    // tcp://, ipc:// or inproc://
    std::optional<io::CurveKeys> keys;
    bool explore = true;
    bool drops = true;                      // overflow: drop_oldest
    bool compress = false;                  // compression: zstd
    std::size_t queue_items = 1024, queue_bytes = 64 << 20;
    double linger_s = 0.02;                 // how long a finished segment waits for others
    std::uint32_t send_frequency = 1;       // segments of a message that is sent at once
    double connect_timeout_s = 10.0, reward_timeout_s = 60.0, wait_timeout_s = 30.0;
    std::optional<double> policy_max_age_s; // beyond it, the baseline acts
    std::uint32_t segment_steps = 0;        // 0: the learner's rollout length
    std::uint32_t max_trajectory_steps = 0; // 0: no limit
    std::string policy_cache;               // a path, or empty
    std::optional<std::vector<std::uint32_t>> seed;
    bool learners_relays = true;            // false: the configuration names no relays, whatever the learner says
    LogSink log;
    std::function<void(Notice)> notice;     // called by the I/O thread. It must not call the library

    void report(LogLevel level, const std::string& text) const {
        if (log) log(level, hello.client_id + ": " + text);
    }
};

}  // namespace rl4sys::actor
