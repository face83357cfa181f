// Compression of message parts with zstd, without zstd's magic number, size and checksum.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace rl4sys::support {

/// The functions of libzstd that the library uses. CMake links them; the Python extension finds them at run time.
struct ZstdFunctions {
    void* (*create_cctx)();
    std::size_t (*free_cctx)(void*);
    void* (*create_dctx)();
    std::size_t (*free_dctx)(void*);
    std::size_t (*set_cctx)(void*, int, int);
    std::size_t (*set_dctx)(void*, int, int);
    std::size_t (*compress2)(void*, void*, std::size_t, const void*, std::size_t);
    std::size_t (*decompress)(void*, void*, std::size_t, const void*, std::size_t);
    std::size_t (*bound)(std::size_t);
    unsigned (*is_error)(std::size_t);
};

/// The compressors and the decompressor of one thread, and memory for what it compresses.
class Zstd {
public:
    explicit Zstd(const ZstdFunctions& functions);

    /// The most bytes of a frame with `size` bytes.
    std::size_t bound(std::size_t size) const noexcept { return functions_.bound(size); }

    /// Writes one frame at level 1 to `out`, which has room for `bound` bytes. Returns its size. Without `repeats`, it hardly
    /// searches for repeated parts.
    std::size_t compress(std::string_view data, char* out, bool repeats = true);

    /// Memory for `size` bytes, until the next call. It stays allocated: `large` gets memory that is too large for that.
    char* scratch(std::size_t size, std::unique_ptr<char[]>& large);

    /// Writes the content of a frame, exactly `size` bytes, to `out`. False if the frame is damaged or has another size.
    bool expand(std::string_view frame, char* out, std::size_t size) noexcept;

private:
    using Context = std::unique_ptr<void, std::size_t (*)(void*)>;

    Context compressor(int hash_log) const;

    const ZstdFunctions& functions_;
    Context searching_, counting_, decompressor_;
    std::unique_ptr<char[]> scratch_;  // kept, because fresh memory takes longer than to fill it
    std::size_t scratch_size_ = 0;
};

}  // namespace rl4sys::support
