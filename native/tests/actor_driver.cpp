// A program for the tests of the C++ actor (tests/native): it reads commands as lines of JSON, and writes a line for each.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "rl4sys/config_loader.h"
#include "rl4sys/model_manager.h"
#include "rl4sys/rl4sys_agent.h"

using namespace rl4sys::cppclient;
using nlohmann::json;

namespace {

thread_local long allocated = 0;  // by this thread

}  // namespace

#ifndef __SANITIZE_ADDRESS__  // it has its own
[[gnu::noinline]] void* operator new(std::size_t size) {
    ++allocated;
    if (void* const out = std::malloc(size)) return out;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* at) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::size_t) noexcept { std::free(at); }
#endif

namespace {

struct Failed {
    std::string text;
};

std::vector<std::string> lines;  // before the agent, which writes to it until its end
std::unique_ptr<RL4SysAgent> agent;
std::map<int, std::shared_ptr<RL4SysTrajectory>> trajectories;
std::deque<RL4SysAction> actions;

json shown(const RL4SysAction& action) {
    return {{"act", action.act()},
            {"floats", action.actFloats()},
            {"bytes", action.getAction()},
            {"log_prob", action.getLogProb()},
            {"version", action.getVersion()},
            {"recorded", action.isRecorded()},
            {"reward", action.getReward()},
            {"mask", action.getMask()}};
}

void must(bool done) {
    if (!done) throw Failed{agent->getLastError()};
}

// Plays steps with random observations, in episodes of one length, each step with the reward 1.
void play(long steps, std::size_t size, int length, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    std::vector<float> observation(size);
    std::shared_ptr<RL4SysTrajectory> trajectory;
    RL4SysAction action;
    for (long step = 1; step <= steps; ++step) {
        for (float& x : observation) x = uniform(random);
        agent->requestForAction(trajectory, action, observation.data(), size);
        agent->updateActionReward(action, 1.0);
        agent->addToTrajectory(trajectory, action);
        if (step % length == 0) must(agent->markEndOfTrajectory(trajectory, action));
    }
}

json in_child(const json& command) {
    int ends[2];
    if (pipe(ends) != 0) throw Failed{"no pipe"};
    const pid_t child = fork();
    if (!child) {
        std::string text;
        try {
            play(command.value("steps", 0L), command.value("size", 4), 5, 3);
            if (command.value("steps", 0L)) must(agent->flushTrajectories(30.0));
            text = agent->stats();
        } catch (const Failed& failed) {
            text = json{{"error", failed.text}}.dump();
        } catch (const std::exception& error) {
            text = json{{"error", error.what()}}.dump();
        }
        agent.reset();
        [[maybe_unused]] const auto written = write(ends[1], text.data(), text.size());
        _exit(0);
    }
    close(ends[1]);
    std::string text;
    char part[4096];
    for (ssize_t got; (got = read(ends[0], part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(got));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    json out = json::parse(text);
    out["status"] = status;
    return out;
}

json execute(const json& command) {
    const std::string what = command.at("do");
    const int t = command.value("t", 0);
    RL4SysAction* const action = command.contains("a") ? &actions.at(command["a"].get<std::size_t>()) : nullptr;
    const std::vector<float> observation = command.value("obs", std::vector<float>()),
                             mask = command.value("mask", std::vector<float>());
    if (what == "open") {
        trajectories.clear();
        actions.clear();
        agent.reset();
        Baseline baseline;
        if (command.value("baseline_throws", false)) baseline = [](const auto&, const auto&) -> std::vector<float> { throw 7; };
        if (command.contains("baseline"))
            baseline = [act = command["baseline"].get<std::vector<float>>()](const auto&, const auto&) { return act; };
        LogSink log = [](LogLevel, const std::string&, const std::string& line) { lines.push_back(line); };
        agent = std::make_unique<RL4SysAgent>(ConfigLoader::loadFromString(command.at("config")), baseline, log);
        return json::object();
    }
    if (what == "request") {
        auto out = agent->requestForAction(trajectories[t], observation, mask);
        if (!out) throw Failed{agent->getLastError()};
        trajectories[t] = out->first;
        actions.push_back(out->second);
        json answer = shown(actions.back());
        answer["a"] = actions.size() - 1;
        return answer;
    }
    if (what == "add") return agent->addToTrajectory(trajectories[t], *action), json{{"size", trajectories[t]->size()}};
    if (what == "reward") return agent->updateActionReward(*action, command.at("reward")), shown(*action);
    if (what == "done") return action->setDone(true), json::object();
    if (what == "end") {
        RL4SysAction none;
        must(agent->markEndOfTrajectory(trajectories[t], action ? *action : none, command.value("truncated", false), observation,
                                        mask));
        return {{"size", trajectories[t]->size()}};
    }
    if (what == "actions") {
        json out = json::array();
        for (const RL4SysAction& one : trajectories[t]->getActions()) out.push_back(shown(one));
        return out;
    }
    if (what == "clear") return trajectories[t]->clear(), json::object();
    if (what == "play") {
        const int threads = command.value("threads", 1);
        std::vector<std::thread> all;
        std::atomic<int> failed{0};
        for (int n = 0; n < threads; ++n)
            all.emplace_back([&, n] {
                try {
                    play(command.at("steps"), command.value("size", 4), command.value("length", 20), static_cast<unsigned>(n));
                } catch (...) {
                    ++failed;
                }
            });
        for (std::thread& one : all) one.join();
        return {{"failed", failed.load()}};
    }
    if (what == "allocations") {
        // After a warm-up, within one segment.
        std::shared_ptr<RL4SysTrajectory> trajectory;
        RL4SysAction one;
        const std::vector<float> seen(command.value("size", 4), 0.25f);
        long before = 0;
        for (int step = 0; step < 400; ++step) {
            if (step == 200) before = allocated;
            agent->requestForAction(trajectory, one, seen.data(), seen.size());
            agent->updateActionReward(one, 1.0);
            agent->addToTrajectory(trajectory, one);
        }
        const long during = allocated - before;
        return {{"allocated", during}};
    }
    if (what == "flush") return must(agent->flushTrajectories(command.at("s"))), json::object();
    if (what == "wait") return must(agent->waitVersion(command.at("v"), command.at("s"))), json::object();
    if (what == "version") return {{"version", agent->getCurrentModelVersion()}, {"digest", agent->getCurrentModelDigest()}};
    if (what == "stats") return json::parse(agent->stats());
    if (what == "log") return lines;
    if (what == "rollback") return {{"rolled_back", agent->rollback()}};
    if (what == "fork") return in_child(command);
    if (what == "close") return agent->close(command.value("s", 2.0)), json::object();
    if (what == "config")
        return json::parse(ConfigLoader::configToJsonString(ConfigLoader::loadFromString(command.at("config"))));
    if (what == "model") {
        ModelManager models(ConfigLoader::loadFromString(command.at("config")), std::make_shared<Logger>("models"));
        const std::vector<float> zeros(4, 0.0f);
        const std::size_t before = models.generateAction(zeros, 0).getAction().size();
        const bool taken = models.setModel(command.at("bytes").get<std::vector<std::uint8_t>>(), 3, false);
        return {{"taken", taken},
                {"has", models.hasModel()},
                {"version", models.getCurrentVersion()},
                {"bytes", before},
                {"act", models.generateAction(zeros, 3).getAction()}};
    }
    throw Failed{"no such command: " + what};
}

}  // namespace

int main() {
    std::string line;
    while (std::getline(std::cin, line)) {
        json out;
        try {
            out = {{"ok", execute(json::parse(line))}};
        } catch (const Failed& failed) {
            out = {{"error", failed.text}};
        } catch (const std::exception& error) {
            out = {{"error", error.what()}};
        }
        std::cout << out.dump() << std::endl;
    }
}
