// `IoThread`: the I/O thread of one actor for rl4sys_zmq/actor/io/compiled_thread.py. It never holds the GIL.
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <set>
#include <stdexcept>

#include "actor/io_thread.h"
#include "libraries/found.h"
#include "python/parts.h"
#include "python/policy_type.h"

namespace rl4sys::python {
namespace {

using actor::LogLevel;
using actor::Notice;

// What the watch thread handles: a line of the log, or a notice.
struct Event {
    const char* kind;
    LogLevel level = LogLevel::info;
    std::string text;
};

// The events between the I/O thread and the watch thread.
class Events {
public:
    void put(Event event) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const bool repeats = event.text.empty() && !items_.empty() && items_.back().kind == event.kind;
        if (!repeats && (items_.size() < kMost || event.text.empty())) items_.push_back(std::move(event));
        changed_.notify_one();
    }

    std::optional<Event> next(double seconds) noexcept {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return !items_.empty(); });
        if (items_.empty()) return std::nullopt;
        std::optional<Event> out(std::move(items_.front()));
        items_.pop_front();
        return out;
    }

private:
    static constexpr std::size_t kMost = 1000;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Event> items_;
};

struct Actor {
    Actor(actor::Settings its, bool has_cache, void* context, const io::ZmqFunctions& zmq, const support::ZstdFunctions& zstd)
        : saves_policies(has_cache), settings(std::move(its)), outbox(settings.queue_items, settings.queue_bytes, settings.drops), thread(with_sinks(), outbox, zmq, context, zstd) {}

    const actor::Settings& with_sinks() {
        settings.log = [this](LogLevel level, const std::string& text) { events.put({"log", level, text}); };
        settings.notice = [this](Notice notice) {
            if (notice == Notice::ended || saves_policies) events.put({notice == Notice::policy ? "policy" : "ended", LogLevel::info, {}});
        };
        return settings;
    }

    const bool saves_policies;
    Events events;
    actor::Settings settings;
    actor::Outbox outbox;
    actor::IoThread thread;
};

struct IoObject {
    PyObject_HEAD
    Actor* actor;
    PyObject* context;  // the object that owns the ZeroMQ context
    int pid;
};

Actor& actor_of(PyObject* self) { return *reinterpret_cast<IoObject*>(self)->actor; }

// The settings, from a dict in which every key is required.
class Reader {
public:
    explicit Reader(wire::Map map) : map_(std::move(map)) {}

    const wire::Value& at(const char* key) const {
        const wire::Value* value = map_.find(key);
        if (!value) throw std::runtime_error(std::string("the settings lack ") + key);
        return *value;
    }
    template <class T>
    const T& get(const char* key) const {
        const T* value = at(key).get<T>();
        if (!value) throw std::runtime_error(std::string("the settings have a wrong type of ") + key);
        return *value;
    }
    std::uint64_t number(const char* key) const {
        const wire::Value& value = at(key);
        if (const auto* large = value.get<std::uint64_t>()) return *large;
        return static_cast<std::uint64_t>(get<std::int64_t>(key));
    }

private:
    wire::Map map_;
};

actor::Settings settings_from(PyObject* dict) {
    const Reader read(map_from_python(dict));
    actor::Settings out;
    out.hello.client_id = read.get<std::string>("client_id");
    out.hello.actor_id = read.get<std::string>("actor_id");
    out.hello.incarnation = read.number("incarnation");
    out.hello.algorithm_name = read.get<std::string>("algorithm_name");
    out.hello.algorithm_parameters = read.get<wire::Map>("algorithm_parameters");
    out.hello.algorithm_type = read.get<std::string>("algorithm_type");
    out.hello.observation_space = read.get<wire::Map>("observation_space");
    out.hello.action_space = read.get<wire::Map>("action_space");
    out.hello.submits = read.get<bool>("submits");
    out.hello.library = read.get<std::string>("library");
    out.hello.weights = read.get<wire::Map>("weights");
    out.address = read.get<std::string>("address");
    if (const auto& keys = read.get<wire::List>("keys"); keys.size() == 3) {
        const auto text = [&](std::size_t n) { return keys[n].get<std::string>() ? *keys[n].get<std::string>() : std::string(); };
        out.keys = io::CurveKeys{text(0), text(1), text(2)};
    }
    out.explore = read.get<bool>("explore");
    out.drops = read.get<bool>("drops");
    out.compress = read.get<bool>("compress");
    out.queue_items = read.number("queue_items");
    out.queue_bytes = read.number("queue_bytes");
    out.linger_s = read.get<double>("linger_s");
    out.send_frequency = static_cast<std::uint32_t>(read.number("send_frequency"));
    out.learners_relays = read.get<bool>("learners_relays");
    return out;
}

// All actors of this process. Handlers of fork itself keep their locks, so that none of them is locked for ever in the child: no
// code of Python runs between them. It could pass the GIL to a thread that then waits for one of these locks.
std::mutex actors_mutex;
std::set<Actor*>& actors() {
    static auto* const all = new std::set<Actor*>;
    return *all;
}

void hold_all() {
    actors_mutex.lock();
    for (Actor* const actor : actors()) actor->thread.hold();
}

void let_go_all() {
    for (Actor* const actor : actors()) actor->thread.let_go();
    actors_mutex.unlock();
}

PyTypeObject* io_class = nullptr;  // the type of the module, which has no second instance

PyObject* io_new(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&] {
        PyObject *dict = nullptr, *context = nullptr;
        int has_cache = 0;
        if (!PyArg_ParseTuple(args, "OOp", &dict, &context, &has_cache)) throw PythonError{};
        const auto *zmq = libraries::find_zmq();
        const auto* zstd = libraries::find_zstd();
        if (!zmq || !zstd) throw std::runtime_error(libraries::missing());
        const Ref address = checked(PyObject_GetAttrString(context, "underlying"));
        void* const raw = PyLong_AsVoidPtr(address.get());
        if (!raw) throw PythonError{};
        auto owned = std::make_unique<Actor>(settings_from(dict), has_cache != 0, raw, *zmq, *zstd);
        auto* const alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
        Ref out = checked(alloc(type, 0));
        auto* self = reinterpret_cast<IoObject*>(out.get());
        {
            const std::lock_guard<std::mutex> lock(actors_mutex);
            actors().insert(owned.get());
        }
        self->actor = owned.release();
        self->context = Py_NewRef(context);
        self->pid = getpid();
        return out;
    });
}

void io_dealloc(PyObject* self) {
    auto* io = reinterpret_cast<IoObject*>(self);
    // In a forked child, the thread, its sockets and its context stayed with the parent.
    if (io->pid == getpid()) {
        {
            const std::lock_guard<std::mutex> lock(actors_mutex);
            actors().erase(io->actor);
        }
        delete io->actor;
        Py_XDECREF(io->context);
    }
    PyTypeObject* const type = Py_TYPE(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyObject* none() { return Py_NewRef(Py_None); }

PyObject* io_start(PyObject* self, PyObject*) {
    return guarded([&] {
        actor_of(self).thread.start();
        return Ref(none());
    });
}

PyObject* io_request_stop(PyObject* self, PyObject*) {
    actor_of(self).thread.request_stop();
    return none();
}

// These functions wait without the GIL.
PyObject* io_join(PyObject* self, PyObject*) {
    PyThreadState* const state = PyEval_SaveThread();
    actor_of(self).thread.stop();
    take_gil(state);
    return none();
}

PyObject* event_tuple(const std::optional<Event>& event) noexcept {
    if (!event) return none();
    static constexpr int kLevels[] = {10, 20, 30, 40};  // of Python's logging
    PyObject* const text = PyUnicode_DecodeUTF8(event->text.data(), static_cast<Py_ssize_t>(event->text.size()), "replace");
    return text ? Py_BuildValue("(siN)", event->kind, kLevels[static_cast<int>(event->level)], text) : nullptr;
}

PyObject* io_next_event(PyObject* self, PyObject* seconds) {
    const double most = PyFloat_AsDouble(seconds);
    if (PyErr_Occurred()) return nullptr;
    PyThreadState* const state = PyEval_SaveThread();
    const std::optional<Event> event = actor_of(self).events.next(most);
    take_gil(state);
    return event_tuple(event);
}

std::uint64_t wait_change(actor::HostLink& host, std::uint64_t seen, double seconds) noexcept {
    std::unique_lock<std::mutex> lock(host.mutex);
    host.changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return host.changes != seen; });
    return host.changes;
}

PyObject* io_wait_change(PyObject* self, PyObject* args) {
    unsigned long long seen = 0;
    double seconds = 0.0;
    if (!PyArg_ParseTuple(args, "Kd", &seen, &seconds)) return nullptr;
    PyThreadState* const state = PyEval_SaveThread();
    const std::uint64_t changes = wait_change(actor_of(self).thread.host, seen, seconds);
    take_gil(state);
    return PyLong_FromUnsignedLongLong(changes);
}

PyObject* io_changes(PyObject* self, PyObject*) {
    const actor::HostLink& host = actor_of(self).thread.host;
    const std::lock_guard<std::mutex> lock(host.mutex);
    return PyLong_FromUnsignedLongLong(host.changes);
}

PyObject* io_notify(PyObject* self, PyObject*) {
    actor::HostLink& host = actor_of(self).thread.host;
    const std::lock_guard<std::mutex> lock(host.mutex);
    host.notify();
    return none();
}

PyObject* io_wake(PyObject* self, PyObject*) {
    actor_of(self).thread.wake_now();
    return none();
}

PyObject* io_wake_unless_resting(PyObject* self, PyObject*) {
    actor_of(self).thread.wake_unless_resting();
    return none();
}

// A segment that is being packed.
struct Packing {
    wire::SegmentNumbers numbers;
    std::string layout;
    std::vector<Buffer> held;
    std::vector<std::string_view> columns;
    std::size_t bytes = 0;
    std::exception_ptr error;

    void run(actor::Outbox& outbox) noexcept {
        try {
            outbox.put(std::make_shared<const wire::PackedSegment>(wire::pack_segment(numbers, std::move(layout), columns)));
        } catch (...) {
            error = std::current_exception();
        }
    }
};

bool parse_put(PyObject* args, Packing& out) noexcept {
    const Ref done(guarded([&] {
        const char* layout = nullptr;
        PyObject* columns = nullptr;
        unsigned long long numbers[4], length = 0;
        unsigned int steps = 0;
        unsigned char flags = 0;
        if (!PyArg_ParseTuple(args, "(KKKKdKIb)sO", &numbers[0], &numbers[1], &numbers[2], &numbers[3], &out.numbers.episode_return, &length,
                              &steps, &flags, &layout, &columns))
            throw PythonError{};
        out.numbers.generation = numbers[0];
        out.numbers.episode_id = numbers[1];
        out.numbers.segment_index = numbers[2];
        out.numbers.oldest_version = numbers[3];
        out.numbers.episode_length = length;
        out.numbers.steps = steps;
        out.numbers.flags = flags;
        out.layout = layout;
        for (Py_ssize_t n = 0; n < PyList_Size(columns); ++n) {
            out.held.emplace_back(PyList_GetItem(columns, n));
            out.columns.push_back(out.held.back().bytes());
            out.bytes += out.columns.back().size();
        }
        if (PyErr_Occurred()) throw PythonError{};
        return Ref(none());
    }));
    return static_cast<bool>(done);
}

PyObject* io_put(PyObject* self, PyObject* args) {
    constexpr std::size_t kLarge = 1 << 18;  // for less, to give the GIL away costs more than it brings
    Packing packing;
    if (!parse_put(args, packing)) return nullptr;
    if (packing.bytes >= kLarge) {
        PyThreadState* const state = PyEval_SaveThread();
        packing.run(actor_of(self).outbox);
        take_gil(state);
    } else {
        packing.run(actor_of(self).outbox);
    }
    return guarded([&] {
        if (packing.error) std::rethrow_exception(packing.error);
        return Ref(none());
    });
}

PyObject* io_put_dropped(PyObject* self, PyObject* args) {
    return guarded([&] {
        const char* reason = nullptr;
        unsigned int steps = 0;
        if (!PyArg_ParseTuple(args, "sI", &reason, &steps)) throw PythonError{};
        actor_of(self).outbox.put_dropped(reason, steps);
        return Ref(none());
    });
}

wire::Map counts_map(const std::map<std::string, std::uint64_t>& counts) {
    wire::Map out;
    for (const auto& [name, count] : counts) out.set(name, count);
    return out;
}

const char* name_of_state(delivery::State state) noexcept {
    constexpr const char* kNames[] = {"joining", "joined", "refused", "closed"};
    return kNames[static_cast<int>(state)];
}

PyObject* io_status(PyObject* self, PyObject*) {
    return guarded([&] {
        const actor::SessionStatus status = actor_of(self).thread.status();
        wire::Map out, verdicts;
        for (std::size_t n = 0; n < delivery::kVerdicts; ++n) verdicts.set(delivery::verdict_names[n], status.verdicts[n]);
        out.set("state", name_of_state(status.state));
        out.set("in_flight", status.in_flight);
        out.set("unreceived", status.unreceived);
        out.set("accepted", status.accepted);
        out.set("in_doubt", status.in_doubt);
        out.set("durable", status.durable);
        out.set("sent_steps", status.sent_steps);
        out.set("credit_steps", status.credit_steps);
        out.set("verdicts", std::move(verdicts));
        out.set("counters", counts_map(status.counters));
        out.set("items", std::uint64_t{status.outbox.items});
        out.set("waiting", std::uint64_t{status.waiting()});
        out.set("steps", status.outbox.steps);
        out.set("put_items", status.outbox.put_items);
        out.set("put_steps", status.outbox.put_steps);
        out.set("dropped", counts_map(status.outbox.dropped));
        return to_python(out);
    });
}

PyObject* io_alarms(PyObject* self, PyObject*) {
    return guarded([&] {
        const actor::HostLink& host = actor_of(self).thread.host;
        std::unique_lock<std::mutex> lock(host.mutex);
        const auto alarms = host.alarms;
        lock.unlock();
        return to_python(counts_map(alarms));
    });
}

PyObject* io_waiting_segments(PyObject* self, PyObject*) { return PyLong_FromSize_t(actor_of(self).thread.short_status().waiting()); }

PyObject* io_idle(PyObject* self, PyObject*) {
    const actor::SessionStatus status = actor_of(self).thread.short_status();
    return PyBool_FromLong(!status.waiting() && !status.in_flight);
}

PyObject* io_put_steps(PyObject* self, PyObject*) { return PyLong_FromUnsignedLongLong(actor_of(self).outbox.counts().put_steps); }

PyObject* io_state(PyObject* self, PyObject*) { return PyUnicode_FromString(name_of_state(actor_of(self).thread.short_status().state)); }

PyObject* io_gate(PyObject* self, PyObject*) {
    return guarded([&] {
        const actor::HostLink& host = actor_of(self).thread.host;
        std::unique_lock<std::mutex> lock(host.mutex);
        const actor::CreditGate gate = host.gate;
        const std::string stage = host.stage;
        lock.unlock();
        return checked(Py_BuildValue("(LKKs#)", static_cast<long long>(gate.limit_steps), static_cast<unsigned long long>(gate.generation),
                                     static_cast<unsigned long long>(gate.min_version), stage.data(), static_cast<Py_ssize_t>(stage.size())));
    });
}

// (kind, code, text, field) of the error that ended the session, or None.
PyObject* io_error(PyObject* self, PyObject*) {
    return guarded([&] {
        const actor::HostLink& host = actor_of(self).thread.host;
        std::unique_lock<std::mutex> lock(host.mutex);
        const std::optional<actor::SessionError> error = host.error;
        lock.unlock();
        if (!error) return Ref(none());
        constexpr const char* kKinds[] = {"refused", "client_failed", "config", "unsupported"};
        wire::List out{kKinds[static_cast<int>(error->kind)], name_of(error->code), error->text, error->field};
        return checked(PyList_AsTuple(to_python(wire::Value(std::move(out))).get()));
    });
}

PyObject* io_joined(PyObject* self, PyObject*) {
    const actor::HostLink& host = actor_of(self).thread.host;
    const std::lock_guard<std::mutex> lock(host.mutex);
    return PyBool_FromLong(host.joined);
}

PyObject* io_parameters(PyObject* self, PyObject*) {
    return guarded([&] {
        const actor::HostLink& host = actor_of(self).thread.host;
        std::unique_lock<std::mutex> lock(host.mutex);
        const std::optional<actor::SessionParameters> held = host.parameters;
        lock.unlock();
        if (!held) return Ref(none());
        wire::Map out;
        out.set("generation", held->generation);
        out.set("algorithm_name", held->algorithm_name);
        out.set("algorithm_type", held->algorithm_type);
        out.set("rollout_length", held->rollout_length);
        out.set("max_policy_lag", held->max_policy_lag);
        out.set("on_lag", held->on_lag);
        out.set("max_message_bytes", held->max_message_bytes);
        out.set("max_segment_steps", held->max_segment_steps);
        out.set("inference", held->inference);
        out.set("no_masks", held->no_masks);
        return to_python(out);
    });
}

PyObject* io_set_parameters(PyObject* self, PyObject* dict) {
    return guarded([&] {
        const Reader read(map_from_python(dict));
        actor::SessionParameters out;
        out.generation = read.number("generation");
        out.algorithm_name = read.get<std::string>("algorithm_name");
        out.algorithm_type = read.get<std::string>("algorithm_type");
        out.rollout_length = read.number("rollout_length");
        out.max_policy_lag = read.get<std::int64_t>("max_policy_lag");
        out.on_lag = read.get<std::string>("on_lag");
        out.max_message_bytes = read.number("max_message_bytes");
        out.max_segment_steps = read.number("max_segment_steps");
        out.inference = read.get<std::string>("inference");
        out.no_masks = read.get<std::string>("no_masks");
        actor::HostLink& host = actor_of(self).thread.host;
        const std::lock_guard<std::mutex> lock(host.mutex);
        host.parameters = std::move(out);
        return Ref(none());
    });
}

PyObject* io_policy_key(PyObject* self, PyObject*) {
    return PyLong_FromVoidPtr(const_cast<policy::Policy*>(actor_of(self).thread.host.current.load(std::memory_order_acquire)));
}

PyObject* io_policy(PyObject* self, PyObject*) {
    return guarded([&] {
        const actor::HostLink& host = actor_of(self).thread.host;
        std::unique_lock<std::mutex> lock(host.mutex);
        std::shared_ptr<const policy::Policy> policy = host.acting.policy;
        lock.unlock();
        return policy ? policy_object(std::move(policy)) : Ref(none());
    });
}

// The spec as a Welcome has it, and an integer that identifies it; None before the first.
PyObject* io_document(PyObject* self, PyObject*) {
    return guarded([&] {
        const actor::HostLink& host = actor_of(self).thread.host;
        std::unique_lock<std::mutex> lock(host.mutex);
        const std::shared_ptr<const wire::Map> document = host.document;
        lock.unlock();
        return document ? to_python(*document) : Ref(none());
    });
}

PyObject* io_document_key(PyObject* self, PyObject*) {
    const actor::HostLink& host = actor_of(self).thread.host;
    const std::lock_guard<std::mutex> lock(host.mutex);
    return PyLong_FromUnsignedLongLong(host.documents);
}

PyObject* io_roll_back(PyObject* self, PyObject* bad) {
    return guarded([&] { return checked(PyBool_FromLong(actor_of(self).thread.roll_back(policy_of(bad).get()))); });
}

PyObject* io_was_rolled_back(PyObject* self, PyObject* args) {
    unsigned long long generation = 0, version = 0;
    if (!PyArg_ParseTuple(args, "KK", &generation, &version)) return nullptr;
    return PyBool_FromLong(actor_of(self).thread.was_rolled_back(generation, version));
}

// take_up(document, generation, version, digest, weights, others)
PyObject* io_take_up(PyObject* self, PyObject* args) {
    return guarded([&] {
        PyObject *document = nullptr, *flat = nullptr, *others = nullptr;
        unsigned long long numbers[3];
        if (!PyArg_ParseTuple(args, "OKKKOO", &document, &numbers[0], &numbers[1], &numbers[2], &flat, &others)) throw PythonError{};
        wire::Map form = map_from_python(document);
        auto spec = std::make_shared<const policy::PolicySpec>(policy::read_spec(form));
        auto snapshot = std::make_shared<weights::Snapshot>();
        snapshot->generation = numbers[0];
        snapshot->version = numbers[1];
        snapshot->digest = numbers[2];
        const Buffer weights(flat), rest(others);
        if (weights.bytes().size() != spec->weights * sizeof(float)) throw std::runtime_error("the weights do not fit the spec");
        snapshot->flat.resize(spec->weights);
        std::memcpy(snapshot->flat.data(), weights.bytes().data(), weights.bytes().size());
        snapshot->others = rest.bytes();
        actor_of(self).thread.take_up(std::move(spec), std::move(snapshot), std::move(form));
        return Ref(none());
    });
}

PyMethodDef kMethods[] = {
    {"start", io_start, METH_NOARGS, "Start the thread."},
    {"request_stop", io_request_stop, METH_NOARGS, "Ask the thread to send Bye and to end."},
    {"join", io_join, METH_NOARGS, "Stop the thread, and wait for its end."},
    {"next_event", io_next_event, METH_O, "Return the next (kind, level, text), or None after the given seconds."},
    {"changes", io_changes, METH_NOARGS, "The number of changes for which waiting host threads are woken."},
    {"wait_change", io_wait_change, METH_VARARGS, "Wait for a change after the given number, for at most the given seconds."},
    {"notify", io_notify, METH_NOARGS, "Wake the waiting host threads."},
    {"wake", io_wake, METH_NOARGS, "Wake the thread."},
    {"wake_unless_resting", io_wake_unless_resting, METH_NOARGS, "Wake the thread, unless it reads the outbox soon anyway."},
    {"put", io_put, METH_VARARGS, "Pack a finished segment, and queue it."},
    {"put_dropped", io_put_dropped, METH_VARARGS, "Count a finished segment as dropped."},
    {"status", io_status, METH_NOARGS, "All numbers of the session and the outbox at one moment."},
    {"alarms", io_alarms, METH_NOARGS, "The alarms that the learner's last beacon reports."},
    {"waiting_segments", io_waiting_segments, METH_NOARGS, "The number of segments that the session does not have."},
    {"idle", io_idle, METH_NOARGS, "True if the learner has recorded all finished segments."},
    {"put_steps", io_put_steps, METH_NOARGS, "The number of finished steps."},
    {"state", io_state, METH_NOARGS, "The state of the session."},
    {"gate", io_gate, METH_NOARGS, "The credit gate: (limit, generation, least version, stage)."},
    {"error", io_error, METH_NOARGS, "The error that ended the session: (kind, code, text, field)."},
    {"joined", io_joined, METH_NOARGS, "True once a session has begun."},
    {"parameters", io_parameters, METH_NOARGS, "The session parameters, or None."},
    {"set_parameters", io_set_parameters, METH_O, "Set the session parameters, before the start."},
    {"policy_key", io_policy_key, METH_NOARGS, "The key of the current policy; 0 without one."},
    {"policy", io_policy, METH_NOARGS, "The current policy, or None."},
    {"document", io_document, METH_NOARGS, "The policy spec as the last Welcome had it, or None."},
    {"document_key", io_document_key, METH_NOARGS, "A number that changes with the document."},
    {"roll_back", io_roll_back, METH_O, "Go back from the given policy. Return False if there is no earlier one."},
    {"was_rolled_back", io_was_rolled_back, METH_VARARGS, "True if this (generation, version) was found to be bad."},
    {"take_up", io_take_up, METH_VARARGS, "Start with a policy of an earlier start, or of the parent of this process."},
    {nullptr, nullptr, 0, nullptr},
};

// The numbers that host threads set.
template <class T>
T& field_of(PyObject* self, void* which) {
    actor::HostLink& host = actor_of(self).thread.host;
    if constexpr (std::is_same_v<T, std::atomic<double>>) return which ? host.starting_at : host.current_at;
    else return which ? host.flushing : host.waiting;
}

PyObject* get_time(PyObject* self, void* which) { return PyFloat_FromDouble(field_of<std::atomic<double>>(self, which).load()); }

int set_time(PyObject* self, PyObject* value, void* which) {
    const double seconds = PyFloat_AsDouble(value);
    if (PyErr_Occurred()) return -1;
    field_of<std::atomic<double>>(self, which).store(seconds);
    return 0;
}

PyObject* get_count(PyObject* self, void* which) { return PyLong_FromLong(field_of<std::atomic<int>>(self, which).load()); }

int set_count(PyObject* self, PyObject* value, void* which) {
    const long count = PyLong_AsLong(value);
    if (PyErr_Occurred()) return -1;
    field_of<std::atomic<int>>(self, which).store(static_cast<int>(count));
    return 0;
}

PyObject* get_want(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(actor_of(self).thread.host.want_steps.load()); }

int set_want(PyObject* self, PyObject* value, void*) {
    const unsigned long long steps = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) return -1;
    actor_of(self).thread.host.want_steps.store(steps);
    return 0;
}

PyObject* get_leaving(PyObject* self, void*) { return PyBool_FromLong(actor_of(self).thread.host.leaving.load()); }

int set_leaving(PyObject* self, PyObject* value, void*) {
    actor_of(self).thread.host.leaving.store(PyObject_IsTrue(value) == 1);
    return 0;
}

int second_place;
void* const kSecond = &second_place;

PyGetSetDef kFields[] = {
    {"current_at", get_time, set_time, "Monotonic time of the learner's last message.", nullptr},
    {"starting_at", get_time, set_time, "Monotonic time at which the learner last answered that it starts.", kSecond},
    {"waiting", get_count, set_count, "The number of host threads that wait for credit.", nullptr},
    {"flushing", get_count, set_count, "The number of host threads that wait for acknowledgements.", kSecond},
    {"want_steps", get_want, set_want, "The steps for which host threads ask credit, since the start.", nullptr},
    {"leaving", get_leaving, set_leaving, "True: send segments without credit too.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot kSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(io_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(io_dealloc)},
    {Py_tp_methods, kMethods},
    {Py_tp_getset, kFields},
    {0, nullptr},
};

PyType_Spec kSpec = {"rl4sys_zmq._native.IoThread", sizeof(IoObject), 0, Py_TPFLAGS_DEFAULT, kSlots};

}  // namespace

bool is_io(PyObject* object) noexcept { return Py_TYPE(object) == io_class; }

const policy::Policy* current_policy(PyObject* io) noexcept { return actor_of(io).thread.host.current.load(std::memory_order_acquire); }

void add_io_type(PyObject* module) {
    io_class = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&kSpec)).release());
    if (PyModule_AddType(module, io_class) < 0) throw PythonError{};
    static const int registered = pthread_atfork(hold_all, let_go_all, let_go_all);
    if (registered != 0) throw std::bad_alloc();
}

}  // namespace rl4sys::python
