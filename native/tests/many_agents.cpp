// Opens and closes agents without a learner, as many as its argument says, and checks that no thread and no descriptor is left.
#include <dirent.h>

#include <cstdio>
#include <cstdlib>

#include "rl4sys_agent.h"

using namespace rl4sys::cppclient;

static int entries_of(const char* path) {
    int out = 0;
    DIR* const folder = opendir(path);
    while (folder && readdir(folder)) ++out;
    if (folder) closedir(folder);
    return out;
}

static bool play() {
    AgentConfig config;
    config.client_id = "many";
    config.train_server_address = "tcp://127.0.0.1:9";
    config.connection_timeout_seconds = 0;
    config.algorithm_parameters = {{"input_size", 4}, {"act_dim", 2}};
    RL4SysAgent agent(config, [](const std::vector<float>&, const std::vector<float>&) { return std::vector<float>{1.0f}; });
    std::shared_ptr<RL4SysTrajectory> trajectory;
    RL4SysAction action;
    const float observation[4] = {};
    for (int step = 0; step < 3; ++step) {
        agent.requestForAction(trajectory, action, observation, 4);
        agent.updateActionReward(action, 1.0);
        agent.addToTrajectory(trajectory, action);
    }
    agent.markEndOfTrajectory(trajectory, action);
    agent.close(0.0);
    return action.act() == 1;
}

int main(int count, char** arguments) {
    int left = count > 1 ? std::atoi(arguments[1]) : 10;
    if (!play()) return 1;  // what is opened once and stays, for example by the C library, does not count
    const int files = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
    while (left-- > 0)
        if (!play()) return 1;
    const int more_files = entries_of("/proc/self/fd") - files, more_threads = entries_of("/proc/self/task") - threads;
    if (more_files || more_threads) std::fprintf(stderr, "%d descriptors and %d threads are left\n", more_files, more_threads);
    return more_files || more_threads;
}
