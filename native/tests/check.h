// Checks for test programs. A failed check is printed, and the program ends with 1. Arguments name the tests to run.
#pragma once

#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace rl4sys::tests {

struct Test {
    const char* name;
    void (*run)();
};

inline std::vector<Test>& all_tests() {
    static std::vector<Test> tests;
    return tests;
}

inline int failures = 0;
inline std::string context;  // of the current case, for messages

struct Registered {
    Registered(const char* name, void (*run)()) { all_tests().push_back({name, run}); }
};

inline bool check(bool good, const char* what, const char* file, int line, const std::string& detail = {}) {
    if (good) return true;
    if (++failures <= 20) std::cerr << file << ':' << line << ": " << what << detail << (context.empty() ? "" : "  in ") << context << '\n';
    return false;
}

template <class A, class B>
bool check_equal(const A& a, const B& b, const char* what, const char* file, int line) {
    if (a == b) return true;
    std::string detail;
    if constexpr (std::is_convertible_v<A, std::string> && std::is_convertible_v<B, std::string>)
        detail = ": " + std::string(a) + ", " + std::string(b);
    else if constexpr (std::is_arithmetic_v<A> && std::is_arithmetic_v<B>)
        detail = ": " + std::to_string(a) + ", " + std::to_string(b);
    return check(false, what, file, line, detail);
}

}  // namespace rl4sys::tests

#define CHECK(condition) ::rl4sys::tests::check(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
#define CHECK_EQ(a, b) ::rl4sys::tests::check_equal(a, b, #a " == " #b, __FILE__, __LINE__)
#define TEST(name)                                                            \
    static void name();                                                       \
    static const ::rl4sys::tests::Registered registered_##name(#name, name); \
    static void name()

int main(int count, char** names) {
    using namespace rl4sys::tests;
    int ran = 0;
    for (const Test& test : all_tests()) {
        bool chosen = count == 1;
        for (int i = 1; i < count; ++i) chosen |= std::strcmp(names[i], test.name) == 0;
        if (!chosen) continue;
        ++ran;
        context.clear();
        const int before = failures;
        try {
            test.run();
        } catch (const std::exception& error) {
            check(false, error.what(), test.name, 0);
        }
        std::cerr << (failures == before ? "passed " : "FAILED ") << test.name << '\n';
    }
    return failures || !ran;
}
