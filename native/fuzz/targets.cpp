// Targets of libFuzzer: each reads bytes from an untrusted peer, or a configuration. RL4SYS_FUZZED names one of them.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "hash/xxh3.h"
#include "libraries/linked.h"
#include "policy/policy.h"
#include "support/bytes.h"
#include "support/errors.h"
#include "weights/update.h"
#include "wire/segments.h"
#if __has_include("config_loader.h")
#include "config_loader.h"
#endif

namespace rl4sys {
namespace {

void require(bool good) {
    if (!good) std::abort();
}

// An input is a number of frames, their sizes in 4 bytes each, and their bytes (make_vectors.py).
wire::Frames frames_of(std::string_view input) {
    wire::Frames out;
    if (input.empty()) return out;
    const std::size_t count = static_cast<unsigned char>(input[0]);
    if (input.size() < 1 + 4 * count) return out;
    std::string_view bytes = input.substr(1 + 4 * count);
    for (std::size_t n = 0; n < count; ++n) {
        const std::size_t size = std::min<std::size_t>(support::load32(input.data() + 1 + 4 * n), bytes.size());
        out.push_back(bytes.substr(0, size));
        bytes.remove_prefix(size);
    }
    return out;
}

// What is accepted can be encoded, and the result is accepted and equal.
void message(std::string_view input) {
    const wire::Received got = wire::decode(frames_of(input), 1 << 20, false);
    std::vector<std::uint64_t> hashes;
    for (const std::string_view frame : got.body) hashes.push_back(hash::xxh3_64(frame));
    const std::string first = wire::encode(got.kind, got.header, got.body, hashes, got.first_seq, got.count);
    wire::Frames frames{first};
    frames.insert(frames.end(), got.body.begin(), got.body.end());
    const wire::Received again = wire::decode(frames);
    require(wire::encode(again.kind, again.header, got.body, hashes, again.first_seq, again.count) == first);
}

// Every place that is found lies in the body.
void submit(std::string_view input) {
    const wire::Received got = wire::decode(frames_of(input), 1 << 20, false);
    if (got.kind != wire::Kind::submit || !got.list("codings").empty()) return;
    for (const wire::LayoutPlaces& layout : wire::find_columns(got))  // it checks the number of heads
        for (const wire::ColumnPlace& place : layout.columns) require(place.offset + place.bytes <= got.body[0].size());
    for (std::uint32_t n = 0; n < got.count; ++n) wire::is_bad_head(got.bytes("heads").data() + n * wire::kHeadBytes, 1000);
}

// A state that is accepted has the size of the policy. Frames: header, payload, and the weights that the actor holds.
void update(std::string_view input) {
    static support::Zstd zstd(libraries::linked_zstd());
    const wire::Frames frames = frames_of(input);
    if (frames.size() != 3 || frames[2].size() > 1 << 16) return;
    weights::Header header = weights::read_header(frames[0]);
    weights::Tensor whole{"w", {frames[2].size() / sizeof(float)}};
    weights::Snapshot held;
    held.generation = header.generation;
    held.version = header.base_version;
    held.flat.resize(whole.shape[0]);
    if (!held.flat.empty()) std::memcpy(held.flat.data(), frames[2].data(), held.flat.size() * sizeof(float));
    for (float& value : held.flat)
        if (!std::isfinite(value)) value = 0.0f;  // an actor holds no others
    if (held.flat.empty()) whole.shape[0] = held.flat.emplace_back(0.5f) > 0;
    const weights::TensorSizes tensors(std::vector<weights::Tensor>{whole});
    header.payload_bytes = static_cast<std::uint32_t>(frames[1].size());
    header.payload_hash = hash::xxh3_64(frames[1]);
    const weights::Snapshot before = held;
    const weights::Snapshot got = weights::apply_update(header, frames[1], &held, tensors, header.predicted ? &before : nullptr, zstd);
    require(got.flat.size() == held.flat.size());
}

// A policy that is accepted can act.
void spec(std::string_view input) {
    const wire::Value value = wire::unpack(input);
    const auto* map = value.get<wire::Map>();
    if (!map) return;
    const auto described = std::make_shared<const policy::PolicySpec>(policy::read_spec(*map));
    if (described->weights > 1 << 20 || described->features > 1 << 16 || described->actions.size() > 1 << 16) return;
    auto snapshot = std::make_shared<weights::Snapshot>();
    snapshot->flat.assign(described->weights, 0.25f);
    const policy::Policy policy(described, snapshot);
    policy::Sampler sampler({1}, 0.5);
    policy::Scratch scratch(*described);
    const std::vector<float> row(described->features, 0.5f);
    std::vector<float> state(described->state_size);
    policy.act(row.data(), 0, nullptr, true, state.data(), sampler, scratch);
}

#if __has_include("config_loader.h")
// A configuration that is accepted can be written, and is accepted again.
void config(std::string_view input) {
    using cppclient::ConfigLoader;
    const std::string text = ConfigLoader::configToJsonString(ConfigLoader::loadFromString(std::string(input)));
    require(ConfigLoader::configToJsonString(ConfigLoader::loadFromString(text)) == text);
}
#endif

}  // namespace
}  // namespace rl4sys

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        rl4sys::RL4SYS_FUZZED({reinterpret_cast<const char*>(data), size});
    } catch (const rl4sys::ProtocolError&) {
    } catch (const rl4sys::WeightsError&) {
    } catch (const rl4sys::policy::Unsupported&) {
#if __has_include("config_loader.h")
    } catch (const rl4sys::cppclient::ConfigurationError&) {
#endif
    }
    return 0;
}
