#include "support/zstd.h"

#include <new>

namespace rl4sys::support {
namespace {

// From zstd.h. The format without magic number is in its part for static linking; the numbers are the same since 1.4.0.
constexpr int kLevel = 100, kHashLog = 102, kContentSize = 200, kChecksum = 201, kCompressFormat = 10, kExpandFormat = 1000;
constexpr int kMagicless = 1;

}  // namespace

Zstd::Zstd(const ZstdFunctions& functions)
    : functions_(functions), searching_(compressor(0)), counting_(compressor(6)), decompressor_(functions.create_dctx(), functions.free_dctx) {
    if (!decompressor_) throw std::bad_alloc();
    functions_.set_dctx(decompressor_.get(), kExpandFormat, kMagicless);
}

Zstd::Context Zstd::compressor(int hash_log) const {
    Context out(functions_.create_cctx(), functions_.free_cctx);
    if (!out) throw std::bad_alloc();
    functions_.set_cctx(out.get(), kCompressFormat, kMagicless);
    functions_.set_cctx(out.get(), kLevel, 1);
    functions_.set_cctx(out.get(), kContentSize, 0);
    functions_.set_cctx(out.get(), kChecksum, 0);
    if (hash_log) functions_.set_cctx(out.get(), kHashLog, hash_log);
    return out;
}

std::size_t Zstd::compress(std::string_view data, char* out, bool repeats) {
    void* const context = (repeats ? searching_ : counting_).get();
    const std::size_t size = functions_.compress2(context, out, bound(data.size()), data.data(), data.size());
    if (functions_.is_error(size)) throw std::bad_alloc();  // the output is large enough for every input
    return size;
}

char* Zstd::scratch(std::size_t size, std::unique_ptr<char[]>& large) {
    constexpr std::size_t kMostKept = std::size_t{8} << 20;
    if (size > kMostKept) {
        large.reset(new char[size]);  // not filled with zeros
        return large.get();
    }
    if (size > scratch_size_) {
        scratch_size_ = 0;
        scratch_.reset();
        scratch_.reset(new char[size]);
        scratch_size_ = size;
    }
    return scratch_.get();
}

// The bytes of the first frame, from its headers (RFC 8878); 0 if they end too early. zstd itself would go on with a further
// frame behind, and skip some.
static std::size_t frame_bytes(std::string_view data) noexcept {
    const auto byte = [&](std::size_t at) { return static_cast<std::size_t>(static_cast<unsigned char>(data[at])); };
    if (data.empty()) return 0;
    constexpr std::size_t kIdBytes[] = {0, 1, 2, 4}, kSizeBytes[] = {0, 2, 4, 8};
    const std::size_t flags = byte(0);
    const bool single = flags & 0x20;
    std::size_t at = 1 + !single + kIdBytes[flags & 3] + (flags >> 6 ? kSizeBytes[flags >> 6] : single);
    for (bool last = false; !last;) {
        if (at + 3 > data.size()) return 0;
        const std::size_t block = byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16;
        last = block & 1;
        at += 3 + ((block >> 1 & 3) == 1 ? 1 : block >> 3);  // a block of one repeated byte has only this one
    }
    return at + (flags & 4 ? 4 : 0);
}

bool Zstd::expand(std::string_view frame, char* out, std::size_t size) noexcept {
    if (frame_bytes(frame) != frame.size()) return false;
    // The buffer bounds the content, so that a frame that declares more fails.
    const std::size_t got = functions_.decompress(decompressor_.get(), out, size, frame.data(), frame.size());
    return !functions_.is_error(got) && got == size;
}

}  // namespace rl4sys::support
