// A C++ actor that goes on while its learner is killed, or that is killed itself (tests/gates/kill_lab.py).
// It has the options, the trace and the command `stop` of tests/gates/processes/kill_actor.py, and more commands: `leave` ends
// the agent and opens another, `fork` plays some episodes in a child process, `clock N` sets the wall clock N seconds wrong.
// RL4SYS_DIE_AT=POINT:N kills the process when it reaches a point for the N-th time, or at any place within the N-th `step`.
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "rl4sys/config_loader.h"
#include "rl4sys/rl4sys_agent.h"

using namespace rl4sys::cppclient;
using nlohmann::json;

namespace {

constexpr double kPatience = 60.0, kLawEvery = 0.2;
constexpr int kMostSteps = 4, kChildEpisodes = 5;
constexpr long kWithinNs = 300'000;  // about the length of an episode with its notes

std::atomic<time_t> clock_s{0};

}  // namespace

// In the place of the C library's: the wall clock of the whole process, with the library, is wrong by `clock_s`.
extern "C" int clock_gettime(clockid_t clock, timespec* at) noexcept {
    const long done = syscall(SYS_clock_gettime, clock, at);
    if (clock == CLOCK_REALTIME) at->tv_sec += clock_s;
    return static_cast<int>(done);
}

namespace {

std::int64_t monotonic_ns() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double monotonic() { return static_cast<double>(monotonic_ns()) / 1e9; }

// The events of this process for tests/harness/trace.py, each written at once.
class Trace {
public:
    Trace(const std::string& path, const std::string& client) : file_(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND, 0644)) {
        const off_t size = lseek(file_, 0, SEEK_END);
        char last = '\n';
        if (size > 0 && pread(file_, &last, 1, size - 1) == 1 && last != '\n') write_all("\n");  // it was killed within a line
        say("life", {{"pid", getpid()}, {"client", client}});
    }
    Trace(const Trace&) = delete;
    ~Trace() { close(file_); }

    void say(const char* kind, json fields) const {
        fields["kind"] = kind;
        fields["at_ns"] = monotonic_ns();
        write_all(fields.dump() + "\n");
    }

private:
    void write_all(const std::string& text) const {
        if (write(file_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) throw std::runtime_error("no trace");
    }

    const int file_;
};

// The point at which this process kills itself.
class Fuse {
public:
    explicit Fuse(const char* given) {
        const std::string text = given ? given : "";
        point_ = text.substr(0, text.find(':'));
        if (!text.empty()) left_ = std::stol(text.substr(text.find(':') + 1));
    }

    void at(const char* point, std::mt19937& random) {
        if (point_ != point || --left_) return;
        if (point_ != "step") kill(getpid(), SIGKILL);
        sigevent event{};  // notifies by a signal
        event.sigev_signo = SIGKILL;
        itimerspec within{};
        within.it_value.tv_nsec = 1 + static_cast<long>(random() % kWithinNs);
        timer_t timer;
        timer_create(CLOCK_MONOTONIC, &event, &timer);
        timer_settime(timer, 0, &within, nullptr);
    }

private:
    std::string point_;
    long left_ = 0;
};

// The next command, if one comes within this time. Ends the process if its parent is gone.
std::optional<std::string> command_within(double seconds) {
    static std::string heard;
    const double end = monotonic() + seconds;
    while (heard.find('\n') == std::string::npos) {
        pollfd input{0, POLLIN, 0};
        if (poll(&input, 1, static_cast<int>(std::ceil(std::max(0.0, end - monotonic()) * 1e3))) <= 0) return std::nullopt;
        char part[256];
        const ssize_t size = read(0, part, sizeof part);
        if (size <= 0) _exit(3);
        heard.append(part, static_cast<std::size_t>(size));
    }
    const std::string line = heard.substr(0, heard.find('\n'));
    heard.erase(0, line.size() + 1);
    return line;
}

class Host {
public:
    explicit Host(const json& options)
        : options_(options),
          trace_(std::make_unique<Trace>(options["trace"], options["client"])),
          random_(options["seed"].get<unsigned>()),
          fuse_(std::getenv("RL4SYS_DIE_AT")) {
        join();
    }

    void run() {
        const double period = 1.0 / options_["rate"].get<double>();
        double due = monotonic();
        while (true) {
            if (stats()["in_actor"] < options_["max_queued"]) episode();
            note();
            due = std::max(due + period, monotonic() - 0.1);
            do {
                const std::optional<std::string> command = command_within(due - monotonic());
                if (command == "stop") return finish();
                if (command == "leave") {
                    leave();
                    join();
                } else if (command == "fork") {
                    fork_child();
                } else if (command) {
                    clock_s = std::stol(command->substr(command->find(' ')));
                }
            } while (monotonic() < due);
        }
    }

private:
    void join() {
        const std::string client = options_["client"];
        json config = {
            {"client_id", client},
            {"actor_id", options_["actor_id"]},
            {"algorithm_name", client == "on" ? "RECORD_ON" : "RECORD_OFF"},
            {"algorithm_parameters", {{"input_size", 4}, {"act_dim", 2}}},
            {"train_server_address", options_["address"]},
            {"connect_timeout_s", kPatience},
            {"wait_timeout_s", kPatience},
            {"seed", options_["seed"]},
        };
        config.update(options_["config"]);
        fuse_.at("join", random_);
        const LogSink log = [](LogLevel, const std::string&, const std::string& line) { std::cerr << line << std::endl; };
        agent_ = std::make_unique<RL4SysAgent>(ConfigLoader::loadFromString(config.dump()), Baseline(), log);
        names_.clear();
        acked_ = 0;
        trace_->say("joined", {{"generation", stats()["generation"]}});
        fuse_.at("joined", random_);
    }

    // Delivers everything, and ends the agent.
    json leave() {
        fuse_.at("leave", random_);
        if (!agent_->flushTrajectories(kPatience)) throw std::runtime_error(agent_->getLastError());
        note(true);
        json last = stats();
        agent_.reset();
        return last;
    }

    void finish() {
        for (const pid_t child : children_) {
            int status = 0;
            if (waitpid(child, &status, 0) != child || status) throw std::runtime_error("a child failed");
        }
        json done = {{"stats", leave()}, {"submits", took_ms_.size()}};
        std::sort(took_ms_.begin(), took_ms_.end());
        if (took_ms_.empty()) took_ms_.push_back(0.0);
        done["p99.9_ms"] = took_ms_[took_ms_.size() * 999 / 1000];
        done["p100_ms"] = took_ms_.back();
        trace_->say("done", done);
    }

    void fork_child() {
        const pid_t child = fork();
        if (child) return children_.push_back(child);
        try {
            children_.clear();
            names_.clear();
            acked_ = 0;
            std::string path = options_["trace"];
            trace_ = std::make_unique<Trace>(path.insert(path.rfind('.'), "-" + std::to_string(getpid())), options_["client"]);
            for (int n = 0; n < kChildEpisodes; ++n) episode();
            finish();
            _exit(0);
        } catch (const std::exception& error) {
            std::cerr << error.what() << std::endl;
            _exit(1);
        }
    }

    json stats() const { return json::parse(agent_->stats()); }

    void episode() {
        const auto number = ++episodes_;
        const int steps = 1 + static_cast<int>(random_() % kMostSteps);
        int first = 0;  // step of the unfinished segment
        std::shared_ptr<RL4SysTrajectory> trajectory;
        RL4SysAction action;
        try {
            for (int step = 0; step < steps; ++step) {
                fuse_.at("step", random_);
                // The fourth number tells a recorder that the others name the segment.
                const float observation[] = {static_cast<float>(getpid()), static_cast<float>(number), static_cast<float>(step),
                                             -1.0f};
                agent_->requestForAction(trajectory, action, observation, 4);
                fuse_.at("request", random_);
                agent_->updateActionReward(action, 1.0);
                agent_->addToTrajectory(trajectory, action);
                fuse_.at("add", random_);
                if (step && trajectory->getActions().size() == 1) {  // the generation has changed, which cuts the segment
                    submit(number, first);
                    first = step;
                }
            }
        } catch (const std::runtime_error& error) {  // only with overflow: wait
            trace_->say("waited_too_long", {{"text", error.what()}});
        }
        if (!trajectory || !trajectory->size()) return;
        submit(number, first);
        fuse_.at("submit", random_);
        const double began = monotonic();
        if (!agent_->markEndOfTrajectory(trajectory, action)) throw std::runtime_error(agent_->getLastError());
        took_ms_.push_back((monotonic() - began) * 1e3);
        fuse_.at("submitted", random_);
    }

    void submit(long number, int first) {
        char name[48];
        std::snprintf(name, sizeof name, "%lx.%d", static_cast<long>(getpid()) << 32 | number, first);
        names_.push_back(name);
        trace_->say("submitted", {{"ids", {name}}});
    }

    // Records what the learner's durable mark covers, the policy version, and the counters once they agree.
    void note(bool last = false) {
        json now = stats();
        const std::size_t durable = now["in_doubt"] == 0 ? now["durable"].get<std::size_t>() : 0;
        if (durable > acked_) {
            json covered = json::array();
            while (acked_ < durable) covered.push_back(names_.at(acked_++));
            trace_->say("acked", {{"ids", covered}});
            fuse_.at("acked", random_);
        }
        const int version = agent_->getCurrentModelVersion();
        const std::uint64_t digest = agent_->getCurrentModelDigest();
        if (version != version_ && version == agent_->getCurrentModelVersion()) {
            version_ = version;
            trace_->say("version", {{"version", version}, {"digest", digest}});
        }
        if (monotonic() < law_at_ && !last) return;
        law_at_ = monotonic() + kLawEvery;
        json law;
        long missing = 1;
        for (int tries = 0; missing && tries < 200; ++tries) {
            if (tries) usleep(1000);
            now = stats();
            law = {{"side", "actor"}, {"client", options_["client"]}, {"submitted", now["submitted"]}};
            missing = now["submitted"];
            for (const char* part : {"dropped_at_source", "in_actor", "refused", "accepted", "in_doubt"}) {
                law[part] = now[part];
                missing -= now[part].get<long>();
            }
        }
        trace_->say("law", law);
    }

    const json options_;
    std::unique_ptr<Trace> trace_;
    std::mt19937 random_;
    Fuse fuse_;
    std::unique_ptr<RL4SysAgent> agent_;
    std::vector<std::string> names_;  // of the agent's segments, in the order in which they were submitted
    std::size_t acked_ = 0;
    long episodes_ = 0;
    int version_ = -1;
    double law_at_ = 0.0;
    std::vector<double> took_ms_;
    std::vector<pid_t> children_;
};

}  // namespace

int main(int, char** arguments) {
    try {
        const json options = json::parse(arguments[1]);
        if (std::getenv("RL4SYS_SPARE")) command_within(1e6);
        clock_s = options.value("clock_s", time_t{0});
        Host(options).run();
        return 0;
    } catch (const std::exception& error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
}
