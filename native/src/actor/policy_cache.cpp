#include "actor/policy_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "hash/xxh3.h"
#include "support/bytes.h"

namespace rl4sys::actor {
namespace {

constexpr std::string_view kMagic = "R4PC";
constexpr std::uint32_t kFormat = 1;
constexpr std::size_t kFields = 32, kFixed = 40, kMaxHeader = 1 << 20;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
constexpr double kInterval = 5.0, kAbandoned = 60.0;  // kAbandoned: age of a temporary file whose writer must have ended
constexpr double kClockSlack = 60.0;                  // of a policy that was saved in the future

[[noreturn]] void invalid(const std::string& why) { throw std::runtime_error(why); }

double unix_time() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

wire::Received fields_of(const wire::Map& map) {
    wire::Received out;
    out.header = map;
    return out;
}

std::uint64_t checksum_of(std::string_view bytes) {
    hash::Xxh3 hasher;
    hasher.update(bytes.substr(0, kFields));
    hasher.update(bytes.substr(kFixed));
    return hasher.digest();
}

// The bytes of a file; nothing if there is none.
std::optional<std::string> read_file(const std::string& path) {
    std::error_code error;
    [[maybe_unused]] const auto named = std::filesystem::file_size(path, error);  // fails for what is no regular file
    if (error == std::errc::no_such_file_or_directory) return std::nullopt;
    if (error) invalid(error.message());
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) invalid(std::strerror(errno));
    const auto size = static_cast<std::uint64_t>(file.tellg());  // of the opened file: another process can replace it
    if (size > kMaxBytes) invalid("its size is out of range");
    file.seekg(0);
    std::string bytes(size, '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(size));
    bytes.resize(static_cast<std::size_t>(file.gcount()));
    return bytes;
}

// Replaces a file, so that it has the old bytes or the new ones after a crash at any moment.
void write_file(const std::string& path, std::string_view bytes) {
    namespace fs = std::filesystem;
    const std::string temporary = path + ".tmp";
    const fs::path folder = fs::absolute(path).parent_path();
    if (fs::create_directories(folder)) fs::permissions(folder, fs::perms::owner_all);
    struct stat old {};
    if (::lstat(temporary.c_str(), &old) == 0 && std::fabs(unix_time() - static_cast<double>(old.st_mtime)) > kAbandoned)
        ::unlink(temporary.c_str());
    const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) invalid(std::strerror(errno));
    for (ssize_t count; !bytes.empty() && (count = ::write(file, bytes.data(), bytes.size())) > 0;)
        bytes.remove_prefix(static_cast<std::size_t>(count));
    const bool written = bytes.empty() && ::fsync(file) == 0 && ::rename(temporary.c_str(), path.c_str()) == 0;
    const std::string why = std::strerror(errno);
    ::close(file);
    if (!written) {
        ::unlink(temporary.c_str());
        invalid(why);
    }
    const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return;
    ::fsync(directory);
    ::close(directory);
}

std::string encode(const wire::Map& document, const weights::Snapshot& snapshot, const wire::Map& extras) {
    std::string header;
    wire::pack(header, wire::Map{{{"library", RL4SYS_VERSION}, {"saved_unix_s", unix_time()}, {"spec", document},
                                  {"generation", snapshot.generation}, {"version", snapshot.version}, {"digest", snapshot.digest},
                                  {"extras", extras}}});
    std::string out(kMagic);
    support::append(out, kFormat);
    support::append(out, std::uint64_t{header.size()});
    support::append(out, std::uint64_t{snapshot.flat.size()});
    support::append(out, std::uint64_t{snapshot.others.size()});  // in 4 bytes; 4 more of the spec's blob, which no layers have
    support::append(out, std::uint64_t{0});
    out += header;
    out += support::bytes_of(snapshot.flat.data(), snapshot.flat.size() * sizeof(float));
    out += snapshot.others;
    support::store(out.data() + kFields, checksum_of(out));
    return out;
}

}  // namespace

CachedPolicy read_cached_policy(std::string_view bytes) {
    if (bytes.size() < kFixed || bytes.size() > kMaxBytes)
        invalid("its size is " + std::to_string(bytes.size()) + " bytes, out of range");
    if (bytes.substr(0, 4) != kMagic) invalid("it is not a policy file of this library");
    const auto format = support::load32(bytes.data() + 4);
    if (format != kFormat) invalid("it has format " + std::to_string(format) + "; this library reads " + std::to_string(kFormat));
    const std::uint64_t header_size = support::load64(bytes.data() + 8), elements = support::load64(bytes.data() + 16);
    const std::uint64_t others = support::load32(bytes.data() + 24), blob = support::load32(bytes.data() + 28);
    const std::uint64_t rest = bytes.size() - kFixed;
    if (header_size > kMaxHeader || elements > rest / 4 || header_size + 4 * elements + others + blob != rest)
        invalid("the lengths in it do not match the size of the file");
    if (checksum_of(bytes) != support::load64(bytes.data() + kFields)) invalid("its checksum does not match");
    const wire::Value header = wire::unpack(bytes.substr(kFixed, header_size));
    const auto* form = header.get<wire::Map>();
    const auto has = [&](const char* key, auto type) { return form->get<decltype(type)>(key) != nullptr; };
    if (!form || form->items.size() != 7 || !has("library", std::string()) || !has("saved_unix_s", 0.0) || !has("spec", wire::Map()) ||
        !has("extras", wire::Map()))
        invalid("its header has unexpected keys or types");
    const wire::Received said = fields_of(*form);
    const auto major = [](const std::string& version) { return version.substr(0, version.find('.')); };
    const std::string& library = said.text("library");
    if (major(library) != major(RL4SYS_VERSION)) invalid("version " + library + " of the library wrote it");
    CachedPolicy out{said.map("spec"), policy::read_spec(said.map("spec")), {}, said.map("extras"), said.number("saved_unix_s")};
    out.snapshot = {said.integer("generation"), said.integer("version"), said.integer("digest"), std::vector<float>(elements),
                    std::string(bytes.substr(kFixed + header_size + 4 * elements, others))};
    if (elements) std::memcpy(out.snapshot.flat.data(), bytes.data() + kFixed + header_size, 4 * elements);
    const weights::TensorSizes tensors(out.spec.tensors);
    tensors.verify_others(out.snapshot.others);
    const std::vector<float>& flat = out.snapshot.flat;
    const bool finite = std::all_of(flat.begin(), flat.end(), [](float x) { return std::isfinite(x); });
    if (tensors.elements != elements || weights::digest_of(flat, out.snapshot.others) != out.snapshot.digest || !finite)
        invalid("its weights do not match its policy");
    return out;
}

void PolicyCache::take_up() {
    const std::string& path = settings_.policy_cache;
    std::string problem = "the cached policy in " + path + " can't be used: ";
    bool aside = false;
    try {
        const std::optional<std::string> bytes = path.empty() ? std::nullopt : read_file(path);
        if (!bytes) return;
        aside = true;
        CachedPolicy cached = read_cached_policy(*bytes);
        aside = false;
        ++counters_["policy_cache.loads"];
        problem = "the policy in " + path + " is not used: ";
        use(std::move(cached));
    } catch (const std::exception& error) {
        ++counters_["policy_cache.refused"];
        if (aside) ::rename(path.c_str(), (path + ".refused").c_str());
        settings_.report(LogLevel::warning, problem + error.what());
    }
}

void PolicyCache::use(CachedPolicy cached) {
    const delivery::Hello& own = settings_.hello;
    const wire::Received extras = fields_of(cached.extras), said = fields_of(extras.map("session_parameters"));
    if (extras.text("client_id") != own.client_id) invalid("it belongs to client '" + extras.text("client_id") + "'");
    for (const auto& [form, theirs] : {std::pair(&own.observation_space, &cached.spec.observations),
                                       std::pair(&own.action_space, &cached.spec.actions)})
        if (!form->items.empty() && !(policy::read_space(*form) == *theirs)) invalid("its spaces are not this actor's");
    if (said.header.items.empty()) invalid("it has no session parameters");
    saved_ = {cached.snapshot.generation, cached.snapshot.version};
    subscriber_.take_up(std::make_shared<const policy::PolicySpec>(std::move(cached.spec)),
                        std::make_shared<const weights::Snapshot>(std::move(cached.snapshot)), std::move(cached.document));
    const double age = unix_time() - cached.saved_unix_s;
    if (age > -kClockSlack) host_.current_at.store(monotonic() - std::max(0.0, age));
    const std::lock_guard<std::mutex> lock(host_.mutex);
    host_.parameters = read_parameters(said);
}

void PolicyCache::save(bool force) {
    const double now = monotonic();
    if (settings_.policy_cache.empty() || (!force && now < next_)) return;
    std::unique_lock<std::mutex> lock(host_.mutex);
    const auto policy = host_.acting.policy;
    const auto parameters = host_.parameters;
    const auto document = host_.document;
    lock.unlock();
    if (!policy || !parameters || policy->shared_spec() != subscriber_.spec()) return;
    const delivery::PolicyVersion version{policy->snapshot().generation, policy->snapshot().version};
    if (version == saved_) return;
    next_ = now + kInterval;
    const auto& its = *parameters;
    const wire::Map said{{
        {"generation", its.generation}, {"algorithm_name", its.algorithm_name}, {"algorithm_type", its.algorithm_type},
        {"rollout_length", its.rollout_length}, {"max_policy_lag", its.max_policy_lag}, {"on_lag", its.on_lag},
        {"max_message_bytes", its.max_message_bytes}, {"max_segment_steps", its.max_segment_steps}, {"inference", its.inference},
        {"no_masks", its.no_masks},
    }};
    const wire::Map extras{{{"client_id", settings_.hello.client_id}, {"session_parameters", said}}};
    try {
        write_file(settings_.policy_cache, encode(*document, policy->snapshot(), extras));
        ++counters_["policy_cache.saves"];
        saved_ = version;
        warned_ = false;
    } catch (const std::exception& error) {
        ++counters_["policy_cache.save_errors"];
        if (!warned_)
            settings_.report(LogLevel::warning, "the policy can't be saved in " + settings_.policy_cache + ": " + error.what());
        warned_ = true;
    }
}

}  // namespace rl4sys::actor
