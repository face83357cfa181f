// Messages: hashes, and the learner's fast path for the most frequent form of a Submit.
#include "hash/xxh3.h"
#include "python/parts.h"
#include "support/bytes.h"
#include "support/errors.h"
#include "wire/codec.h"
#include "wire/segments.h"

namespace rl4sys::python {
namespace {

constexpr std::size_t kKindAt = 6, kStepsAt = 56, kCheckAt = 48, kPadding = wire::kAlign - 1;
constexpr std::uint64_t kAnySteps = 0xFFFFFFFF;
constexpr Py_ssize_t kSimpleFrames = 2;

std::uint64_t xxh3_64(PyObject* data) { return hash::xxh3_64(Buffer(data).bytes()); }

// The numbers of type T at a place of all heads.
template <class T>
Ref numbers_of(std::string_view heads, std::size_t at) {
    return list_of(heads.size() / wire::kHeadBytes, [&](std::size_t n) {
        return checked(PyLong_FromUnsignedLongLong(support::load<T>(heads.data() + n * wire::kHeadBytes + at)));
    });
}

// A sound Submit with one layout, one frame and no codings as a tuple; None for any other message, which Python then decodes.
Ref read_submit(PyObject* frames, std::uint64_t max_bytes, bool verify) {
    if (PySequence_Size(frames) != kSimpleFrames) return none();
    const Ref first = checked(PySequence_GetItem(frames, 0)), second = checked(PySequence_GetItem(frames, 1));
    const Buffer head(first.get()), body(second.get());
    if (head.bytes().size() < wire::kPrefixBytes || head.bytes()[kKindAt] != static_cast<char>(wire::Kind::submit)) return none();
    wire::Received submit;
    try {
        submit = wire::decode({head.bytes(), body.bytes()}, max_bytes, verify);
        if (submit.list("layouts").size() != 1 || !submit.list("codings").empty()) return none();
        wire::find_columns(submit);
    } catch (const ProtocolError&) {
        return none();
    }
    const std::string& heads = submit.bytes("heads");
    for (std::size_t at = 0; at < heads.size(); at += wire::kHeadBytes)
        if (wire::is_bad_head(heads.data() + at, kAnySteps)) return none();
    const std::string& layout = *submit.list("layouts")[0].get<std::string>();
    const Ref steps = numbers_of<std::uint32_t>(heads, kStepsAt), checks = numbers_of<std::uint64_t>(heads, kCheckAt);
    return checked(Py_BuildValue("(KIKs#y#OO)", static_cast<unsigned long long>(submit.first_seq), submit.count,
                                 static_cast<unsigned long long>(submit.integer("want_steps")), layout.data(),
                                 static_cast<Py_ssize_t>(layout.size()), heads.data(), static_cast<Py_ssize_t>(heads.size()),
                                 steps.get(), checks.get()));
}

// The frame of one message with the segments of several messages that `read_submit` has accepted, all of one layout.
Ref join_bodies(std::string_view layout, std::vector<Buffer> all_heads, std::vector<Buffer> bodies) {
    std::vector<std::string> parts(wire::parse_layout(layout).size());
    wire::Received submit;
    submit.kind = wire::Kind::submit;
    for (std::size_t n = 0; n < all_heads.size(); ++n) {
        const std::string_view heads = all_heads[n].bytes(), body = bodies.at(n).bytes();
        submit.header.items.clear();
        submit.header.set("layouts", wire::List{std::string(layout)});
        submit.header.set("heads", wire::Bytes{std::string(heads)});
        submit.count = static_cast<std::uint32_t>(heads.size() / wire::kHeadBytes);
        submit.body = {body};
        const wire::LayoutPlaces places = wire::find_columns(submit).at(0);
        auto part = parts.begin();
        for (const auto& column : places.columns) part++->append(body.substr(column.offset, column.bytes));
    }
    std::string out;
    for (const std::string& part : parts) {
        out.append(part);
        out.resize((out.size() + kPadding) / wire::kAlign * wire::kAlign);
    }
    return bytes_object(out);
}

}  // namespace

PyMethodDef codec_functions[] = {
    function<xxh3_64>("xxh3_64"), function<read_submit>("read_submit"), function<join_bodies>("join_bodies"),
    {},
};

}  // namespace rl4sys::python
