#include "rl4sys/logger.h"

#include <cstdio>
#include <ctime>

#include "api/agent.h"

namespace rl4sys {

void api::write_line(const cppclient::LogSink& sink, cppclient::LogLevel level, const std::string& name,
                     const std::string& text) {
    if (sink) {
        sink(level, name, text);
        return;
    }
    constexpr const char* kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"};
    char at[32] = "";
    std::tm parts{};
    const std::time_t now = std::time(nullptr);
    if (localtime_r(&now, &parts)) std::strftime(at, sizeof at, "%Y-%m-%d %H:%M:%S", &parts);
    std::fprintf(stderr, "%s %s %s: %s\n", at, kNames[static_cast<int>(level)], name.c_str(), text.c_str());
}

namespace cppclient {

Logger::Logger(const std::string& name, LogLevel level, LogSink sink) : name_(name), level_(level), sink_(std::move(sink)) {}

void Logger::emit(LogLevel level, const std::string& line) const { api::write_line(sink_, level, name_, line); }

}  // namespace cppclient
}  // namespace rl4sys
