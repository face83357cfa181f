// Log lines, which go to a sink of the program or to stderr.
#pragma once

#include <functional>
#include <sstream>
#include <string>

#include "rl4sys_types.h"

namespace rl4sys::cppclient {

enum class LogLevel { DEBUG = 0, INFO = 1, WARNING = 2, ERROR = 3, CRITICAL = 4 };

/// Receives the lines of a logger. Any thread may call it.
using LogSink = std::function<void(LogLevel, const std::string& name, const std::string& line)>;

/// A logger with a name and a level. Several threads can use it.
class RL4SYS_API Logger {
public:
    /// Without a sink, lines go to stderr.
    explicit Logger(const std::string& name, LogLevel level = LogLevel::INFO, LogSink sink = {});

    /// Writes a line, if the level is high enough. `context` is a list of names and values.
    template <typename... Args>
    void log(LogLevel level, const std::string& message, const Args&... context) const {
        if (level < level_) return;
        std::ostringstream line;
        line << message;
        [[maybe_unused]] int place = 0;
        ((line << (place++ % 2 ? "=" : " ") << context), ...);
        emit(level, line.str());
    }
    template <typename... Args>
    void debug(const std::string& message, const Args&... context) { log(LogLevel::DEBUG, message, context...); }
    template <typename... Args>
    void info(const std::string& message, const Args&... context) { log(LogLevel::INFO, message, context...); }
    template <typename... Args>
    void warning(const std::string& message, const Args&... context) { log(LogLevel::WARNING, message, context...); }
    template <typename... Args>
    void error(const std::string& message, const Args&... context) { log(LogLevel::ERROR, message, context...); }
    template <typename... Args>
    void critical(const std::string& message, const Args&... context) { log(LogLevel::CRITICAL, message, context...); }

    void setLevel(LogLevel level) noexcept { level_ = level; }
    LogLevel getLevel() const noexcept { return level_; }
    bool isDebugEnabled() const noexcept { return level_ <= LogLevel::DEBUG; }
    bool isInfoEnabled() const noexcept { return level_ <= LogLevel::INFO; }

private:
    void emit(LogLevel level, const std::string& line) const;

    std::string name_;
    LogLevel level_;
    LogSink sink_;
};

}  // namespace rl4sys::cppclient
