// The content of a trajectory of the C++ interface.
#pragma once

#include <vector>

#include "api/agent.h"

namespace rl4sys::cppclient {

struct RL4SysTrajectory::State {
    api::Run run;                       // empty: no agent has used the trajectory
    std::vector<RL4SysAction> actions;  // without an agent: all; else copies of those in the open segment
    std::int32_t version = 0;
    bool completed = false;
};

}  // namespace rl4sys::cppclient
