// The fast path of an ordinary step: bases of RL4SysAction, RL4SysTrajectory and SegmentWriter whose fields lie at known places,
// and `Steps`, which requests and adds actions. Whatever is not ordinary goes to the methods in Python.
#include <array>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "python/parts.h"
#include "python/policy_type.h"

#include <structmember.h>

namespace rl4sys::python {
namespace {

// The fields of an object that are objects themselves. They come first in all types, so that one traversal serves them.
template <std::size_t N>
struct Fields {
    PyObject_HEAD
    PyObject* fields[N];
};

enum ActionField { kDone, kEnvAct, kReward, kLogProb, kMask, kObs, kRaw, kRow, kStamp, kActionWriter, kActionMakers, kActionFields };

struct ActionObject {
    PyObject_HEAD
    PyObject* fields[kActionFields];
    char* lazy;  // the bytes of the observation and of a Box's actions, until Python reads them; null for none
    std::uint32_t observation_bytes, action_size;  // as in StepsObject, to which an action has no reference: it keeps no weights
};

enum TrajectoryField { kWriter, kLast, kActingPolicy, kUnder, kEpisodes, kRequested, kCompleted, kTrajectoryFields };

using TrajectoryObject = Fields<kTrajectoryFields>;

enum WriterField { kWriterStamp, kPending, kLeft, kMasks, kWriterFields };
enum Column { kObservations, kActions, kRewards, kLogProbs, kColumns };

struct WriterObject {
    PyObject_HEAD
    PyObject* fields[kWriterFields];
    Py_ssize_t steps, limit, rows, missing;
    Py_buffer columns[kColumns];
    bool bound;
};

enum StepsField {
    kOwner, kRequest, kAdd, kArray, kThreads, kQueue, kActionType, kIo, kMakers, kScalars,
    kPolicy, kStampInUse, kChooser,  // of the last thread
    kStepsFields
};

constexpr std::size_t kMostElements = 64;  // SMALL in actor/inputs.py

struct StepsObject {
    PyObject_HEAD
    PyObject* fields[kStepsFields];
    std::uint64_t thread;  // the last thread; its number is never used again
    std::size_t elements, item, observation_bytes, action_size;  // action_size: the numbers of a Box action; 0 for a Discrete
    std::int64_t start;
};

PyTypeObject* trajectory_class = nullptr;  // the types of the module, which has no second instance

bool is_trajectory(PyObject* object) { return PyObject_TypeCheck(object, trajectory_class); }

// Gives a field a new object, whose reference it takes.
void replace(PyObject*& field, PyObject* owned) noexcept {
    PyObject* const before = field;
    field = owned;
    Py_XDECREF(before);
}

template <std::size_t N>
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    for (PyObject* field : reinterpret_cast<Fields<N>*>(self)->fields) Py_VISIT(field);
    return 0;
}

template <std::size_t N>
int clear(PyObject* self) {
    for (PyObject*& field : reinterpret_cast<Fields<N>*>(self)->fields) Py_CLEAR(field);
    return 0;
}

void unbind(WriterObject& writer) noexcept {
    if (!writer.bound) return;
    writer.bound = false;
    for (Py_buffer& column : writer.columns) PyBuffer_Release(&column);
}

void drop_lazy(ActionObject& action) noexcept {
    PyObject_Free(action.lazy);
    action.lazy = nullptr;
}

template <std::size_t N>
void dealloc(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear<N>(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

void action_dealloc(PyObject* self) {
    drop_lazy(*reinterpret_cast<ActionObject*>(self));
    dealloc<kActionFields>(self);
}

void writer_dealloc(PyObject* self) {
    unbind(*reinterpret_cast<WriterObject*>(self));
    dealloc<kWriterFields>(self);
}

template <class T>
constexpr Py_ssize_t place(std::size_t field) {
    return static_cast<Py_ssize_t>(offsetof(T, fields) + field * sizeof(PyObject*));
}

// ActionSlots

// Part of the lazy bytes as an object, by one of the functions in Python that the action's `Steps` has for it.
enum Maker { kMakeObservation, kMakeRaw, kMakeAct };

PyObject* made(ActionObject& action, std::size_t field, Maker maker) {
    PyObject*& value = action.fields[field];
    if (!value && action.lazy && action.fields[kActionMakers]) {
        const std::size_t raw = action.action_size * sizeof(float), act = action.action_size * sizeof(double);
        const char* from = action.lazy + (maker == kMakeObservation ? 0 : action.observation_bytes + (maker == kMakeRaw ? 0 : raw));
        const std::size_t size = maker == kMakeObservation ? action.observation_bytes : maker == kMakeRaw ? raw : act;
        PyObject* const bytes = PyBytes_FromStringAndSize(from, static_cast<Py_ssize_t>(size));
        if (!bytes) return nullptr;
        PyObject* const its = PyObject_CallFunctionObjArgs(PyTuple_GetItem(action.fields[kActionMakers], maker), bytes, nullptr);
        Py_DECREF(bytes);
        if (!its) return nullptr;
        if (value)  // another thread was faster
            Py_DECREF(its);
        else
            value = its;
    }
    if (!value) PyErr_SetString(PyExc_AttributeError, "not set");
    return Py_XNewRef(value);
}

template <std::size_t field, Maker maker>
PyObject* get_made(PyObject* self, void*) {
    return made(*reinterpret_cast<ActionObject*>(self), field, maker);
}

template <std::size_t field>
int set_made(PyObject* self, PyObject* value, void*) {
    replace(reinterpret_cast<ActionObject*>(self)->fields[field], Py_XNewRef(value));
    return 0;
}

bool is_reward(PyObject* reward, double& value) {
    if (!PyFloat_CheckExact(reward)) return false;
    value = PyFloat_AsDouble(reward);
    return value >= -static_cast<double>(FLT_MAX) && value <= static_cast<double>(FLT_MAX);
}

// The ordinary case of RL4SysAction.update_reward: a float, for a step that is not added or whose segment is open.
PyObject* action_update_reward(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    const bool named = count == 0 && names && PyTuple_Size(names) == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "reward") == 0;
    if (!named && (count != 1 || names)) {
        PyErr_SetString(PyExc_TypeError, "update_reward takes one argument, reward");
        return nullptr;
    }
    PyObject* const reward = args[0];
    auto& action = *reinterpret_cast<ActionObject*>(self);
    PyObject* const its = action.fields[kActionWriter];
    double value;
    if (its && is_reward(reward, value)) {
        if (its == Py_None) {
            replace(action.fields[kReward], Py_NewRef(reward));
            Py_RETURN_NONE;
        }
        auto& writer = *reinterpret_cast<WriterObject*>(its);
        if (writer.bound && writer.fields[kPending] == Py_None && writer.fields[kLeft] == Py_False) {
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

template <class F>
PyCFunction as_method(F f) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(f));
}

PyMemberDef kActionMembers[] = {
    {"done", T_OBJECT_EX, place<ActionObject>(kDone), 0, nullptr},
    {"known_reward", T_OBJECT_EX, place<ActionObject>(kReward), 0, nullptr},
    {"log_prob", T_OBJECT_EX, place<ActionObject>(kLogProb), 0, nullptr},
    {"mask", T_OBJECT_EX, place<ActionObject>(kMask), 0, nullptr},
    {"row", T_OBJECT_EX, place<ActionObject>(kRow), 0, nullptr},
    {"stamp", T_OBJECT_EX, place<ActionObject>(kStamp), 0, nullptr},
    {"writer", T_OBJECT_EX, place<ActionObject>(kActionWriter), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef kActionFieldsMade[] = {
    {"obs", get_made<kObs, kMakeObservation>, set_made<kObs>, nullptr, nullptr},
    {"raw", get_made<kRaw, kMakeRaw>, set_made<kRaw>, nullptr, nullptr},
    {"env_act", get_made<kEnvAct, kMakeAct>, set_made<kEnvAct>, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef kActionMethods[] = {
    {"update_reward", as_method(action_update_reward), METH_FASTCALL | METH_KEYWORDS,
     "update_reward($self, reward)\n--\n\nSet the reward, before or after the action is added to a trajectory."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot kActionSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(action_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse<kActionFields>)},
    {Py_tp_clear, reinterpret_cast<void*>(clear<kActionFields>)},
    {Py_tp_members, kActionMembers},
    {Py_tp_getset, kActionFieldsMade},
    {Py_tp_methods, kActionMethods},
    {0, nullptr},
};

// TrajectorySlots

PyMemberDef kTrajectoryMembers[] = {
    {"writer", T_OBJECT_EX, place<TrajectoryObject>(kWriter), 0, nullptr},
    {"last", T_OBJECT_EX, place<TrajectoryObject>(kLast), 0, nullptr},
    {"policy", T_OBJECT_EX, place<TrajectoryObject>(kActingPolicy), 0, nullptr},
    {"selected_under", T_OBJECT_EX, place<TrajectoryObject>(kUnder), 0, nullptr},
    {"episodes", T_OBJECT_EX, place<TrajectoryObject>(kEpisodes), 0, nullptr},
    {"requested", T_OBJECT_EX, place<TrajectoryObject>(kRequested), 0, nullptr},
    {"completed", T_OBJECT_EX, place<TrajectoryObject>(kCompleted), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot kTrajectorySlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc<kTrajectoryFields>)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse<kTrajectoryFields>)},
    {Py_tp_clear, reinterpret_cast<void*>(clear<kTrajectoryFields>)},
    {Py_tp_members, kTrajectoryMembers},
    {0, nullptr},
};

// WriterSlots

// Holds the memory of the columns: of observations, actions, rewards and log-probabilities.
PyObject* writer_bind(PyObject* self, PyObject* args) {
    auto& writer = *reinterpret_cast<WriterObject*>(self);
    unbind(writer);
    std::array<PyObject*, kColumns> objects{};
    if (!PyArg_ParseTuple(args, "OOOO", &objects[0], &objects[1], &objects[2], &objects[3])) return nullptr;
    for (std::size_t n = 0; n < kColumns; ++n) {
        if (PyObject_GetBuffer(objects[n], &writer.columns[n], PyBUF_CONTIG) < 0) {
            while (n) PyBuffer_Release(&writer.columns[--n]);
            return nullptr;
        }
    }
    writer.bound = true;
    Py_RETURN_NONE;
}

PyMemberDef kWriterMembers[] = {
    {"stamp", T_OBJECT_EX, place<WriterObject>(kWriterStamp), 0, nullptr},
    {"pending", T_OBJECT_EX, place<WriterObject>(kPending), 0, nullptr},
    {"left", T_OBJECT_EX, place<WriterObject>(kLeft), 0, nullptr},
    {"masks", T_OBJECT_EX, place<WriterObject>(kMasks), 0, nullptr},
    {"steps", T_PYSSIZET, offsetof(WriterObject, steps), 0, nullptr},
    {"limit", T_PYSSIZET, offsetof(WriterObject, limit), 0, nullptr},
    {"rows", T_PYSSIZET, offsetof(WriterObject, rows), 0, nullptr},
    {"missing", T_PYSSIZET, offsetof(WriterObject, missing), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyMethodDef kWriterMethods[] = {
    {"bind_columns", writer_bind, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot kWriterSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(writer_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse<kWriterFields>)},
    {Py_tp_clear, reinterpret_cast<void*>(clear<kWriterFields>)},
    {Py_tp_members, kWriterMembers},
    {Py_tp_methods, kWriterMethods},
    {0, nullptr},
};

constexpr unsigned kBase = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;
PyType_Spec kActionSpec = {"rl4sys_zmq._native.ActionSlots", sizeof(ActionObject), 0, kBase, kActionSlots};
PyType_Spec kTrajectorySpec = {"rl4sys_zmq._native.TrajectorySlots", sizeof(TrajectoryObject), 0, kBase, kTrajectorySlots};
PyType_Spec kWriterSpec = {"rl4sys_zmq._native.WriterSlots", sizeof(WriterObject), 0, kBase, kWriterSlots};

// Steps

// Interned names of attributes and methods.
PyObject* name_append = nullptr;
PyObject* name_popleft = nullptr;
PyObject* name_late = nullptr;
PyObject* name_state = nullptr;
PyObject* name_policy = nullptr;
PyObject* name_stamp = nullptr;
PyObject* name_chooser = nullptr;

PyObject*& field(StepsObject& steps, StepsField which) { return steps.fields[which]; }

// Finds the calling thread's policy, stamp and chooser. False if it has not used the current policy so far.
bool find_thread(StepsObject& steps, std::uint64_t thread, PyObject* policy) {
    const Ref state(PyObject_GetAttr(field(steps, kThreads), name_state));
    if (!state) return false;
    Ref its(PyObject_GetAttr(state.get(), name_policy));
    if (!its || its.get() != policy) return false;
    Ref chooser(PyObject_GetAttr(state.get(), name_chooser)), stamp(PyObject_GetAttr(state.get(), name_stamp));
    if (!chooser || !stamp || !is_chooser(chooser.get())) return false;
    // The old objects end after the change, because Python code can run then.
    const Ref old_policy(std::exchange(field(steps, kPolicy), its.release()));
    const Ref old_stamp(std::exchange(field(steps, kStampInUse), stamp.release()));
    const Ref old_chooser(std::exchange(field(steps, kChooser), chooser.release()));
    steps.thread = thread;
    return true;
}

// True if all numbers are finite in float32; the copy of the observation is at `to`, as float32 in `features`.
template <class T>
bool read_observation(const void* from, std::size_t count, float* features) {
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

// Chooses an action for an ordinary request. Null without an exception if the request is not ordinary.
PyObject* ordinary_request(StepsObject& steps, PyObject* traj, PyObject* obs) {
    auto& its = *reinterpret_cast<TrajectoryObject*>(traj);
    PyObject* const policy = its.fields[kUnder];
    // With `swap: episode`, an older policy than the agent's can act.
    if (its.fields[kEpisodes] != field(steps, kOwner) || !policy || policy == Py_None || policy != its.fields[kActingPolicy]) return nullptr;
    const auto& writer = *reinterpret_cast<WriterObject*>(its.fields[kWriter]);
    if (writer.steps >= writer.limit) return nullptr;
    PyObject* const last = its.fields[kLast];
    if (last && last != Py_None && reinterpret_cast<ActionObject*>(last)->fields[kDone] != Py_False) return nullptr;
    const std::uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if ((thread != steps.thread || policy != field(steps, kPolicy)) && !find_thread(steps, thread, policy)) return nullptr;
    const Chooser chooser = chooser_of(field(steps, kChooser));
    if (&chooser.policy != current_policy(field(steps, kIo))) return nullptr;
    constexpr Py_ssize_t kMostRequested = 1024;  // MAX_REQUESTED in actor/trajectory.py
    if (PyObject_Size(its.fields[kRequested]) >= kMostRequested) return nullptr;
    {
        const Ref late(PyObject_GetAttr(field(steps, kQueue), name_late));
        if (!late || PyList_Size(late.get()) != 0) return nullptr;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(obs, &view, PyBUF_ND | PyBUF_FORMAT) < 0) return nullptr;
    const char format = steps.item == 4 ? 'f' : 'd';
    const bool fits = view.ndim == 1 && static_cast<std::size_t>(view.shape[0]) == steps.elements && view.format && view.format[0] == format &&
                      !view.format[1];
    float features[kMostElements];
    char* lazy = nullptr;
    bool finite = false;
    if (fits) {
        finite = steps.item == 4 ? read_observation<float>(view.buf, steps.elements, features)
                                 : read_observation<double>(view.buf, steps.elements, features);
        if (finite) {
            lazy = static_cast<char*>(PyObject_Malloc(steps.observation_bytes + steps.action_size * (sizeof(float) + sizeof(double))));
            if (lazy) std::memcpy(lazy, view.buf, steps.observation_bytes);
        }
    }
    PyBuffer_Release(&view);
    if (!lazy) return nullptr;
    const policy::Choice choice = chooser.policy.act(features, 0, nullptr, chooser.explore, nullptr, chooser.sampler, chooser.scratch);
    PyObject* scalar = nullptr;
    if (!steps.action_size) {
        scalar = PyList_GetItem(field(steps, kScalars), static_cast<Py_ssize_t>(choice.index - steps.start));
    } else {
        char* const raw = lazy + steps.observation_bytes;
        std::memcpy(raw, choice.raw, steps.action_size * sizeof(float));
        std::memcpy(raw + steps.action_size * sizeof(float), choice.act, steps.action_size * sizeof(double));
    }
    Ref log_prob(PyFloat_FromDouble(choice.log_prob)), stamp(Py_NewRef(field(steps, kStampInUse)));
    auto* const type = reinterpret_cast<PyTypeObject*>(field(steps, kActionType));
    static const auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    // The collector can run code of Python here, and so other requests: what came from the thread's state is copied before.
    PyObject* const object = std::isfinite(choice.log_prob) && log_prob && (scalar || steps.action_size) ? alloc(type, 0) : nullptr;
    if (!object) {
        PyObject_Free(lazy);
        return nullptr;
    }
    auto& action = *reinterpret_cast<ActionObject*>(object);
    action.lazy = lazy;
    action.observation_bytes = static_cast<std::uint32_t>(steps.observation_bytes);
    action.action_size = static_cast<std::uint32_t>(steps.action_size);
    if (scalar) {
        action.fields[kRaw] = Py_NewRef(scalar);
        action.fields[kEnvAct] = Py_NewRef(scalar);
    }
    action.fields[kActionMakers] = Py_NewRef(field(steps, kMakers));
    action.fields[kLogProb] = log_prob.release();
    action.fields[kStamp] = stamp.release();
    action.fields[kMask] = Py_NewRef(Py_None);
    action.fields[kReward] = Py_NewRef(Py_None);
    action.fields[kActionWriter] = Py_NewRef(Py_None);
    action.fields[kDone] = Py_NewRef(Py_False);
    const Ref noted(PyObject_CallMethodObjArgs(its.fields[kRequested], name_append, object, nullptr));
    if (!noted) {
        Py_DECREF(object);
        return nullptr;
    }
    return object;
}

// request(traj, obs, mask) -> (trajectory, action)
PyObject* steps_request(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    auto& steps = *reinterpret_cast<StepsObject*>(self);
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "request takes a trajectory, an observation and a mask");
        return nullptr;
    }
    PyObject *traj = args[0], *obs = args[1];
    if (traj != Py_None && args[2] == Py_None && Py_TYPE(obs) == reinterpret_cast<PyTypeObject*>(field(steps, kArray)) &&
        is_trajectory(traj)) {
        PyObject* const action = ordinary_request(steps, traj, obs);
        if (action) {
            PyObject* const out = PyTuple_Pack(2, traj, action);
            Py_DECREF(action);
            return out;
        }
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;  // of the host's signal handler
        PyErr_Clear();
    }
    return PyObject_CallFunctionObjArgs(field(steps, kRequest), traj, obs, args[2], nullptr);
}

// Adds an ordinary next step. False if it is not ordinary.
bool ordinary_add(StepsObject& steps, PyObject* traj, PyObject* object) {
    auto& its = *reinterpret_cast<TrajectoryObject*>(traj);
    auto& action = *reinterpret_cast<ActionObject*>(object);
    if (action.fields[kActionMakers] != field(steps, kMakers) || its.fields[kEpisodes] != field(steps, kOwner)) return false;
    auto& writer = *reinterpret_cast<WriterObject*>(its.fields[kWriter]);
    // What Python has read, the host can have changed.
    if (!writer.bound || !action.lazy || action.fields[kObs] || (steps.action_size && action.fields[kRaw])) return false;
    if (action.fields[kStamp] != writer.fields[kWriterStamp] || action.fields[kActionWriter] != Py_None || its.fields[kCompleted] != Py_False)
        return false;
    if (writer.steps >= writer.limit || writer.steps >= writer.rows || writer.fields[kMasks] != Py_None || action.fields[kMask] != Py_None)
        return false;
    PyObject* const requested = its.fields[kRequested];
    {
        const Ref first(PySequence_GetItem(requested, 0));
        if (!first || first.get() != object) return false;
    }
    const Py_ssize_t row = writer.steps;
    double reward = std::numeric_limits<double>::quiet_NaN();
    if (action.fields[kReward] != Py_None) {
        reward = PyFloat_AsDouble(action.fields[kReward]);
        if (PyErr_Occurred()) return false;
    }
    const Ref number(PyLong_FromSsize_t(row));
    if (!number) return false;
    const auto column = [&](Column which, std::size_t bytes) { return static_cast<char*>(writer.columns[which].buf) + row * static_cast<Py_ssize_t>(bytes); };
    std::memcpy(column(kObservations, steps.observation_bytes), action.lazy, steps.observation_bytes);
    if (!steps.action_size) {
        const long long index = PyLong_AsLongLong(action.fields[kRaw]);
        if (index == -1 && PyErr_Occurred()) return false;
        std::memcpy(column(kActions, sizeof index), &index, sizeof index);
    } else {
        std::memcpy(column(kActions, steps.action_size * sizeof(float)), action.lazy + steps.observation_bytes, steps.action_size * sizeof(float));
    }
    const double chance = PyFloat_AsDouble(action.fields[kLogProb]);
    if (chance == -1.0 && PyErr_Occurred()) return false;
    const auto log_prob = static_cast<float>(chance), given = static_cast<float>(reward);
    std::memcpy(column(kLogProbs, sizeof log_prob), &log_prob, sizeof log_prob);
    std::memcpy(column(kRewards, sizeof given), &given, sizeof given);
    writer.missing += action.fields[kReward] == Py_None;
    replace(action.fields[kActionWriter], Py_NewRef(its.fields[kWriter]));
    replace(action.fields[kRow], Py_NewRef(number.get()));
    writer.steps = row + 1;
    replace(its.fields[kLast], Py_NewRef(object));
    const Ref popped(PyObject_CallMethodObjArgs(requested, name_popleft, nullptr));
    if (!popped) PyErr_Clear();
    return true;
}

// add(traj, action)
PyObject* steps_add(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    auto& steps = *reinterpret_cast<StepsObject*>(self);
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "add takes a trajectory and an action");
        return nullptr;
    }
    if (is_trajectory(args[0]) && Py_TYPE(args[1]) == reinterpret_cast<PyTypeObject*>(field(steps, kActionType)) &&
        ordinary_add(steps, args[0], args[1]))
        Py_RETURN_NONE;
    PyErr_Clear();
    return PyObject_CallFunctionObjArgs(field(steps, kAdd), args[0], args[1], nullptr);
}

// Steps(episodes, request, add, ndarray, threads, queue, action type, io, makers, scalars, start, elements, item, action size)
PyObject* steps_new(PyTypeObject* type, PyObject* args, PyObject*) {
    std::array<PyObject*, kPolicy> objects{};
    long long start = 0;
    Py_ssize_t elements = 0, item = 0, action_size = 0;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOLnnn", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4], &objects[5], &objects[6],
                          &objects[7], &objects[8], &objects[9], &start, &elements, &item, &action_size))
        return nullptr;
    if (elements > static_cast<Py_ssize_t>(kMostElements) || !is_io(objects[kIo])) {
        PyErr_SetString(PyExc_ValueError, "no steps of this kind");
        return nullptr;
    }
    PyObject* const self = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self) return nullptr;
    auto& steps = *reinterpret_cast<StepsObject*>(self);
    for (std::size_t n = 0; n < objects.size(); ++n) steps.fields[n] = Py_NewRef(objects[n]);
    steps.thread = std::numeric_limits<std::uint64_t>::max();
    steps.start = start;
    steps.elements = static_cast<std::size_t>(elements);
    steps.item = static_cast<std::size_t>(item);
    steps.observation_bytes = steps.elements * steps.item;
    steps.action_size = static_cast<std::size_t>(action_size);
    return self;
}

PyMethodDef kStepsMethods[] = {
    {"request", as_method(steps_request), METH_FASTCALL, "Choose an action: request(trajectory, observation, mask)."},
    {"add", as_method(steps_add), METH_FASTCALL, "Store an action as the next step: add(trajectory, action)."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot kStepsSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(steps_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc<kStepsFields>)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse<kStepsFields>)},
    {Py_tp_clear, reinterpret_cast<void*>(clear<kStepsFields>)},
    {Py_tp_methods, kStepsMethods},
    {0, nullptr},
};

PyType_Spec kStepsSpec = {"rl4sys_zmq._native.Steps", sizeof(StepsObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, kStepsSlots};

// Adds a type. `slots` are the names of its fields, by which Python's dataclasses know that a base has them.
PyTypeObject* add_type(PyObject* module, PyType_Spec& spec, const PyMemberDef* members = nullptr, const PyGetSetDef* made = nullptr) {
    auto* const type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)).release());
    const Ref names = checked(PyList_New(0));
    const auto append = [&](const char* name) {
        const Ref text = checked(PyUnicode_FromString(name));
        if (PyList_Append(names.get(), text.get()) < 0) throw PythonError{};
    };
    for (; members && members->name; ++members) append(members->name);
    for (; made && made->name; ++made) append(made->name);
    const Ref slots = checked(PyList_AsTuple(names.get()));
    if (PyObject_SetAttrString(reinterpret_cast<PyObject*>(type), "__slots__", slots.get()) < 0 || PyModule_AddType(module, type) < 0)
        throw PythonError{};
    return type;
}

}  // namespace

void add_step_types(PyObject* module) {
    for (const auto& [name, text] : {std::pair{&name_append, "append"}, {&name_popleft, "popleft"}, {&name_late, "late"}, {&name_state, "state"},
                                     {&name_policy, "policy"}, {&name_stamp, "stamp"}, {&name_chooser, "chooser"}})
        *name = checked(PyUnicode_InternFromString(text)).release();
    add_type(module, kActionSpec, kActionMembers, kActionFieldsMade);
    trajectory_class = add_type(module, kTrajectorySpec, kTrajectoryMembers);
    add_type(module, kWriterSpec, kWriterMembers);
    add_type(module, kStepsSpec);
}

}  // namespace rl4sys::python
