// `IoThread`: the I/O thread of one actor for rl4sys_zmq/actor/io/compiled_thread.py. It never holds the GIL.
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <set>

#include "actor/io_thread.h"
#include "libraries/found.h"
#include "python/parts.h"

namespace rl4sys::python {
namespace {

using actor::HostLink;
using actor::LogLevel;
using actor::Notice;
using delivery::Hello;
using Lock = std::lock_guard<std::mutex>;

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
        const Lock lock(mutex_);
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

// A field of a struct by its name in Python.
template <class S, class T>
constexpr auto field(const char* name, T S::*place) {
    return std::make_pair(name, place);
}

constexpr auto kHello = std::make_tuple(
    field("client_id", &Hello::client_id), field("actor_id", &Hello::actor_id), field("incarnation", &Hello::incarnation),
    field("algorithm_name", &Hello::algorithm_name), field("algorithm_parameters", &Hello::algorithm_parameters),
    field("algorithm_type", &Hello::algorithm_type), field("observation_space", &Hello::observation_space),
    field("action_space", &Hello::action_space), field("submits", &Hello::submits), field("library", &Hello::library),
    field("weights", &Hello::weights));

using actor::Settings;
constexpr auto kSettings = std::make_tuple(
    field("address", &Settings::address), field("explore", &Settings::explore), field("drops", &Settings::drops),
    field("compress", &Settings::compress), field("queue_items", &Settings::queue_items),
    field("queue_bytes", &Settings::queue_bytes), field("linger_s", &Settings::linger_s),
    field("send_frequency", &Settings::send_frequency), field("learners_relays", &Settings::learners_relays));

using Parameters = actor::SessionParameters;
constexpr auto kParameters = std::make_tuple(
    field("generation", &Parameters::generation), field("algorithm_name", &Parameters::algorithm_name),
    field("algorithm_type", &Parameters::algorithm_type), field("rollout_length", &Parameters::rollout_length),
    field("max_policy_lag", &Parameters::max_policy_lag), field("on_lag", &Parameters::on_lag),
    field("max_message_bytes", &Parameters::max_message_bytes), field("max_segment_steps", &Parameters::max_segment_steps),
    field("inference", &Parameters::inference), field("no_masks", &Parameters::no_masks));

using Status = actor::SessionStatus;
constexpr auto kStatus = std::make_tuple(
    field("in_flight", &Status::in_flight), field("unreceived", &Status::unreceived), field("accepted", &Status::accepted),
    field("in_doubt", &Status::in_doubt), field("durable", &Status::durable), field("sent_steps", &Status::sent_steps),
    field("credit_steps", &Status::credit_steps));

template <class T>
void read_field(const wire::Map& from, const char* name, T& out) {
    const wire::Value* const value = from.find(name);
    if (!value) throw std::runtime_error(std::string("the settings lack ") + name);
    if constexpr (std::is_unsigned_v<T> && !std::is_same_v<T, bool>) {
        const auto* const large = value->get<std::uint64_t>();
        std::int64_t small = 0;
        if (!large) read_field(from, name, small);
        out = static_cast<T>(large ? *large : static_cast<std::uint64_t>(small));
    } else {
        const T* const found = value->get<T>();
        if (!found) throw std::runtime_error(std::string("the settings have a wrong type of ") + name);
        out = *found;
    }
}

// A struct from a dict in which every key is required.
template <class S, class... F>
void read_fields(const wire::Map& from, S& out, const std::tuple<F...>& fields) {
    std::apply([&](const auto&... its) { (read_field(from, its.first, out.*its.second), ...); }, fields);
}

template <class S, class... F>
wire::Map as_map(const S& from, const std::tuple<F...>& fields) {
    wire::Map out;
    std::apply([&](const auto&... its) { (out.set(its.first, from.*its.second), ...); }, fields);
    return out;
}

wire::Map counts_map(const std::map<std::string, std::uint64_t>& counts) {
    wire::Map out;
    for (const auto& [name, count] : counts) out.set(name, count);
    return out;
}

Settings settings_from(const wire::Map& dict) {
    Settings out;
    read_fields(dict, out.hello, kHello);
    read_fields(dict, out, kSettings);
    wire::List keys;
    read_field(dict, "keys", keys);
    const auto text = [&](std::size_t n) { return std::get<std::string>(keys[n].data); };
    if (keys.size() == 3) out.keys = io::CurveKeys{text(0), text(1), text(2)};
    return out;
}

class Actor;

// All actors of this process. Handlers of fork itself keep their locks, so that none of them is locked for ever in the child: no
// code of Python runs between them. It could pass the GIL to a thread that then waits for one of these locks.
std::mutex actors_mutex;
std::set<Actor*>& actors() {
    static auto* const all = new std::set<Actor*>;
    return *all;
}

// What an `IoThread` holds. Python calls its methods.
class Actor {
public:
    Actor(const wire::Map& its, PyObject* context, bool cache, const io::ZmqFunctions& zmq, const support::ZstdFunctions& zstd)
        : saves_policies_(cache),
          settings_(settings_from(its)),
          context_(Py_NewRef(context)),
          outbox_(settings_.queue_items, settings_.queue_bytes, settings_.drops),
          thread(with_sinks(), outbox_, zmq, address_of(context), zstd) {
        const Lock lock(actors_mutex);
        actors().insert(this);
    }
    Actor(const Actor&) = delete;

    bool is_of_this_process() const noexcept { return pid_ == getpid(); }

    void start() { thread.start(); }
    void request_stop() { thread.request_stop(); }
    void join() {
        const Unlocked unlocked;
        thread.stop();
    }
    void wake() { thread.wake_now(); }
    void wake_unless_resting() { thread.wake_unless_resting(); }

    Ref next_event(double seconds) {
        std::optional<Event> event;
        {
            const Unlocked unlocked;
            event = events_.next(seconds);
        }
        if (!event) return none();
        constexpr int kLevels[] = {10, 20, 30, 40};  // of Python's logging
        const Ref text = to_python(wire::Value(event->text));
        return checked(Py_BuildValue("(siO)", event->kind, kLevels[static_cast<int>(event->level)], text.get()));
    }

    std::uint64_t changes() { return copy(&HostLink::changes); }
    std::uint64_t wait_change(std::uint64_t seen, double seconds) {
        const Unlocked unlocked;
        std::unique_lock<std::mutex> lock(thread.host.mutex);
        thread.host.changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return thread.host.changes != seen; });
        return thread.host.changes;
    }
    void notify() {
        const Lock lock(thread.host.mutex);
        thread.host.notify();
    }

    void put(std::uint64_t generation, std::uint64_t episode, std::uint64_t index, std::uint64_t oldest_version, double total,
             std::uint64_t length, std::uint32_t steps, std::uint8_t flags, std::string_view layout, std::vector<Buffer> held) {
        constexpr std::size_t kLarge = 1 << 18;  // for less, to give the GIL away costs more than it brings
        wire::SegmentNumbers numbers{generation, episode, index, oldest_version, total, length};
        numbers.steps = steps;
        numbers.flags = flags;
        std::vector<std::string_view> columns;
        std::size_t bytes = 0;
        for (const Buffer& buffer : held) {
            columns.push_back(buffer.bytes());
            bytes += columns.back().size();
        }
        const Unlocked unlocked(bytes >= kLarge);
        outbox_.put(std::make_shared<const wire::PackedSegment>(wire::pack_segment(numbers, std::string(layout), columns)));
    }
    void put_dropped(std::string_view reason, std::uint32_t steps) { outbox_.put_dropped(std::string(reason), steps); }
    std::uint64_t put_steps() { return outbox_.counts().put_steps; }

    wire::Map status() {
        constexpr const char* kStates[] = {"joining", "joined", "refused", "closed"};
        const Status status = thread.status();
        wire::Map out = as_map(status, kStatus), verdicts;
        for (std::size_t n = 0; n < delivery::kVerdicts; ++n) verdicts.set(delivery::verdict_names[n], status.verdicts[n]);
        out.set("state", kStates[static_cast<int>(status.state)]);
        out.set("verdicts", std::move(verdicts));
        out.set("counters", counts_map(status.counters));
        out.set("items", std::uint64_t{status.outbox.items});
        out.set("waiting", std::uint64_t{status.waiting()});
        out.set("steps", status.outbox.steps);
        out.set("put_items", status.outbox.put_items);
        out.set("dropped", counts_map(status.outbox.dropped));
        return out;
    }
    wire::Map alarms() { return counts_map(copy(&HostLink::alarms)); }
    double current_at() { return thread.host.current_at; }
    void set_current_at(double seconds) { thread.host.current_at = seconds; }
    double starting_at() { return thread.host.starting_at; }
    std::uint64_t want_steps() { return thread.host.want_steps; }
    void set_want_steps(std::uint64_t steps) { thread.host.want_steps = steps; }
    int count_waiting(int more) { return thread.host.waiting += more; }
    int count_flushing(int more) { return thread.host.flushing += more; }
    void set_leaving(bool leaving) { thread.host.leaving = leaving; }

    // The last is the error that ended the session: kind, code, text, field.
    Ref gate() {
        constexpr const char* kKinds[] = {"refused", "client_failed", "config", "unsupported"};
        wire::List out;
        {
            const HostLink& host = thread.host;
            const Lock lock(host.mutex);  // under which no function of Python may run: it could wait for the GIL
            out = {host.gate.limit_steps, host.gate.generation, host.gate.min_version, host.stage, host.joined, wire::Value()};
            if (const auto& its = host.error)
                out.back() = wire::List{kKinds[static_cast<int>(its->kind)], name_of(its->code), its->text, its->field};
        }
        return checked(PyList_AsTuple(to_python(std::move(out)).get()));
    }

    Ref parameters() {
        const auto its = copy(&HostLink::parameters);
        return its ? to_python(as_map(*its, kParameters)) : none();
    }
    void set_parameters(const wire::Map& dict) {
        Parameters its;
        read_fields(dict, its, kParameters);
        const Lock lock(thread.host.mutex);
        thread.host.parameters = std::move(its);
    }

    const policy::Policy* current() const noexcept { return thread.host.current.load(std::memory_order_acquire); }
    std::uint64_t policy_key() { return reinterpret_cast<std::uintptr_t>(current()); }
    Ref policy() {
        PolicyPointer its = copy(&HostLink::acting).policy;
        return its ? new_object<PolicyPointer>(std::move(its)) : none();
    }
    std::uint64_t document_key() { return copy(&HostLink::documents); }
    Ref document() {
        const auto its = copy(&HostLink::document);
        return its ? to_python(*its) : none();
    }

    bool roll_back(PyObject* bad) { return thread.roll_back(held_of<PolicyPointer>(bad).get()); }
    bool was_rolled_back(std::uint64_t generation, std::uint64_t version) { return thread.was_rolled_back(generation, version); }
    void take_up(wire::Map document, std::uint64_t generation, std::uint64_t version, std::uint64_t digest, const Buffer& weights,
                 const Buffer& others) {
        auto spec = std::make_shared<const policy::PolicySpec>(policy::read_spec(document));
        if (weights.bytes().size() != spec->weights * sizeof(float)) throw std::runtime_error("the weights do not fit the spec");
        auto snapshot = std::make_shared<weights::Snapshot>();
        snapshot->generation = generation;
        snapshot->version = version;
        snapshot->digest = digest;
        snapshot->flat.assign(weights.as<float>(), weights.as<float>() + spec->weights);
        snapshot->others = others.bytes();
        thread.take_up(std::move(spec), std::move(snapshot), std::move(document));
    }

private:
    const Settings& with_sinks() {
        settings_.log = [this](LogLevel level, const std::string& text) { events_.put({"log", level, text}); };
        settings_.notice = [this](Notice notice) {
            const bool ended = notice == Notice::ended;
            if (ended || saves_policies_) events_.put({ended ? "ended" : "policy", LogLevel::info, {}});
        };
        return settings_;
    }

    static void* address_of(PyObject* context) {
        const Ref address = checked(PyObject_GetAttrString(context, "underlying"));
        void* const out = PyLong_AsVoidPtr(address.get());
        if (!out) throw PythonError{};
        return out;
    }

    // A field that is under the lock.
    template <class T>
    T copy(T HostLink::*field) const {
        const Lock lock(thread.host.mutex);
        return thread.host.*field;
    }

    const bool saves_policies_;
    const int pid_ = getpid();
    Events events_;
    Settings settings_;
    const Ref context_;  // the object that owns the ZeroMQ context
    actor::Outbox outbox_;

public:
    actor::IoThread thread;
};

void destroy(Actor& actor) noexcept {
    {
        const Lock lock(actors_mutex);
        actors().erase(&actor);
    }
    // In a forked child, the thread, its sockets and its context stayed with the parent.
    if (actor.is_of_this_process()) actor.~Actor();
}

void hold_all() {
    actors_mutex.lock();
    for (Actor* const actor : actors()) actor->thread.hold();
}

void let_go_all() {
    for (Actor* const actor : actors()) actor->thread.let_go();
    actors_mutex.unlock();
}

Ref new_actor(const wire::Map& settings, PyObject* context, bool has_cache) {
    const auto* const zmq = libraries::find_zmq();
    const auto* const zstd = libraries::find_zstd();
    if (!zmq || !zstd) throw std::runtime_error(libraries::missing());
    return new_object<Actor>(settings, context, has_cache, *zmq, *zstd);
}

PyMethodDef kMethods[] = {
    function<&Actor::start>("start"), function<&Actor::request_stop>("request_stop"), function<&Actor::join>("join"),
    function<&Actor::next_event>("next_event"), function<&Actor::changes>("changes"),
    function<&Actor::wait_change>("wait_change"), function<&Actor::notify>("notify"), function<&Actor::wake>("wake"),
    function<&Actor::wake_unless_resting>("wake_unless_resting"), function<&Actor::put>("put"),
    function<&Actor::put_dropped>("put_dropped"), function<&Actor::put_steps>("put_steps"), function<&Actor::status>("status"),
    function<&Actor::alarms>("alarms"), function<&Actor::current_at>("current_at"),
    function<&Actor::set_current_at>("set_current_at"), function<&Actor::starting_at>("starting_at"),
    function<&Actor::want_steps>("want_steps"), function<&Actor::set_want_steps>("set_want_steps"),
    function<&Actor::count_waiting>("count_waiting"), function<&Actor::count_flushing>("count_flushing"),
    function<&Actor::set_leaving>("set_leaving"), function<&Actor::gate>("gate"), function<&Actor::parameters>("parameters"),
    function<&Actor::set_parameters>("set_parameters"), function<&Actor::policy_key>("policy_key"),
    function<&Actor::policy>("policy"), function<&Actor::document>("document"), function<&Actor::document_key>("document_key"),
    function<&Actor::roll_back>("roll_back"), function<&Actor::was_rolled_back>("was_rolled_back"),
    function<&Actor::take_up>("take_up"),
    {},
};

}  // namespace

bool is_io(PyObject* object) noexcept { return holds<Actor>(object); }

const policy::Policy* current_policy(PyObject* io) noexcept { return held<Actor>(io).current(); }

void add_io_type(PyObject* module) {
    add_type_of<Actor>(module, "rl4sys_zmq._native.IoThread", kMethods, {slot(Py_tp_new, construct<new_actor>)});
    static const int registered = pthread_atfork(hold_all, let_go_all, let_go_all);
    if (registered != 0) throw std::bad_alloc();
}

}  // namespace rl4sys::python
