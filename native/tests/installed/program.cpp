// A program that only sees the installed headers and library.
#include <rl4sys_agent.h>

#include <rl4sys/config_loader.h>

using namespace rl4sys::cppclient;

int main() {
    const char* text = R"({"client_id": "c", "algorithm_name": "PPO", "train_server_address": "tcp://127.0.0.1:1",
        "connection_timeout_seconds": 0.2, "algorithm_parameters": {"input_size": 4, "act_dim": 2}})";
    const AgentConfig config = ConfigLoader::loadFromString(text);
    if (config.client_id != "c" || ConfigLoader::configToJsonString(config).empty()) return 1;
    try {
        ConfigLoader::loadFromString("{}");
        return 2;
    } catch (const ConfigurationError&) {  // the same type on both sides of the library's border
    }
    RL4SysAgent agent(config, [](const std::vector<float>&, const std::vector<float>&) { return std::vector<float>{1.0f}; });
    const auto chosen = agent.requestForAction(nullptr, {0.0f, 0.0f, 0.0f, 0.0f});
    return chosen && chosen->second.act() == 1 && agent.getCurrentModelVersion() == -1 ? 0 : 3;
}
