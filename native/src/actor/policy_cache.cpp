#include "actor/policy_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "hash/xxh3.h"
#include "support/bytes.h"

namespace rl4sys::actor {
namespace {

constexpr std::string_view kMagic = "R4PC";
constexpr std::uint32_t kFormat = 1;
constexpr std::size_t kFields = 32, kFixed = 40, kMaxHeader = 1 << 20;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
constexpr double kAbandoned = 60.0;  // age of a temporary file, in seconds, whose writer must have ended

[[noreturn]] void invalid(const std::string& why) { throw std::runtime_error(why); }

double unix_time() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string_view flat_bytes(const weights::Snapshot& snapshot) {
    return support::bytes_of(snapshot.flat.data(), snapshot.flat.size() * sizeof(float));
}

std::string_view major(std::string_view version) { return version.substr(0, version.find('.')); }

template <class T>
const T& need(const wire::Map& map, const char* key) {
    const wire::Value* value = map.find(key);
    const T* out = value ? value->get<T>() : nullptr;
    if (!out) invalid("its header has unexpected keys or types");
    return *out;
}

std::uint64_t whole(const wire::Map& map, const char* key) {
    const wire::Value* value = map.find(key);
    if (value && value->get<std::uint64_t>()) return *value->get<std::uint64_t>();
    if (value && value->get<std::int64_t>() && *value->get<std::int64_t>() >= 0)
        return static_cast<std::uint64_t>(*value->get<std::int64_t>());
    invalid("its header has unexpected keys or types");
}

// A descriptor that closes itself.
struct File {
    explicit File(int number) : fd(number) {}
    File(const File&) = delete;
    ~File() {
        if (fd >= 0) ::close(fd);
    }
    int fd;
};

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
    hash::Xxh3 hasher;
    hasher.update(bytes.substr(0, kFields));
    hasher.update(bytes.substr(kFixed));
    if (hasher.digest() != support::load64(bytes.data() + kFields)) invalid("its checksum does not match");
    const wire::Value header = wire::unpack(bytes.substr(kFixed, header_size));
    const auto* form = header.get<wire::Map>();
    if (!form || form->items.size() != 7) invalid("its header has unexpected keys or types");
    const auto& library = need<std::string>(*form, "library");
    if (major(library) != major(RL4SYS_VERSION)) invalid("version " + library + " of the library wrote it");
    CachedPolicy out;
    out.saved_unix_s = need<double>(*form, "saved_unix_s");
    out.document = need<wire::Map>(*form, "spec");
    out.extras = need<wire::Map>(*form, "extras");
    out.spec = policy::read_spec(out.document);
    out.snapshot.generation = whole(*form, "generation");
    out.snapshot.version = whole(*form, "version");
    out.snapshot.digest = whole(*form, "digest");
    out.snapshot.flat.resize(elements);
    if (elements) std::memcpy(out.snapshot.flat.data(), bytes.data() + kFixed + header_size, 4 * elements);
    out.snapshot.others = bytes.substr(kFixed + header_size + 4 * elements, others);
    const weights::TensorSizes tensors(out.spec.tensors);
    tensors.verify_others(out.snapshot.others);
    bool finite = true;
    for (const float x : out.snapshot.flat) finite = finite && std::isfinite(x);
    if (tensors.elements != elements || weights::digest_of(out.snapshot.flat, out.snapshot.others) != out.snapshot.digest ||
        !finite)
        invalid("its weights do not match its policy");
    return out;
}

std::optional<CachedPolicy> PolicyCacheFile::load(std::string& problem) {
    const File file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.fd < 0 && errno == ENOENT) return std::nullopt;
    bool aside = false;
    try {
        struct stat about {};
        if (file.fd < 0 || ::fstat(file.fd, &about) != 0) invalid(std::strerror(errno));
        if (about.st_size < 0 || static_cast<std::uint64_t>(about.st_size) > kMaxBytes) invalid("its size is out of range");
        std::string bytes(static_cast<std::size_t>(about.st_size), '\0');
        std::size_t got = 0;
        for (ssize_t count; got < bytes.size() && (count = ::read(file.fd, bytes.data() + got, bytes.size() - got)) > 0;)
            got += static_cast<std::size_t>(count);
        bytes.resize(got);
        aside = true;
        CachedPolicy out = read_cached_policy(bytes);
        ++counters_["policy_cache.loads"];
        return out;
    } catch (const std::exception& error) {
        problem = "the cached policy in " + path_ + " can't be used: " + error.what();
        ++counters_["policy_cache.refused"];
        if (aside) ::rename(path_.c_str(), (path_ + ".refused").c_str());
        return std::nullopt;
    }
}

bool PolicyCacheFile::save(const wire::Map& document, const weights::Snapshot& snapshot, const wire::Map& extras,
                           std::string& problem) {
    const std::string temporary = path_ + ".tmp";
    try {
        wire::Map form;
        form.set("library", RL4SYS_VERSION);
        form.set("saved_unix_s", unix_time());
        form.set("spec", document);
        form.set("generation", snapshot.generation);
        form.set("version", snapshot.version);
        form.set("digest", snapshot.digest);
        form.set("extras", extras);
        std::string header;
        wire::pack(header, form);
        std::string fixed(kMagic);
        support::append(fixed, kFormat);
        support::append(fixed, std::uint64_t{header.size()});
        support::append(fixed, std::uint64_t{snapshot.flat.size()});
        support::append(fixed, static_cast<std::uint32_t>(snapshot.others.size()));
        support::append(fixed, std::uint32_t{0});
        hash::Xxh3 hasher;
        for (const std::string_view part :
             {std::string_view(fixed), std::string_view(header), flat_bytes(snapshot), std::string_view(snapshot.others)})
            hasher.update(part);
        support::append(fixed, hasher.digest());

        const std::filesystem::path folder = std::filesystem::absolute(path_).parent_path();
        if (!std::filesystem::exists(folder)) {
            std::filesystem::create_directories(folder);
            std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
        }
        struct stat old {};
        if (::lstat(temporary.c_str(), &old) == 0 && std::fabs(unix_time() - static_cast<double>(old.st_mtime)) > kAbandoned)
            ::unlink(temporary.c_str());
        const File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        if (file.fd < 0) invalid(std::strerror(errno));
        bool whole_file = true;
        for (const std::string_view part :
             {std::string_view(fixed), std::string_view(header), flat_bytes(snapshot), std::string_view(snapshot.others)})
            for (std::size_t at = 0; whole_file && at < part.size();) {
                const ssize_t count = ::write(file.fd, part.data() + at, part.size() - at);
                whole_file = count > 0;
                at += whole_file ? static_cast<std::size_t>(count) : 0;
            }
        if (!whole_file || ::fsync(file.fd) != 0 || ::rename(temporary.c_str(), path_.c_str()) != 0) {
            const std::string why = std::strerror(errno);
            ::unlink(temporary.c_str());
            invalid(why);
        }
        const File directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (directory.fd >= 0) ::fsync(directory.fd);
        ++counters_["policy_cache.saves"];
        return true;
    } catch (const std::exception& error) {
        ++counters_["policy_cache.save_errors"];
        problem = "the policy can't be saved in " + path_ + ": " + error.what();
        return false;
    }
}

}  // namespace rl4sys::actor
