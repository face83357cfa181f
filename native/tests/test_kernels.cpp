// The kernels of each instruction set that this processor has, against plain loops in double.
#include "policy/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"
#include "policy/policy.h"
#include "support/random.h"

using namespace rl4sys;
using policy::Floats;
using policy::Function;
using support::CpuLevel;

static support::Random generator(std::uint64_t{11});

static void fill(Floats& out, std::size_t count, double scale) {
    for (std::size_t i = 0; i < count; ++i) out.data()[i] = static_cast<float>((2 * generator.uniform() - 1) * scale);
}

template <class F>
static void each_level(F f) {
    for (const CpuLevel level : {CpuLevel::base, CpuLevel::v3, CpuLevel::v4}) {
        if (level > support::cpu_level()) continue;
        tests::context = "level " + std::to_string(static_cast<int>(level));
        f(policy::kernels_of(level));
    }
}

static double plain(Function function, double x) {
    switch (function) {
        case Function::identity: return x;
        case Function::tanh: return std::tanh(x);
        case Function::relu: return x < 0 ? 0 : x;
        case Function::elu: return x < 0 ? std::expm1(x) : x;
        case Function::silu: return x / (1 + std::exp(-x));
        case Function::gelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
        case Function::leaky_relu: return x < 0 ? 0.01 * x : x;
    }
    return 0;
}

static const Function kFunctions[] = {Function::identity, Function::tanh, Function::relu,      Function::elu,
                                      Function::silu,     Function::gelu, Function::leaky_relu};

TEST(dense) {
    each_level([](const policy::Kernels& kernels) {
        for (const std::size_t inputs : {1, 2, 7, 8, 9, 33, 130})
            for (const std::size_t outputs : {1, 3, 15, 16, 17, 64, 65, 128, 140, 300}) {
                const std::size_t stride = policy::padded(outputs);
                Floats rows(inputs * stride), bias(outputs), x(inputs), out(outputs);
                for (std::size_t i = 0; i < inputs; ++i)
                    for (std::size_t o = 0; o < outputs; ++o) rows.data()[i * stride + o] = static_cast<float>(2 * generator.uniform() - 1);
                fill(bias, outputs, 1);
                fill(x, inputs, 3);
                kernels.dense(rows.data(), bias.data(), x.data(), inputs, outputs, out.data());
                for (std::size_t o = 0; o < outputs; ++o) {
                    double sum = bias.data()[o], size = std::fabs(sum);
                    for (std::size_t i = 0; i < inputs; ++i) {
                        const double term = static_cast<double>(x.data()[i]) * rows.data()[i * stride + o];
                        sum += term;
                        size += std::fabs(term);
                    }
                    CHECK(std::fabs(out.data()[o] - sum) <= 2e-6 * size);
                }
                for (std::size_t o = outputs; o < stride; ++o) CHECK_EQ(out.data()[o], 0.0f);
            }
    });
}

TEST(functions) {
    each_level([](const policy::Kernels& kernels) {
        for (const Function function : kFunctions)
            for (const double scale : {1e-6, 0.1, 1.0, 10.0, 200.0}) {
                constexpr std::size_t kCount = 100;
                Floats x(kCount), out(kCount);
                fill(x, kCount, scale);
                std::copy_n(x.data(), x.size(), out.data());
                kernels.apply(function, out.data(), kCount);
                for (std::size_t i = 0; i < kCount; ++i) {
                    const double expected = plain(function, x.data()[i]);
                    // silu and gelu multiply x by a factor that is accurate to 1.5e-7, as in the Python form.
                    CHECK(std::fabs(out.data()[i] - expected) <= 1e-6 * std::fabs(expected) + 2e-7 * std::fabs(x.data()[i]));
                }
            }
    });
}

TEST(nan_stays_nan) {
    each_level([](const policy::Kernels& kernels) {
        for (const Function function : kFunctions) {
            Floats x(16);
            x.data()[3] = std::numeric_limits<float>::quiet_NaN();
            kernels.apply(function, x.data(), 16);
            for (std::size_t i = 0; i < 16; ++i) CHECK_EQ(std::isnan(x.data()[i]), i == 3);
        }
    });
}

TEST(normalise) {
    each_level([](const policy::Kernels& kernels) {
        constexpr std::size_t kCount = 37;
        Floats mean(kCount), scale(kCount), x(kCount), out(kCount);
        fill(mean, kCount, 2);
        fill(scale, kCount, 3);
        fill(x, kCount, 4);
        std::copy_n(x.data(), x.size(), out.data());
        kernels.normalise(mean.data(), scale.data(), 5.0f, out.data(), kCount);
        for (std::size_t i = 0; i < kCount; ++i) {
            const double plain = (static_cast<double>(x.data()[i]) - mean.data()[i]) * scale.data()[i];
            CHECK(std::fabs(out.data()[i] - std::min(std::max(plain, -5.0), 5.0)) <= 1e-5);
        }
    });
}

TEST(gru) {
    each_level([](const policy::Kernels& kernels) {
        constexpr std::size_t kUnits = 21, kWide = 32;
        Floats gates(4 * kWide), before(kUnits), after(kUnits);
        fill(gates, 4 * kWide, 2);
        fill(before, kUnits, 1);
        const std::vector<float> sums(gates.data(), gates.data() + 4 * kWide);
        kernels.gru(gates.data(), before.data(), kUnits, after.data());
        for (std::size_t u = 0; u < kUnits; ++u) {
            const double reset = std::tanh(sums[u]) + 1, update = (std::tanh(sums[kWide + u]) + 1) / 2;
            const double fresh = std::tanh(sums[2 * kWide + u] + reset * sums[3 * kWide + u]);
            CHECK(std::fabs(after.data()[u] - ((1 - update) * fresh + update * before.data()[u])) <= 2e-6);
        }
    });
}
