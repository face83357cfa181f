// The fast path of an ordinary step: bases of RL4SysAction, RL4SysTrajectory and SegmentWriter whose fields lie at known places,
// and `Steps`, which requests and adds actions. Whatever is not ordinary goes to the methods in Python.
#include <array>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "python/parts.h"

#include <structmember.h>

namespace rl4sys::python {
namespace {

// The fields of an object that are objects themselves come first in all types. Those that Python sees have names, in this order.
enum ActionField {
    kDone, kReward, kLogProb, kMask, kRow, kStamp, kActionWriter,
    kObs, kRaw, kEnvAct, kActionMakers,  // without a place of their own in Python
    kActionFields
};

struct Action {
    PyObject* fields[kActionFields];
    char* lazy;  // the bytes of the observation and of a Box's actions, until Python reads them; null for none
    std::uint32_t observation_bytes, action_size;  // as in Steps, to which an action has no reference: it keeps no weights
};

enum TrajectoryField { kWriter, kLast, kActingPolicy, kUnder, kEpisodes, kRequested, kCompleted, kTrajectoryFields };

struct Trajectory {
    PyObject* fields[kTrajectoryFields];
};

enum WriterField { kWriterStamp, kPending, kLeft, kMasks, kWriterFields };
enum Column { kObservations, kActions, kRewards, kLogProbs, kColumns };

struct Writer {
    PyObject* fields[kWriterFields];
    Py_ssize_t steps, limit, rows, missing;
    Py_buffer columns[kColumns];

    bool bound() const noexcept { return columns[kColumns - 1].obj; }
};

enum StepsField {
    kOwner, kRequest, kNotFinite, kAdd, kArray, kThreads, kQueue, kActionType, kIo, kMakers, kScalars,
    kPolicy, kStampInUse, kChooser,  // of the last thread
    kStepsFields
};

constexpr std::size_t kMostElements = 64;  // SMALL in actor/inputs.py

struct Steps {
    PyObject* fields[kStepsFields];
    std::uint64_t thread;  // the last thread; its number is never used again
    std::size_t elements, item, observation_bytes, action_size;  // action_size: the numbers of a Box action; 0 for a Discrete
    std::int64_t start;
};

bool is_trajectory(PyObject* object) { return PyObject_TypeCheck(object, type_of<Trajectory>); }

// Gives a field a new object, whose reference it takes.
void replace(PyObject*& field, PyObject* owned) noexcept {
    PyObject* const before = field;
    field = owned;
    Py_XDECREF(before);
}

template <class T>
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    for (PyObject* field : held<T>(self).fields) Py_VISIT(field);
    return 0;
}

template <class T>
int clear(PyObject* self) {
    for (PyObject*& field : held<T>(self).fields) Py_CLEAR(field);
    return 0;
}

template <class T>
void release(T&) noexcept {}

void release(Writer& writer) noexcept {
    for (Py_buffer& column : writer.columns) PyBuffer_Release(&column);  // does nothing without an object
}

void release(Action& action) noexcept { PyObject_Free(action.lazy); }

template <class T>
void end(PyObject* self) noexcept {
    PyObject_GC_UnTrack(self);
    release(held<T>(self));
    clear<T>(self);
    free_object(self);
}

constexpr Py_ssize_t place(std::size_t field) { return static_cast<Py_ssize_t>(sizeof(PyObject) + field * sizeof(PyObject*)); }
static_assert(offsetof(Object<Writer>, held.steps) == place(kWriterFields));

// Adds a type with fields. `objects` are the names of the first ones, `numbers` those of integers behind them. Python's
// dataclasses know by `__slots__` that a base has them.
template <class T>
void add_fields(PyObject* module, const char* name, unsigned flags, PyMethodDef* methods, std::vector<PyType_Slot> slots,
                std::initializer_list<const char*> objects = {}, std::initializer_list<const char*> numbers = {},
                PyGetSetDef* made = nullptr) {
    static std::vector<PyMemberDef> members;
    members.clear();  // the module can be imported again
    for (const char* const its : objects) members.push_back({its, T_OBJECT_EX, place(members.size()), 0, nullptr});
    for (const char* const its : numbers) members.push_back({its, T_PYSSIZET, place(members.size()), 0, nullptr});
    wire::List names;
    for (const PyMemberDef& its : members) names.emplace_back(its.name);
    for (const PyGetSetDef* its = made; its && its->name; ++its) names.emplace_back(its->name);
    members.push_back({nullptr, 0, 0, 0, nullptr});
    for (const PyType_Slot& its : {slot(Py_tp_dealloc, end<T>), slot(Py_tp_traverse, traverse<T>), slot(Py_tp_clear, clear<T>),
                                   slot(Py_tp_members, members.data()), slot(Py_tp_methods, methods)})
        slots.push_back(its);
    if (made) slots.push_back(slot(Py_tp_getset, made));
    type_of<T> = add_type(module, name, sizeof(Object<T>), flags | Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, std::move(slots));
    const Ref its = checked(PyList_AsTuple(to_python(std::move(names)).get()));
    if (PyObject_SetAttrString(reinterpret_cast<PyObject*>(type_of<T>), "__slots__", its.get()) < 0) throw PythonError{};
}

// ActionSlots

// Part of the lazy bytes as an object, by one of the functions in Python that the action's `Steps` has for it.
PyObject* get_made(PyObject* self, void* which) noexcept {
    auto& action = held<Action>(self);
    const auto part = reinterpret_cast<std::intptr_t>(which);
    PyObject*& value = action.fields[kObs + part];
    if (!value && action.lazy && action.fields[kActionMakers]) {
        const std::size_t size = action.action_size;
        const std::size_t sizes[] = {action.observation_bytes, size * sizeof(float), size * sizeof(double)};
        const char* const from = std::accumulate(sizes, sizes + part, action.lazy);
        const Ref bytes(PyBytes_FromStringAndSize(from, static_cast<Py_ssize_t>(sizes[part])));
        if (!bytes) return nullptr;
        Ref its(called(PyTuple_GetItem(action.fields[kActionMakers], part), bytes.get()));
        if (!its) return nullptr;
        if (!value) value = its.release();  // otherwise another thread was faster
    }
    if (!value) PyErr_SetString(PyExc_AttributeError, "not set");
    return Py_XNewRef(value);
}

int set_made(PyObject* self, PyObject* value, void* which) noexcept {
    replace(held<Action>(self).fields[kObs + reinterpret_cast<std::intptr_t>(which)], Py_XNewRef(value));
    return 0;
}

PyGetSetDef kMade[] = {
    {"obs", get_made, set_made, nullptr, nullptr},
    {"raw", get_made, set_made, nullptr, reinterpret_cast<void*>(kRaw - kObs)},
    {"env_act", get_made, set_made, nullptr, reinterpret_cast<void*>(kEnvAct - kObs)},
    {},
};

bool is_reward(PyObject* reward, double& value) {
    if (!PyFloat_CheckExact(reward)) return false;
    value = PyFloat_AsDouble(reward);
    return value >= -static_cast<double>(FLT_MAX) && value <= static_cast<double>(FLT_MAX);
}

// The ordinary case of RL4SysAction.update_reward: a float, for a step that is not added or whose segment is open.
PyObject* update_reward(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    const bool named = count == 0 && names && PyTuple_Size(names) == 1 &&
                       PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "reward") == 0;
    if (!named && (count != 1 || names)) {
        PyErr_SetString(PyExc_TypeError, "update_reward takes one argument, reward");
        return nullptr;
    }
    PyObject* const reward = args[0];
    auto& action = held<Action>(self);
    PyObject* const its = action.fields[kActionWriter];
    double value;
    if (its && is_reward(reward, value)) {
        if (its == Py_None) {
            replace(action.fields[kReward], Py_NewRef(reward));
            Py_RETURN_NONE;
        }
        auto& writer = held<Writer>(its);
        if (writer.bound() && writer.fields[kPending] == Py_None && writer.fields[kLeft] == Py_False) {
            const Py_ssize_t row = PyLong_AsSsize_t(action.fields[kRow]);
            if (row >= 0 && row < writer.steps) {
                writer.missing -= action.fields[kReward] == Py_None;
                static_cast<float*>(writer.columns[kRewards].buf)[row] = static_cast<float>(value);
                replace(action.fields[kReward], Py_NewRef(reward));
                Py_RETURN_NONE;
            }
        }
        PyErr_Clear();
    }
    return PyObject_CallMethod(self, "_set_any_reward", "O", reward);
}

PyMethodDef kActionMethods[] = {
    {"update_reward", as_function(update_reward), METH_FASTCALL | METH_KEYWORDS,
     "update_reward($self, reward)\n--\n\nSet the reward, before or after the action is added to a trajectory."},
    {},
};

// WriterSlots

// Holds the memory of the columns.
void bind_columns(Writer& writer, PyObject* observations, PyObject* actions, PyObject* rewards, PyObject* log_probs) {
    release(writer);
    Py_buffer* column = writer.columns;
    for (PyObject* const array : {observations, actions, rewards, log_probs}) {
        if (PyObject_GetBuffer(array, column++, PyBUF_CONTIG) == 0) continue;
        release(writer);
        throw PythonError{};
    }
}

PyMethodDef kWriterMethods[] = {function<bind_columns>("bind_columns"), {}};
PyMethodDef kNoMethods[] = {{}};

// Steps

// Interned names of attributes and methods.
PyObject *name_append, *name_popleft, *name_late, *name_state, *name_policy, *name_stamp, *name_chooser;

// Finds the calling thread's policy, stamp and chooser. False if it has not used the current policy so far.
bool find_thread(Steps& steps, std::uint64_t thread, PyObject* policy) {
    const Ref state(PyObject_GetAttr(steps.fields[kThreads], name_state));
    if (!state) return false;
    Ref its(PyObject_GetAttr(state.get(), name_policy));
    if (!its || its.get() != policy) return false;
    Ref chooser(PyObject_GetAttr(state.get(), name_chooser)), stamp(PyObject_GetAttr(state.get(), name_stamp));
    if (!chooser || !stamp || !holds<Chooser>(chooser.get())) return false;
    // The old objects end after the change, because Python code can run then.
    const Ref old_policy(std::exchange(steps.fields[kPolicy], its.release()));
    const Ref old_stamp(std::exchange(steps.fields[kStampInUse], stamp.release()));
    const Ref old_chooser(std::exchange(steps.fields[kChooser], chooser.release()));
    steps.thread = thread;
    return true;
}

// True if all numbers are finite in float32; they are then in `features`.
template <class T>
bool read_numbers(const void* from, std::size_t count, float* features) {
    double squares = 0.0;
    const T* values = static_cast<const T*>(from);
    for (std::size_t i = 0; i < count; ++i) {
        const auto value = static_cast<double>(values[i]);
        squares += value * value;
        features[i] = static_cast<float>(values[i]);
    }
    constexpr double most = static_cast<double>(FLT_MAX);
    return squares <= most * most;  // false for NaN
}

struct Free {
    void operator()(void* memory) const noexcept { PyObject_Free(memory); }
};
using Memory = std::unique_ptr<char, Free>;

// The bytes of an ordinary observation, with room for a Box's action behind them. Null if it is not ordinary.
Memory read_observation(const Steps& steps, PyObject* obs, float* features) {
    Py_buffer view;
    if (PyObject_GetBuffer(obs, &view, PyBUF_ND | PyBUF_FORMAT) < 0) return nullptr;
    const std::size_t count = steps.elements;
    const bool narrow = steps.item == sizeof(float);
    const bool fits = view.ndim == 1 && static_cast<std::size_t>(view.shape[0]) == count && view.format &&
                      view.format[0] == (narrow ? 'f' : 'd') && !view.format[1];
    Memory out;
    if (fits && (narrow ? read_numbers<float>(view.buf, count, features) : read_numbers<double>(view.buf, count, features))) {
        const std::size_t size = steps.observation_bytes + steps.action_size * (sizeof(float) + sizeof(double));
        out.reset(static_cast<char*>(PyObject_Malloc(size)));
        if (out) std::memcpy(out.get(), view.buf, steps.observation_bytes);
    }
    PyBuffer_Release(&view);
    return out;
}

// Chooses an action for an ordinary request: (trajectory, action). Null if the request is not ordinary.
Ref ordinary_request(Steps& steps, PyObject* traj, PyObject* obs) {
    auto& its = held<Trajectory>(traj);
    PyObject* const policy = its.fields[kUnder];
    // With `swap: episode`, an older policy than the agent's can act.
    if (!policy || policy == Py_None || policy != its.fields[kActingPolicy] || its.fields[kEpisodes] != steps.fields[kOwner])
        return {};
    const auto& writer = held<Writer>(its.fields[kWriter]);
    if (writer.steps >= writer.limit) return {};
    PyObject* const last = its.fields[kLast];
    if (last && last != Py_None && held<Action>(last).fields[kDone] != Py_False) return {};
    const std::uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if ((thread != steps.thread || policy != steps.fields[kPolicy]) && !find_thread(steps, thread, policy)) return {};
    auto& [acting, owner, sampler, scratch, explore] = held<Chooser>(steps.fields[kChooser]);
    if (acting.get() != current_policy(steps.fields[kIo])) return {};
    constexpr Py_ssize_t kMostRequested = 1024;  // MAX_REQUESTED in actor/trajectory.py
    if (PyObject_Size(its.fields[kRequested]) >= kMostRequested) return {};
    {
        const Ref late(PyObject_GetAttr(steps.fields[kQueue], name_late));
        if (!late || PyList_Size(late.get()) != 0) return {};
    }
    float features[kMostElements];
    Memory lazy = read_observation(steps, obs, features);
    if (!lazy) return {};
    const policy::Choice choice = acting->act(features, 0, nullptr, explore, nullptr, sampler, scratch);
    if (!std::isfinite(choice.log_prob))
        return checked(called(steps.fields[kNotFinite], traj, obs));
    PyObject* scalar = nullptr;
    if (!steps.action_size) {
        scalar = PyList_GetItem(steps.fields[kScalars], static_cast<Py_ssize_t>(choice.index - steps.start));
        if (!scalar) return {};
    } else {
        char* const raw = lazy.get() + steps.observation_bytes;
        std::memcpy(raw, choice.raw, steps.action_size * sizeof(float));
        std::memcpy(raw + steps.action_size * sizeof(float), choice.act, steps.action_size * sizeof(double));
    }
    Ref log_prob(PyFloat_FromDouble(choice.log_prob)), stamp(Py_NewRef(steps.fields[kStampInUse]));
    auto* const type = reinterpret_cast<PyTypeObject*>(steps.fields[kActionType]);
    static const auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    // The collector can run code of Python here, and so other requests: what came from the thread's state is copied before.
    const Ref object(log_prob ? alloc(type, 0) : nullptr);
    if (!object) return {};
    auto& action = held<Action>(object.get());
    action.lazy = lazy.release();
    action.observation_bytes = static_cast<std::uint32_t>(steps.observation_bytes);
    action.action_size = static_cast<std::uint32_t>(steps.action_size);
    action.fields[kRaw] = Py_XNewRef(scalar);
    action.fields[kEnvAct] = Py_XNewRef(scalar);
    action.fields[kActionMakers] = Py_NewRef(steps.fields[kMakers]);
    action.fields[kLogProb] = log_prob.release();
    action.fields[kStamp] = stamp.release();
    action.fields[kMask] = Py_NewRef(Py_None);
    action.fields[kReward] = Py_NewRef(Py_None);
    action.fields[kActionWriter] = Py_NewRef(Py_None);
    action.fields[kDone] = Py_NewRef(Py_False);
    const Ref noted(PyObject_CallMethodObjArgs(its.fields[kRequested], name_append, object.get(), nullptr));
    if (!noted) return {};
    return checked(PyTuple_Pack(2, traj, object.get()));
}

// request(traj, obs, mask) -> (trajectory, action)
Ref request(Steps& steps, PyObject* traj, PyObject* obs, PyObject* mask) {
    auto* const array = reinterpret_cast<PyTypeObject*>(steps.fields[kArray]);
    if (traj != Py_None && mask == Py_None && Py_TYPE(obs) == array && is_trajectory(traj)) {
        if (Ref out = ordinary_request(steps, traj, obs)) return out;
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) throw PythonError{};  // of the host's signal handler
        PyErr_Clear();
    }
    return checked(called(steps.fields[kRequest], traj, obs, mask));
}

// Adds an ordinary next step. False if it is not ordinary.
bool ordinary_add(Steps& steps, PyObject* traj, PyObject* object) {
    auto& its = held<Trajectory>(traj);
    auto& action = held<Action>(object);
    if (action.fields[kActionMakers] != steps.fields[kMakers] || its.fields[kEpisodes] != steps.fields[kOwner]) return false;
    auto& writer = held<Writer>(its.fields[kWriter]);
    // What Python has read, the host can have changed.
    if (!writer.bound() || !action.lazy || action.fields[kObs] || (steps.action_size && action.fields[kRaw])) return false;
    if (action.fields[kStamp] != writer.fields[kWriterStamp] || action.fields[kActionWriter] != Py_None) return false;
    if (its.fields[kCompleted] != Py_False) return false;
    if (writer.fields[kMasks] != Py_None || action.fields[kMask] != Py_None) return false;
    if (writer.steps >= writer.limit || writer.steps >= writer.rows) return false;
    PyObject* const requested = its.fields[kRequested];
    {
        const Ref first(PySequence_GetItem(requested, 0));
        if (!first || first.get() != object) return false;
    }
    const bool rewarded = action.fields[kReward] != Py_None;
    const double reward = rewarded ? PyFloat_AsDouble(action.fields[kReward]) : std::numeric_limits<double>::quiet_NaN();
    const double chance = PyFloat_AsDouble(action.fields[kLogProb]);
    const long long index = steps.action_size ? 0 : PyLong_AsLongLong(action.fields[kRaw]);
    Ref number(PyLong_FromSsize_t(writer.steps));
    if (!number || ((reward == -1.0 || chance == -1.0 || index == -1) && PyErr_Occurred())) return false;
    const auto set = [&](Column which, const void* value, std::size_t bytes) {
        std::memcpy(static_cast<char*>(writer.columns[which].buf) + writer.steps * static_cast<Py_ssize_t>(bytes), value, bytes);
    };
    const auto log_prob = static_cast<float>(chance), given = static_cast<float>(reward);
    set(kObservations, action.lazy, steps.observation_bytes);
    if (steps.action_size) set(kActions, action.lazy + steps.observation_bytes, steps.action_size * sizeof(float));
    else set(kActions, &index, sizeof index);
    set(kLogProbs, &log_prob, sizeof log_prob);
    set(kRewards, &given, sizeof given);
    writer.missing += !rewarded;
    ++writer.steps;
    replace(action.fields[kActionWriter], Py_NewRef(its.fields[kWriter]));
    replace(action.fields[kRow], number.release());
    replace(its.fields[kLast], Py_NewRef(object));
    const Ref popped(PyObject_CallMethodObjArgs(requested, name_popleft, nullptr));
    if (!popped) PyErr_Clear();
    return true;
}

Ref add(Steps& steps, PyObject* traj, PyObject* action) {
    auto* const type = reinterpret_cast<PyTypeObject*>(steps.fields[kActionType]);
    if (is_trajectory(traj) && Py_TYPE(action) == type && ordinary_add(steps, traj, action)) return none();
    PyErr_Clear();
    return checked(called(steps.fields[kAdd], traj, action));
}

// `objects` are the first fields.
Ref new_steps(PyObject* objects, std::int64_t start, std::size_t elements, std::size_t item, std::size_t action_size) {
    if (PyTuple_Size(objects) != kPolicy || elements > kMostElements || !is_io(PyTuple_GetItem(objects, kIo)))
        throw std::invalid_argument("no steps of this kind");
    Ref self = allocate(type_of<Steps>);
    auto& steps = held<Steps>(self.get());
    for (int n = 0; n < kPolicy; ++n) steps.fields[n] = Py_NewRef(PyTuple_GetItem(objects, n));
    steps.thread = std::numeric_limits<std::uint64_t>::max();
    steps.start = start;
    steps.elements = elements;
    steps.item = item;
    steps.observation_bytes = elements * item;
    steps.action_size = action_size;
    return self;
}

PyMethodDef kStepsMethods[] = {
    function<request>("request"), function<add>("add"),
    {},
};

}  // namespace

void add_step_types(PyObject* module) {
    for (const auto& [name, text] : {std::pair{&name_append, "append"}, {&name_popleft, "popleft"}, {&name_late, "late"},
                                     {&name_state, "state"}, {&name_policy, "policy"}, {&name_stamp, "stamp"},
                                     {&name_chooser, "chooser"}})
        *name = checked(PyUnicode_InternFromString(text)).release();
    const unsigned base = Py_TPFLAGS_BASETYPE;
    add_fields<Action>(module, "rl4sys_zmq._native.ActionSlots", base, kActionMethods, {},
                       {"done", "known_reward", "log_prob", "mask", "row", "stamp", "writer"}, {}, kMade);
    add_fields<Trajectory>(module, "rl4sys_zmq._native.TrajectorySlots", base, kNoMethods, {},
                           {"writer", "last", "policy", "selected_under", "episodes", "requested", "completed"});
    add_fields<Writer>(module, "rl4sys_zmq._native.WriterSlots", base, kWriterMethods, {}, {"stamp", "pending", "left", "masks"},
                       {"steps", "limit", "rows", "missing"});
    add_fields<Steps>(module, "rl4sys_zmq._native.Steps", 0, kStepsMethods, {slot(Py_tp_new, construct<new_steps>)});
}

}  // namespace rl4sys::python
