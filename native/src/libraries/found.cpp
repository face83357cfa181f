#include "libraries/found.h"

#include <dlfcn.h>

namespace rl4sys::libraries {
namespace {

template <class F>
bool bind(void* library, const char* name, F& out) noexcept {
    out = reinterpret_cast<F>(dlsym(library, name));
    return out != nullptr;
}

bool load_zstd(support::ZstdFunctions& out) noexcept {
    void* const library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    return library && bind(library, "ZSTD_createCCtx", out.create_cctx) && bind(library, "ZSTD_freeCCtx", out.free_cctx) &&
           bind(library, "ZSTD_createDCtx", out.create_dctx) && bind(library, "ZSTD_freeDCtx", out.free_dctx) &&
           bind(library, "ZSTD_CCtx_setParameter", out.set_cctx) && bind(library, "ZSTD_DCtx_setParameter", out.set_dctx) &&
           bind(library, "ZSTD_compress2", out.compress2) && bind(library, "ZSTD_decompressDCtx", out.decompress) &&
           bind(library, "ZSTD_compressBound", out.bound) && bind(library, "ZSTD_isError", out.is_error);
}

}  // namespace

const support::ZstdFunctions* find_zstd() noexcept {
    static support::ZstdFunctions functions;
    static const bool found = load_zstd(functions);
    return found ? &functions : nullptr;
}

}  // namespace rl4sys::libraries
